"""Converters for the operators of ``tvm_scan.torch``, as ``torch.export`` finds them in a model.

Each becomes the sequential loop that its own kernel is built from. What only a gradient needs is
not imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm import relax, tirx

from tvm_scan import tir
from tvm_scan.annotations import DECLARED
from tvm_scan.errors import ScanError
from tvm_scan.relax.import_torch.higher_order import declared
from tvm_scan.relax.loops.build import Shape, call_loop, constant_extent
from tvm_scan.relax.loops.cumulative import cumulative_loop, logsumexp_loop
from tvm_scan.relax.loops.packed_states import states_of_sequences
from tvm_scan.relax.operators import emit_along_axis, viewed

__all__ = ["OWN"]

Converter = Callable[[Any, Any], Any]
_NAMES = {"add": "cumsum", "mul": "cumprod"}


def _arguments(node: Any, importer: Any) -> dict[str, Any]:
    """Arguments of a call by name, with what the importer has made of its tensors."""
    values = {a.name: a.default_value for a in node.target._schema.arguments}
    values |= dict(zip(values, node.args, strict=False)) | dict(node.kwargs)

    def resolved(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [resolved(item) for item in value]
        if hasattr(value, "op"):
            _check_real(node, value)
            return importer.env[value]
        return value

    return {name: resolved(value) for name, value in values.items()}


def _check_real(node: Any, value: Any) -> None:
    if getattr(value.meta.get("val"), "is_complex", bool)():
        raise ScanError(
            f"from_exported: expected real tensors in {node.target}, found complex ones, which TVM "
            "does not have; write the recurrence in real and imaginary parts"
        )


def _extent(value: Any, name: str) -> Any:
    """A constant, or a variable of the loop's own: those of the module are bound by the call."""
    known = tir.as_int(value)
    return tirx.Var(name, "int64") if known is None else tirx.IntImm("int64", known)


def _sizes(value: relax.Expr, names: Sequence[str]) -> list[Any]:
    return [_extent(n, name) for n, name in zip(value.ty.shape.values, names, strict=True)]


class _Frame:
    """Arrays (outer, length, inner) as the loops want them: time last where inner is 1."""

    def __init__(self, importer: Any, x: relax.Expr) -> None:
        self._builder = importer.block_builder
        self._shape = list(x.ty.shape.values)
        outer, length, inner = self._shape
        self.time_last = tir.as_int(inner) == 1
        if self.time_last:
            outer, inner = tirx.IntImm("int64", 1), outer
        self._sides = [outer, inner, length]
        names = ("outer", "inner", "length")
        self.sizes = tuple(_extent(n, name) for n, name in zip(self._sides, names, strict=True))

    def array(self, value: relax.Expr) -> relax.Expr:
        """An array with time."""
        outer, inner, length = self._sides
        shape = [outer, inner, length] if self.time_last else [outer, length, inner]
        return viewed(self._builder, value, shape)

    def state(self, value: relax.Expr) -> relax.Expr:
        """An array without time."""
        return viewed(self._builder, value, self._sides[:2])

    def whole(self, value: relax.Expr) -> relax.Expr:
        """A result with time, in the shape of the operator."""
        return viewed(self._builder, value, self._shape)

    def last(self, value: relax.Expr) -> relax.Expr:
        """A result without time, in the shape of the operator."""
        return viewed(self._builder, value, [self._shape[0], self._shape[2]])


def _private(loop: tirx.PrimFunc) -> tirx.PrimFunc:
    return loop.without_attr("global_symbol")


def _dtype(value: relax.Expr) -> str:
    return str(value.ty.dtype)


def _affine(node: Any, importer: Any) -> relax.Expr:
    from tvm_scan.torch.loops import affine

    given = _arguments(node, importer)
    frame, initial = _Frame(importer, given["x"]), given["h0"]
    loop = affine(
        *frame.sizes,
        time_last=frame.time_last,
        dtype=_dtype(given["x"]),
        emit=given["emit"],
        reverse=given["reverse"],
        has_initial=initial is not None,
        has_reset=given["reset"] is not None,
    )
    inputs = [frame.array(given[name]) for name in ("a", "x", "reset") if given[name] is not None]
    inputs += [] if initial is None else [frame.state(initial)]
    (out,) = call_loop(importer.block_builder, _private(loop), inputs, "affine_scan")
    return frame.whole(out)


def _cumulative(node: Any, importer: Any) -> relax.Expr:
    given = _arguments(node, importer)
    name, x = _NAMES[given["op"]], given["x"]
    options = {key: given[key] for key in ("exclusive", "reverse")}

    def make(shape: Shape) -> tirx.PrimFunc:
        return cumulative_loop(name, shape, _dtype(x), _dtype(x), **options)

    return emit_along_axis(importer.block_builder, make, [x], 1, name)[0]


def _log_sum_exp(node: Any, importer: Any) -> relax.Expr:
    given = _arguments(node, importer)
    x = given["x"]

    def make(shape: Shape) -> tirx.PrimFunc:
        return logsumexp_loop(shape, _dtype(x), _dtype(x), reverse=given["reverse"])

    return emit_along_axis(importer.block_builder, make, [x], 1, "logcumsumexp")[0]


def _positions(node: Any, importer: Any) -> relax.Expr:
    from tvm_scan.torch import loops

    given = _arguments(node, importer)
    x, builder = given["x"], importer.block_builder
    frame = _Frame(importer, x)
    options = {
        "time_last": frame.time_last,
        "dtype": _dtype(x),
        "smallest": given["smallest"],
        "reverse": given["reverse"],
    }

    def run(factory: Any, *inputs: relax.Expr) -> relax.Expr:
        loop = _private(factory(*frame.sizes, **options))
        return call_loop(builder, loop, inputs, "positions")[0]

    if _dtype(x) not in ("float64", "int64"):
        return frame.whole(run(loops.positions_packed, frame.array(x)))
    keys = run(loops.running_keys, frame.array(x))
    return frame.whole(run(loops.positions_of_keys, frame.array(x), keys))


def _extremum(node: Any, importer: Any) -> list[relax.Expr]:
    where = _positions(node, importer)
    values = relax.op.gather_elements(_arguments(node, importer)["x"], where, axis=1)
    return [importer.block_builder.emit(values), where]


def _selective(node: Any, importer: Any) -> list[relax.Expr]:
    from tvm_scan.torch.loops import selective_forward

    given = _arguments(node, importer)
    if any(user.args[1] == 2 and user.users for user in node.users):
        raise ScanError(
            "from_exported: expected the output and the last state of a selective scan, found a "
            "use of what is kept for its gradient; export the forward pass alone"
        )
    builder, u = importer.block_builder, given["u"]
    batch, groups, channels, length = _sizes(u, ("batch", "groups", "channels", "length"))
    options = {f"has_{name}": given[name] is not None for name in ("D", "z", "bias", "reset")}
    options |= {f"fixed_{name}": len(given[name].ty.shape.values) == 3 for name in "BC"}
    states = constant_extent(given["A"], 2, "selective_scan", "states")
    loop = selective_forward(
        batch,
        groups,
        channels,
        length,
        length,
        states=states,
        dtype=_dtype(u),
        softplus=given["softplus"],
        reverse=given["reverse"],
        **options,
    )
    initial = given["h0"]
    if initial is None:
        shape = relax.ShapeExpr([*u.ty.shape.values[:3], states])
        initial = builder.emit(relax.op.zeros(shape, _dtype(given["A"])))
    tensors = [given[name] for name in ("u", "delta", "A", "B", "C", "D", "z", "bias", "reset")]
    inputs = [*(t for t in tensors if t is not None), initial]
    out, last = call_loop(builder, _from_the_start(loop), inputs, "selective_scan")
    # The third result is for gradients alone; nothing reads it.
    return [out, last, last]


def _from_the_start(loop: tirx.PrimFunc) -> tirx.PrimFunc:
    """`loop` without its scalar parameters: it starts at step 0 and walks all steps."""
    start, *others = loop.params
    tensors = [p for p in others if tirx.is_buffer_var(p)]
    body = tir.substitute(loop.body, {start: tirx.IntImm("int64", 0)})
    return _private(tirx.PrimFunc(tensors, body, loop.ret_type, attrs=loop.attrs))


def _outer(node: Any, importer: Any) -> list[relax.Expr]:
    from tvm_scan.torch.loops import outer_products

    given = _arguments(node, importer)
    builder, x = importer.block_builder, given["x"]
    batch, length, heads, lanes = _sizes(x, ("batch", "length", "heads", "lanes"))
    loop = outer_products(
        batch,
        heads,
        lanes,
        length,
        states=constant_extent(given["a"], 3, "outer_scan", "states"),
        dtype=_dtype(x),
        gate=given["gate"],
        emit=given["emit"],
        reverse=given["reverse"],
        has_reset=given["reset"] is not None,
    )
    decay = builder.emit(relax.op.exp(given["g"]))
    tensors = [given[name] for name in ("a", "x", "c", "reset", "h0")]
    inputs = [decay, *(t for t in tensors if t is not None)]
    last, y = call_loop(builder, _private(loop), inputs, "outer_scan")
    return [y, last]


def _steps(node: Any, importer: Any) -> list[relax.Expr]:
    from tvm_scan.torch.loops import pointwise_step

    given = _arguments(node, importer)
    tensors, prefix, carries = given["tensors"], given["prefix"], given["carries"]
    frame = _Frame(importer, tensors[-1])
    dtypes = tuple(_dtype(t) for t in tensors)
    loop = pointwise_step(
        *frame.sizes,
        graph=given["graph"],
        dtypes=dtypes + dtypes if prefix else dtypes,
        time_last=frame.time_last,
        carries=carries,
        prefix=prefix,
        reverse=given["reverse"],
    )
    starts = 0 if prefix else carries
    inputs = [frame.state(t) for t in tensors[:starts]] + [frame.array(t) for t in tensors[starts:]]
    results = call_loop(importer.block_builder, _believed(loop, carries, prefix), inputs, "scan")
    return [frame.last(r) for r in results[:starts]] + [frame.whole(r) for r in results[starts:]]


def _slices(node: Any, importer: Any) -> list[relax.Expr]:
    from tvm_scan.torch.loops import sliced_step

    given = _arguments(node, importer)
    tensors, prefix, carries = given["tensors"], given["prefix"], given["carries"]
    inits, count = 0 if prefix else carries, given["slices"]

    def kind(tensor: relax.Expr, sliced: bool) -> tuple[tuple[int, ...], str]:
        extents = [tir.as_int(n) for n in tensor.ty.shape.values[1 if sliced else 0 :]]
        if None in extents:
            raise ScanError(
                "from_exported: expected a scan whose slices have constant extents, found "
                f"{tensor.ty}; only the length may be dynamic"
            )
        return tuple(n for n in extents if n is not None), _dtype(tensor)

    xs = [kind(t, True) for t in tensors[inits : inits + count]]
    starts = xs if prefix else [kind(t, False) for t in tensors[:inits]]
    given_kinds = [*starts, *xs, *(kind(t, False) for t in tensors[inits + count :])]
    loop = sliced_step(
        _extent(tensors[inits].ty.shape.values[0], "length"),
        graph=given["graph"],
        dtypes=tuple(dtype for _, dtype in given_kinds),
        shapes=tuple(shape for shape, _ in given_kinds),
        carries=carries,
        slices=count,
        prefix=prefix,
        reverse=given["reverse"],
    )
    return call_loop(importer.block_builder, _believed(loop, carries, prefix), tensors, "scan")


def _states_of_sequences(node: Any, importer: Any) -> relax.Expr:
    given = _arguments(node, importer)
    drive, B, offsets, first = (given[name] for name in ("drive", "B", "offsets", "first"))
    _, length, heads, features = _sizes(drive, ("one", "length", "heads", "features"))
    _, _, groups, states = _sizes(B, ("one", "length", "groups", "states"))
    loop = states_of_sequences(
        *(length, heads, features, groups, states),
        _extent(offsets.ty.shape.values[0], "ends"),
        dtype=_dtype(drive),
        offsets_dtype=_dtype(offsets),
        has_first=first is not None,
        has_reset=given["reset"] is not None,
    )
    optional = [t for t in (first, given["reset"]) if t is not None]
    inputs = [given["gates"], drive, B, *optional, offsets]
    return call_loop(importer.block_builder, loop, inputs, "states_of_sequences")[0]


def _of_a_gradient(node: Any, importer: Any) -> relax.Expr:
    raise ScanError(
        f"from_exported: expected a forward pass, found {node.target}, which only a gradient "
        "calls; export the forward pass, and differentiate in torch"
    )


def _believed(loop: tirx.PrimFunc, parts: int, prefix: bool) -> tirx.PrimFunc:
    """Of an operator that is declared associative, try that on samples."""
    loop = _private(loop)
    return declared(loop.without_attr(DECLARED), parts) if prefix else loop


#: By the name of the overload, for ``custom_convert_map`` of TVM's importer.
OWN: Mapping[str, Converter] = {
    "affine_scan.default": _affine,
    "cumulative.default": _cumulative,
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
