"""Converters for the operators of ``tvm_scan.torch``, so that what it exports comes back as loops.

Each operator becomes the sequential loop that its own kernel is made of; passes then schedule it
like any other recurrence of the module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from tvm import relax, tirx

from tvm_scan import tir
from tvm_scan.annotations import OP_PATTERN, OPAQUE_PATTERN
from tvm_scan.errors import ScanError
from tvm_scan.library.arguments import make_extent
from tvm_scan.relax.loops import call_loop

__all__ = ["SCAN_CONVERTERS"]


def _extents(factory: str, sizes: dict[str, Any]) -> dict[str, Any]:
    return {name: make_extent(factory, name, tir.as_int(n)) for name, n in sizes.items()}


def _emit(
    importer: Any, factory: str, loop: tirx.PrimFunc, args: Sequence[relax.Expr]
) -> list[relax.Expr]:
    loop = loop.without_attr("global_symbol").with_attr(OP_PATTERN, OPAQUE_PATTERN)
    return call_loop(importer.block_builder, loop, list(args), factory)


def _run(
    importer: Any, factory: str, sizes: dict[str, Any], args: Sequence[relax.Expr], **options: Any
) -> list[relax.Expr]:
    """Emit a loop of `tvm_scan.torch.loops`; it has the inputs first, then the outputs."""
    make = getattr(import_module("tvm_scan.torch.loops"), factory)
    return _emit(importer, factory, make(**_extents(factory, sizes), **options), args)


def _shape(tensor: relax.Expr) -> list[Any]:
    return list(tensor.ty.shape.values)


def _reshape(importer: Any, tensor: relax.Expr, shape: Sequence[Any]) -> relax.Expr:
    return importer.block_builder.emit(relax.op.reshape(tensor, list(shape)))


def _framed(
    importer: Any,
    factory: str,
    like: relax.Expr,
    small: Sequence[relax.Expr],
    large: Sequence[relax.Expr],
    kinds: str,
    **options: Any,
) -> list[relax.Expr]:
    """Emit a loop over (outer, length, inner), or with time last where nothing is behind it.

    `small` are states before the walk, which come before `large`, the arrays, or behind them,
    where `kinds` says so: a letter for each parameter, ``s`` or ``l``, outputs too.
    """
    outer, length, inner = _shape(like)
    time_last = tir.as_int(inner) == 1
    sizes = {"outer": outer, "inner": inner, "length": length}
    shapes = {"s": [outer, inner], "l": [outer, length, inner]}
    inside = shapes
    if time_last:
        one = tirx.IntImm("int64", 1)
        sizes = {"outer": one, "inner": outer, "length": length}
        inside = {"s": [one, outer], "l": [one, outer, length]}
    queues = {"s": iter(small), "l": iter(large)}
    count = len(small) + len(large)
    args = [next(queues[kind]) for kind in kinds[:count]]
    if time_last:
        args = [_reshape(importer, a, inside[k]) for a, k in zip(args, kinds, strict=False)]
    found = _run(importer, factory, sizes, args, time_last=time_last, **options)
    if not time_last:
        return found
    return [_reshape(importer, r, shapes[k]) for r, k in zip(found, kinds[count:], strict=True)]


def _dtype(tensor: relax.Expr) -> str:
    return str(tensor.ty.dtype)


def _affine(node: Any, importer: Any) -> relax.Expr:
    a, x, h0, emit, reverse = _arguments(node, importer)
    options = {"emit": emit, "reverse": reverse, "has_initial": h0 is not None}
    small, kinds = ([], "lll") if h0 is None else ([h0], "llsl")
    return _framed(importer, "affine", x, small, [a, x], kinds, dtype=_dtype(x), **options)[0]


def _cumulative(node: Any, importer: Any) -> relax.Expr:
    x, op, reverse, exclusive = _arguments(node, importer)
    options = {"op": op, "reverse": reverse, "exclusive": exclusive}
    return _framed(importer, "cumulative", x, [], [x], "ll", dtype=_dtype(x), **options)[0]


def _positions_of(importer: Any, x: relax.Expr, smallest: bool, reverse: bool) -> relax.Expr:
    dtype = _dtype(x)
    options = {"dtype": dtype, "smallest": smallest, "reverse": reverse}
    if dtype not in ("float64", "int64"):
        return _framed(importer, "positions_packed", x, [], [x], "ll", **options)[0]
    (keys,) = _framed(importer, "running_keys", x, [], [x], "ll", **options)
    return _framed(importer, "positions_of_keys", x, [], [x, keys], "lll", **options)[0]


def _positions(node: Any, importer: Any) -> relax.Expr:
    return _positions_of(importer, *_arguments(node, importer))


def _log_sum_exp(node: Any, importer: Any) -> relax.Expr:
    x, reverse = _arguments(node, importer)
    places = _positions_of(importer, x, False, reverse)
    top = importer.block_builder.emit(relax.op.gather_elements(x, places, 1))
    options = {"dtype": _dtype(x), "reverse": reverse}
    return _framed(importer, "logcumsumexp", x, [], [x, top], "lll", **options)[0]


def _outer(node: Any, importer: Any) -> list[relax.Expr]:
    g, a, x, c, h0, gate, emit, reverse = _arguments(node, importer)
    batch, length, heads, lanes = _shape(x)
    gates = importer.block_builder.emit(relax.op.exp(g))
    last, y = _run(
        importer,
        "outer_products",
        {"batch": batch, "heads": heads, "lanes": lanes, "length": length},
        [gates, a, x, c, h0],
        states=_known(node, _shape(a)[3]),
        dtype=_dtype(x),
        gate=gate,
        emit=emit,
        reverse=reverse,
    )
    return [y, last]


def _selective(node: Any, importer: Any) -> list[relax.Expr]:
    *tensors, softplus, reverse, _ = _arguments(node, importer)
    u, _, A, _, _, D, z, bias, reset, h0 = tensors
    wide = _dtype(A)
    state = [*_shape(u)[:3], _shape(A)[2]]
    if h0 is None:
        h0 = importer.block_builder.emit(relax.op.zeros(relax.ShapeExpr(state), wide))
    names = ("batch", "groups", "channels", "length")
    extents = _extents("selective_forward", dict(zip(names, _shape(u), strict=True)))
    # All steps, from the first: neither is a parameter of the loop here.
    loop = import_module("tvm_scan.torch.loops").selective_forward(
        **extents,
        steps=extents["length"],
        states=_known(node, _shape(A)[2]),
        dtype=_dtype(u),
        softplus=softplus,
        reverse=reverse,
        has_bias=bias is not None,
        has_D=D is not None,
        has_z=z is not None,
        has_reset=reset is not None,
    )
    numbers = [p for p in loop.params if not tirx.is_buffer_var(p)]
    body = tir.substitute(loop.body, {numbers[0]: tirx.IntImm("int64", 0)})
    arrays = [p for p in loop.params if tirx.is_buffer_var(p)]
    loop = tirx.PrimFunc(arrays, body, loop.ret_type, attrs=loop.attrs)
    given = [t for t in tensors[:9] if t is not None]
    out, last = _emit(importer, "selective_forward", loop, [*given, h0])
    # The states at the heads of chunks, which a gradient would need.
    if any(user.args[1] == 2 and user.users for user in node.users):
        raise ScanError(
            "from_exported: expected a program without the gradient of the selective scan, got "
            "one that reads the states that it keeps; export the forward pass"
        )
    return [out, last, last]


def _step(node: Any, importer: Any) -> list[relax.Expr]:
    tensors, graph, carries, prefix, reverse = _arguments(node, importer)
    starts = 0 if prefix else carries
    small, large = tensors[:starts], tensors[starts:]
    dtypes = tuple(_dtype(t) for t in tensors)
    results = len(node.meta["val"])
    return _framed(
        importer,
        "pointwise_step",
        tensors[-1],
        small,
        large,
        "s" * starts + "l" * len(large) + "s" * starts + "l" * (results - starts),
        graph=graph,
        dtypes=dtypes + dtypes if prefix else dtypes,
        carries=carries,
        prefix=prefix,
        reverse=reverse,
    )


def _slices(node: Any, importer: Any) -> list[relax.Expr]:
    tensors, graph, carries, slices, prefix, reverse = _arguments(node, importer)
    starts = 0 if prefix else carries
    whole = [tuple(_known(node, n) for n in _shape(t)) for t in tensors[:starts]]
    xs = tensors[starts : starts + slices]
    parts = [tuple(_known(node, n) for n in _shape(t)[1:]) for t in xs]
    rest = [tuple(_known(node, n) for n in _shape(t)) for t in tensors[starts + slices :]]
    heads = xs if prefix else tensors[:starts]
    given = [*heads, *xs, *tensors[starts + slices :]]
    return _run(
        importer,
        "sliced_step",
        {"length": _shape(xs[0])[0]},
        tensors,
        graph=graph,
        dtypes=tuple(_dtype(t) for t in given),
        shapes=(*(parts if prefix else whole), *parts, *rest),
        carries=carries,
        slices=slices,
        prefix=prefix,
        reverse=reverse,
    )


def _known(node: Any, extent: Any) -> int:
    number = tir.as_int(extent)
    if number is None:
        raise ScanError(
            f"from_exported: expected {node.target} with a constant number of states, got "
            f"{extent}; let time, batch, heads or channels be dynamic alone"
        )
    return number


def _arguments(node: Any, importer: Any) -> list[Any]:
    """The arguments of a node, with Relax's tensors in place of torch's nodes."""

    def resolved(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [resolved(part) for part in value]
        return importer.env[value] if hasattr(value, "op") else value

    return [resolved(value) for value in node.args]


#: Converters by the name of the overload; the modules of the operators need not be imported.
SCAN_CONVERTERS: dict[str, Callable[[Any, Any], Any]] = {
    "affine_scan.default": _affine,
    "cumulative.default": _cumulative,
    "log_sum_exp.default": _log_sum_exp,
    "outer_scan.default": _outer,
    "positions.default": _positions,
    "scan_slices.default": _slices,
    "selective_scan_grouped.default": _selective,
    "step_scan.default": _step,
}
