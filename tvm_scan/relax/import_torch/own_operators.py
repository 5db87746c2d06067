"""Converters for the operators of ``tvm_scan.torch``, as ``torch.export`` finds them in a model.

Each becomes the sequential loop that its own kernel is built from. What only a gradient needs is
not imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from tvm import relax, tirx

from tvm_scan import loops, tir
from tvm_scan.annotations import DECLARED
from tvm_scan.errors import ScanError
from tvm_scan.reads import reads_of
from tvm_scan.relax.calls import call_loop, constant_extent
from tvm_scan.relax.import_torch.cumulative import emit_extremum, emit_log_sum_exp
from tvm_scan.relax.import_torch.higher_order import declared
from tvm_scan.relax.import_torch.own_arguments import (
    Frame,
    arguments_of,
    extent,
    present,
    sizes_of,
)
from tvm_scan.relax.import_torch.reads import value_of
from tvm_scan.relax.operators import emit_along_axis
from tvm_scan.relax.repairs.torch_casts import Converter


def _affine(node: Any, importer: Any) -> relax.Expr:
    arguments = arguments_of(node, importer)
    frame, initial = Frame(importer, arguments["x"]), arguments["h0"]
    loop = loops.affine(
        *frame.sizes,
        time_last=frame.time_last,
        dtype=tir.dtype_of(arguments["x"]),
        emit=arguments["emit"],
        reverse=arguments["reverse"],
        has_initial=initial is not None,
        has_reset=arguments["reset"] is not None,
    )
    inputs = [frame.array(array) for array in present(arguments, "a", "x", "reset")]
    inputs += [] if initial is None else [frame.state(initial)]
    (out,) = call_loop(importer.block_builder, loop, inputs, "affine_scan")
    return frame.whole(out)


def _cumulative(node: Any, importer: Any) -> relax.Expr:
    arguments = arguments_of(node, importer)
    options = {key: arguments[key] for key in ("op", "exclusive", "reverse")}
    make = partial(loops.cumulative, dtype=tir.dtype_of(arguments["x"]), **options)
    name = "cumsum" if arguments["op"] == "add" else "cumprod"
    return emit_along_axis(importer.block_builder, make, [arguments["x"]], 1, name)[0]


def _log_sum_exp(node: Any, importer: Any) -> relax.Expr:
    arguments = arguments_of(node, importer)
    return emit_log_sum_exp(importer.block_builder, arguments["x"], 1, reverse=arguments["reverse"])


def _extremum(node: Any, importer: Any, **options: bool) -> list[relax.Expr]:
    arguments = arguments_of(node, importer) | options
    return emit_extremum(importer.block_builder, arguments.pop("x"), 1, **arguments)


def _positions(node: Any, importer: Any) -> relax.Expr:
    return _extremum(node, importer, has_values=False)[0]


def _selective(node: Any, importer: Any) -> list[relax.Expr]:
    arguments = arguments_of(node, importer)
    if any(user.args[1] == 2 and user.users for user in node.users):
        raise ScanError(
            "from_exported: expected the output and the last state of a selective scan, found a "
            "use of what is kept for its gradient; export the forward pass alone"
        )
    builder, u = importer.block_builder, arguments["u"]
    batch, groups, channels, length = sizes_of(u, ("batch", "groups", "channels", "length"))
    options = {f"has_{name}": arguments[name] is not None for name in ("D", "z", "bias", "reset")}
    options |= {f"fixed_{name}": len(arguments[name].ty.shape.values) == 3 for name in "BC"}
    states = constant_extent(arguments["A"], 2, "selective_scan", "states")
    loop = loops.selective_forward(
        batch,
        groups,
        channels,
        length,
        length,
        states=states,
        dtype=tir.dtype_of(u),
        softplus=arguments["softplus"],
        reverse=arguments["reverse"],
        **options,
    )
    initial = arguments["h0"]
    if initial is None:
        shape = relax.ShapeExpr([*u.ty.shape.values[:3], states])
        initial = builder.emit(relax.op.zeros(shape, tir.dtype_of(arguments["A"])))
    names = ("u", "delta", "A", "B", "C", "D", "z", "bias", "reset")
    inputs = [*present(arguments, *names), initial]
    out, last = call_loop(builder, _from_the_start(loop), inputs, "selective_scan")
    # The third result is for gradients alone; nothing reads it.
    return [out, last, last]


def _from_the_start(loop: tirx.PrimFunc) -> tirx.PrimFunc:
    """`loop` without its scalar parameters: it starts at step 0 and takes all steps."""
    start, *others = loop.params
    tensors = [p for p in others if tirx.is_buffer_var(p)]
    body = tir.substitute(loop.body, {start: tirx.IntImm("int64", 0)})
    return tirx.PrimFunc(tensors, body, loop.ret_type, attrs=loop.attrs)


def _outer(node: Any, importer: Any) -> list[relax.Expr]:
    arguments = arguments_of(node, importer)
    builder, x = importer.block_builder, arguments["x"]
    batch, length, heads, lanes = sizes_of(x, ("batch", "length", "heads", "lanes"))
    loop = loops.outer_products(
        batch,
        heads,
        lanes,
        length,
        states=constant_extent(arguments["a"], 3, "outer_scan", "states"),
        dtype=tir.dtype_of(x),
        gate=arguments["gate"],
        emit=arguments["emit"],
        reverse=arguments["reverse"],
        has_reset=arguments["reset"] is not None,
    )
    decay = builder.emit(relax.op.exp(arguments["g"]))
    inputs = [decay, *present(arguments, "a", "x", "c", "reset", "h0")]
    last, y = call_loop(builder, loop, inputs, "outer_scan")
    return [y, last]


def _delta(node: Any, importer: Any) -> list[relax.Expr]:
    arguments = arguments_of(node, importer)
    if arguments["offsets"] is not None:
        raise ScanError(
            "from_exported: expected rows of one sequence each, found a delta rule with "
            "cu_seqlens; export it with a row for each sequence"
        )
    builder, q, v, g = (importer.block_builder, *(arguments[name] for name in "qvg"))
    batch, length, heads, _ = sizes_of(q, ("batch", "length", "heads", "keys"))
    group = constant_extent(v, 2, "delta_scan", "value heads")
    loop = loops.delta_rule(
        batch,
        heads,
        length,
        keys=constant_extent(q, 3, "delta_scan", "keys"),
        values=constant_extent(v, 3, "delta_scan", "values"),
        dtype=tir.dtype_of(v),
        rule="general" if arguments["beta"] is None else "delta",
        gate="none" if g is None else ("head" if len(g.ty.shape.values) == 3 else "key"),
        group=group // constant_extent(q, 2, "delta_scan", "heads"),
    )
    read = _read(builder, arguments)
    inputs = present(read, "q", "k", "v", "g", "beta", "a", "b", "h0")
    last, y = call_loop(builder, loop, inputs, "delta_scan")
    return [y, last]


def _read(builder: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Emit the chains through which the loop of a delta rule reads its tensors."""
    if arguments["scale"] is None:
        arguments["scale"] = constant_extent(arguments["q"], 3, "delta_scan", "keys") ** -0.5
    read = dict(arguments)
    for name, chain in reads_of(arguments["reads"]).items():
        tensor = "g" if name == "w" else name
        read[tensor] = value_of(builder, chain, arguments[tensor], arguments)
    return read


def _steps(node: Any, importer: Any) -> list[relax.Expr]:
    from tvm_scan.torch.trace.lowered import pointwise_step

    arguments = arguments_of(node, importer)
    tensors, prefix, carries = arguments["tensors"], arguments["prefix"], arguments["carries"]
    frame = Frame(importer, tensors[-1])
    dtypes = tuple(tir.dtype_of(t) for t in tensors)
    loop = pointwise_step(
        *frame.sizes,
        graph=arguments["graph"],
        dtypes=dtypes + dtypes if prefix else dtypes,
        time_last=frame.time_last,
        carries=carries,
        prefix=prefix,
        reverse=arguments["reverse"],
    )
    starts = 0 if prefix else carries
    inputs = [frame.state(t) for t in tensors[:starts]] + [frame.array(t) for t in tensors[starts:]]
    results = call_loop(importer.block_builder, _believed(loop, carries, prefix), inputs, "scan")
    return [frame.last(r) for r in results[:starts]] + [frame.whole(r) for r in results[starts:]]


def _slices(node: Any, importer: Any) -> list[relax.Expr]:
    from tvm_scan.torch.trace.lowered import sliced_step

    arguments = arguments_of(node, importer)
    tensors, prefix, carries = arguments["tensors"], arguments["prefix"], arguments["carries"]
    inits, count = 0 if prefix else carries, arguments["slices"]

    def kind(tensor: relax.Expr, sliced: bool) -> tuple[tuple[int, ...], str]:
        extents = [tir.as_int(n) for n in tensor.ty.shape.values[1 if sliced else 0 :]]
        if None in extents:
            raise ScanError(
                "from_exported: expected a scan whose slices have constant extents, found "
                f"{tensor.ty}; only the length may be dynamic"
            )
        return tuple(n for n in extents if n is not None), tir.dtype_of(tensor)

    xs = [kind(t, True) for t in tensors[inits : inits + count]]
    starts = xs if prefix else [kind(t, False) for t in tensors[:inits]]
    given_kinds = [*starts, *xs, *(kind(t, False) for t in tensors[inits + count :])]
    loop = sliced_step(
        extent(tensors[inits].ty.shape.values[0], "length"),
        graph=arguments["graph"],
        dtypes=tuple(dtype for _, dtype in given_kinds),
        shapes=tuple(shape for shape, _ in given_kinds),
        carries=carries,
        slices=count,
        prefix=prefix,
        reverse=arguments["reverse"],
    )
    return call_loop(importer.block_builder, _believed(loop, carries, prefix), tensors, "scan")


def _states_of_sequences(node: Any, importer: Any) -> relax.Expr:
    arguments = arguments_of(node, importer)
    drive, B, offsets, first = (arguments[name] for name in ("drive", "B", "offsets", "first"))
    _, length, heads, features = sizes_of(drive, ("one", "length", "heads", "features"))
    _, _, groups, states = sizes_of(B, ("one", "length", "groups", "states"))
    loop = loops.states_of_sequences(
        *(length, heads, features, groups, states),
        extent(offsets.ty.shape.values[0], "ends"),
        dtype=tir.dtype_of(drive),
        offsets_dtype=tir.dtype_of(offsets),
        has_first=first is not None,
        has_reset=arguments["reset"] is not None,
    )
    inputs = present(arguments, "gates", "drive", "B", "first", "reset", "offsets")
    return call_loop(importer.block_builder, loop, inputs, "states_of_sequences")[0]


def _of_a_gradient(node: Any, importer: Any) -> relax.Expr:
    raise ScanError(
        f"from_exported: expected a forward pass, found {node.target}, which only a gradient "
        "calls; export the forward pass, and differentiate in torch"
    )


def _believed(loop: tirx.PrimFunc, parts: int, prefix: bool) -> tirx.PrimFunc:
    """Try on samples that an operator is associative, where it is declared so."""
    return declared(loop.without_attr(DECLARED), parts) if prefix else loop


#: By the name of the overload, for ``custom_convert_map`` of TVM's importer.
OWN: Mapping[str, Converter] = {
    "affine_scan.default": _affine,
    "cumulative.default": _cumulative,
    "delta_scan.default": _delta,
    "delta_scan_backward.default": _of_a_gradient,
    "extremum.default": _extremum,
    "extremum_gradient.default": _of_a_gradient,
    "gate_gradient.default": _of_a_gradient,
    "log_sum_exp.default": _log_sum_exp,
    "outer_scan.default": _outer,
    "positions.default": _positions,
    "scan_slices.default": _slices,
    "selective_scan_backward.default": _of_a_gradient,
    "selective_scan_grouped.default": _selective,
    "sequence_states.default": _states_of_sequences,
    "sequence_states_backward.default": _of_a_gradient,
    "step_scan.default": _steps,
}
