"""The converter of ONNX's ``Scan``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from tvm import relax
from tvm.ir import GenericConst

from tvm_scan import tir
from tvm_scan.relax.calls import call_loop
from tvm_scan.relax.import_onnx.shapes import may_agree, wrong
from tvm_scan.relax.step.lowered import LoweredStep, lower_step, time_loop

_wrong = partial(wrong, "Scan")


def scan(
    importer: Any, inputs: list[relax.Expr | None], attrs: dict[str, Any], opset: int
) -> relax.Expr:
    """Convert the operator: a loop along one axis of every input.

    Parameters
    ----------
    importer : ONNXGraphImporter
        Knows the values of the enclosing graph; its kind imports the body.
    inputs : list of relax.Expr
        Initial states, then the arrays of which a step reads one slice each.
    attrs : dict
        Of the node.
    opset : int
        Before 9 the operator was another one, with a batch.

    Returns
    -------
    relax.Expr
        Final states, then what the steps emit: a tuple where they are several.

    Raises
    ------
    ScanError
        If the inputs do not fit each other or the body, or the body branches.
    """
    if opset < 9:
        raise _wrong("opset 9 or later", f"{opset}, where it has a batch", "convert the model")
    builder, body = importer.bb, attrs["body"]
    slices = int(attrs["num_scan_inputs"])
    carries = len(inputs) - slices
    emits = len(body.output) - carries
    if slices < 1 or len(body.input) != len(inputs) or emits < 0 or None in inputs:
        raise _wrong(
            "a body with an input for each of the node's, and an output for each state",
            f"{len(inputs)} inputs, of which {slices} are scanned, and a body of "
            f"{len(body.input)} inputs and {len(body.output)} outputs",
            "check the model with onnx.checker",
        )

    def listed(name: str, count: int) -> list[int]:
        numbers = [int(v) for v in attrs.get(name, [0] * count)]
        if len(numbers) != count:
            raise _wrong(f"{name} of {count} elements", f"{numbers}", "give one for each array")
        return numbers

    operands = [builder.normalize(value) for value in inputs]
    inits, xs = operands[:carries], operands[carries:]
    axes, directions = (listed(f"scan_input_{n}", slices) for n in ("axes", "directions"))
    names = [value.name for value in body.input]
    for i, (axis, back) in enumerate(zip(axes, directions, strict=True)):
        axis = _within(axis, _rank(xs[i], names[carries + i]))
        xs[i] = _moved(builder, xs[i], axis, 0)
        if back:
            xs[i] = builder.emit(relax.op.flip(xs[i], 0))
    length = _common_length(xs)
    shared = _captured(importer, body)
    constants = {n: v for n, v in shared.items() if isinstance(v, (GenericConst, relax.ShapeExpr))}
    shared = {n: builder.normalize(v) for n, v in shared.items() if n not in constants}
    steps = [relax.TensorType(x.ty.shape.values[1:], x.ty.dtype) for x in xs]
    types = [*(e.ty for e in inits), *steps, *(e.ty for e in shared.values())]

    def write(inner: relax.BlockBuilder, params: list[relax.Var]) -> Sequence[relax.Expr]:
        step = type(importer)({}, "float32")
        step.bb, step.opset = inner, importer.opset
        step._nodes.update(constants)
        step._parse_graph_initializers(body)
        step._nodes.update(zip([*names, *shared], params, strict=True))
        step._construct_nodes(body)
        return [step._nodes[value.name] for value in body.output]

    lowered = lower_step(types, write)
    _check_states(lowered, inits, names)
    loop = time_loop(lowered, length=length, carries=carries, slices=slices)
    args = [*inits, *xs, *shared.values(), *lowered.constants]
    results = call_loop(builder, loop, args, "scan")
    axes, directions = (listed(f"scan_output_{n}", emits) for n in ("axes", "directions"))
    for i, (axis, back) in enumerate(zip(axes, directions, strict=True), carries):
        y = builder.emit(relax.op.flip(results[i], 0)) if back else results[i]
        results[i] = _moved(builder, y, 0, _within(axis, len(y.ty.shape.values)))
    # TVM hands a tuple of one on as a tuple.
    return results[0] if len(results) == 1 else relax.Tuple(results)


def _rank(x: relax.Expr, name: str) -> int:
    shape = getattr(x.ty, "shape", None)
    if not isinstance(shape, relax.ShapeExpr) or not shape.values:
        raise _wrong(f"{name} with an axis to scan along", str(x.ty), "give the shape of the input")
    return len(shape.values)


def _within(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise _wrong(f"an axis from {-rank} to {rank - 1}", str(axis), "name an axis of the array")
    return axis % rank


def _common_length(xs: Sequence[relax.Expr]) -> int | None:
    """Number of steps; None where a call decides. It compares the lengths that it decides."""
    known = [tir.as_int(x.ty.shape.values[0]) for x in xs]
    if len({n for n in known if n is not None}) > 1:
        raise _wrong("arrays of one length", f"{known}", "give all of them the same")
    return None if None in known else known[0]


def _check_states(step: LoweredStep, inits: Sequence[relax.Expr], names: list[str]) -> None:
    for init, after, name in zip(inits, step.outputs, names, strict=False):
        before = tir.shape_of(after), tir.dtype_of(after)
        shape, dtype = list(init.ty.shape.values), str(init.ty.dtype)
        if not may_agree(shape, before[0]) or dtype != before[1]:
            raise _wrong(
                f"the state {name} to keep its shape and dtype",
                f"{shape} of {dtype} before a step and {list(before[0])} of {before[1]} after it",
                "give it the shape and dtype that a step leaves",
            )


def _captured(importer: Any, body: Any) -> dict[str, relax.Expr]:
    """Values of the enclosing graph that the body reads, also in the bodies inside of it."""
    names = dict.fromkeys(_free_names(body))
    captured = {name: importer._nodes[name] for name in names if name in importer._nodes}
    for name, value in captured.items():
        is_open = isinstance(value, relax.ShapeExpr) and any(
            tir.as_int(n) is None for n in value.values
        )
        if is_open or not isinstance(value.ty, (relax.TensorType, relax.ShapeType)):
            raise _wrong(
                "a body that reads tensors of the enclosing graph",
                f"{name} as {value.ty}",
                "compute what depends on a dynamic shape outside of the body",
            )
    return captured


def _free_names(graph: Any) -> Iterator[str]:
    names = {value.name for value in (*graph.input, *graph.initializer)}
    names |= {name for node in graph.node for name in node.output}
    for node in graph.node:
        if node.op_type in _CONTROL:
            raise _wrong(
                "a body without branches and loops other than Scan",
                node.op_type,
                "compute both branches and choose with Where",
            )
        inner = [a.g for a in node.attribute if a.HasField("g")]
        for name in (*node.input, *(n for g in inner for n in _free_names(g))):
            if name and name not in names:
                yield name
    yield from (value.name for value in graph.output if value.name not in names)


#: What TVM makes a branch or a call of, which no loop of TensorIR can hold.
_CONTROL = ("If", "Loop", "SequenceMap")


def _moved(builder: relax.BlockBuilder, x: relax.Expr, source: int, target: int) -> relax.Expr:
    if source == target:
        return x
    order = [i for i in range(len(x.ty.shape.values)) if i != source]
    order.insert(target, source)
    return builder.emit(relax.op.permute_dims(x, order))
