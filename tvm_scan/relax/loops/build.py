"""One builder for the sequential loops that front ends need, and the call of such a loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm import relax, tirx
from tvm.ir import Var
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvm_scan import tir
from tvm_scan.annotations import OP_PATTERN, OPAQUE_PATTERN
from tvm_scan.errors import ScanError

__all__ = ["Shape", "Step", "build_loop", "call_loop", "constant_extent", "folded"]

#: ``(outer, length, inner)``; None is an extent that a call decides.
Shape = tuple[int | None, int | None, int | None]


class Step:
    """One step of a loop while it is written: reads inputs and states, sets states, emits.

    What is written is executed in that order, as in the loop itself.
    """

    def __init__(
        self, time: Any, place: list[Any], lane: list[Any], buffers: dict[str, Var]
    ) -> None:
        #: Number of the step, counted in the order of the walk.
        self.time = time
        self._place, self._lane, self._buffers = place, lane, buffers

    def read(self, name: str) -> Any:
        """Element of the input `name` at this step."""
        return self._buffers[name][tuple(self._place)]

    def get(self, name: str) -> Any:
        """State `name` as it is now."""
        return self._buffers[name][tuple(self._lane)]

    def set(self, name: str, value: Any) -> None:
        """Give the state `name` a new value."""
        T.buffer_store(self._buffers[name], value, self._lane)

    def emit(self, name: str, value: Any) -> None:
        """Write the output `name` at this step."""
        T.buffer_store(self._buffers[name], value, self._place)


def constant_extent(value: relax.Expr, axis: int, operator: str, what: str) -> int:
    """Extent of a tensor along an axis that a loop is written out for, and so must know.

    Raises
    ------
    ScanError
        If the extent is symbolic.
    """
    extent = value.ty.shape.values[axis]
    known = tir.as_int(extent)
    if known is None:
        raise ScanError(
            f"{operator}: expected a constant number of {what}, got {extent}; export the model "
            "without a dynamic dimension there"
        )
    return known


def folded(shape: Sequence[Any], axis: int) -> tuple[Any, Any, Any]:
    """Extents before, at and after an axis, each side folded into one extent.

    Memory stays as it is, so that folding costs nothing.
    """
    outer, inner = tirx.IntImm("int64", 1), tirx.IntImm("int64", 1)
    for extent in shape[:axis]:
        outer = outer * extent
    for extent in shape[axis + 1 :]:
        inner = inner * extent
    return outer, shape[axis], inner


def build_loop(
    name: str,
    shape: Shape,
    reads: Mapping[str, str],
    writes: Mapping[str, str],
    states: Mapping[str, Any],
    step: Callable[[Step], None],
    *,
    reverse: bool = False,
) -> tirx.PrimFunc:
    """Build a sequential loop along the middle axis of ``(outer, length, inner)``.

    Sides of extent 1 are left out of the arrays: what remains of ``(4, 100, 1)`` is ``(4, 100)``.

    Parameters
    ----------
    name : str
        Name of the block.
    shape : Shape
        Extents; None is one that a call decides.
    reads, writes : mapping of str to str
        Names and dtypes of the arrays that are read and written, all of the same shape.
    states : mapping of str to Expr
        Names and initial values of what each lane carries.
    step : callable
        Writes one step, given a `Step`.
    reverse : bool
        Walk from the last step to the first.

    Returns
    -------
    tirx.PrimFunc
        With the arrays of `reads` and then of `writes` as parameters; private, and opaque to
        fusion, since Relax would otherwise take it for an elementwise function.
    """
    names = ("outer", "length", "inner")
    extents = [
        tirx.Var(label, "int64") if n is None else tirx.IntImm("int64", n)
        for label, n in zip(names, shape, strict=True)
    ]
    length = extents[1]
    kept = [
        e for e, n in zip((extents[0], extents[2]), (shape[0], shape[2]), strict=True) if n != 1
    ]
    before = 0 if shape[0] == 1 else 1
    array = [*kept[:before], length, *kept[before:]]
    with IRBuilder() as builder, T.prim_func(is_private=True, s_tir=True):
        T.func_name(name)
        T.func_attr({"tirx.noalias": True, OP_PATTERN: OPAQUE_PATTERN})
        buffers = {key: T.arg(key, T.Buffer(array, dtype)) for key, dtype in reads.items()}
        buffers |= {key: T.arg(key, T.Buffer(array, dtype)) for key, dtype in writes.items()}
        for key, initial in states.items():
            buffers[key] = T.sblock_alloc_buffer(kept or [1], str(initial.ty.dtype))
            IRBuilder.name(key, buffers[key])
        with T.grid(*(kept or [1])) as loops, T.sblock("init"):
            pairs = zip(kept or [1], _several(loops), strict=True)
            lane = [T.axis.spatial(n, v) for n, v in pairs]
            T.reads([])
            T.writes([buffers[key][tuple(lane)] for key in states])
            for key, initial in states.items():
                T.buffer_store(buffers[key], initial, lane)
        with T.grid(*kept, length) as loops, T.sblock(name):
            *outside, inside = _several(loops)
            IRBuilder.name("t", inside)
            lane = [T.axis.spatial(n, v) for n, v in zip(kept, outside, strict=True)]
            time = T.axis.scan(length, inside)
            at = length - 1 - time if reverse else time
            place = [*lane[:before], at, *lane[before:]]
            lane = lane or [tirx.IntImm("int64", 0)]
            state = [buffers[key][tuple(lane)] for key in states]
            T.reads([buffers[key][tuple(place)] for key in reads] + state)
            T.writes([buffers[key][tuple(place)] for key in writes] + state)
            step(Step(time, place, lane, buffers))
    return builder.get()


def _several(loops: Any) -> list[Any]:
    return [loops] if isinstance(loops, Var) else list(loops)


def call_loop(
    builder: relax.BlockBuilder, loop: tirx.PrimFunc, args: Sequence[relax.Expr], name: str
) -> list[relax.Expr]:
    """Emit a call of a function whose parameters beyond `args` are its outputs.

    Parameters
    ----------
    builder : relax.BlockBuilder
        Where to emit.
    loop : tirx.PrimFunc
        Its symbolic extents follow from the inputs.
    args : sequence of relax.Expr
        The inputs.
    name : str
        Name of the function.

    Returns
    -------
    list of relax.Expr
        The outputs.

    Raises
    ------
    ValueError
        If the shape of an output does not follow from the inputs, or an input does not fit.
    """
    sizes = tir.VarMap()
    for arg, param in zip(args, loop.params, strict=False):
        extents, found = tir.shape_of(param), list(arg.ty.shape.values)
        if len(extents) != len(found) or str(arg.ty.dtype) != tir.dtype_of(param):
            raise ValueError(
                f"{name}: expected {param.name} as {tir.dtype_of(param)} of {len(extents)} "
                f"dimensions, got {arg.ty}; give the loop what it declares"
            )
        for extent, value in zip(extents, found, strict=True):
            if isinstance(extent, tirx.Var) and extent not in sizes:
                sizes[extent] = value
    types = []
    for param in loop.params[len(args) :]:
        shape = [tir.simplify(tir.substitute(extent, sizes)) for extent in tir.shape_of(param)]
        types.append(relax.TensorType(shape, tir.dtype_of(param)))
    function = builder.add_func(loop, name)
    call = builder.emit(relax.call_tir(function, list(args), types))
    if len(types) == 1:
        return [call]
    return [builder.emit(relax.TupleGetItem(call, i)) for i in range(len(types))]
