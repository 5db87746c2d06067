"""Constructors for the few TensorIR shapes that the builders use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.ir import Range, Var
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import ForKind, IterVar

from tvm_scan import tir

__all__ = ["bound_loop", "each", "int_const", "kernel_block", "local", "loop", "when"]


def int_const(value: int, like: Any) -> Any:
    """Integer constant of the dtype of ``like`` (an expression or a dtype)."""
    return tirx.IntImm(like if isinstance(like, str) else tir.dtype_of(like), value)


def loop(
    name: str,
    extent: Any,
    body: Callable[[Var], Any],
    kind: ForKind = ForKind.SERIAL,
    dtype: str = "int32",
) -> Any:
    """``for name in range(extent): body(name)``; a loop of constant extent 1 is left out."""
    if isinstance(extent, int):
        extent = tirx.IntImm(dtype, extent)
    if tir.as_int(extent) == 1 and kind in (ForKind.SERIAL, ForKind.UNROLLED):
        return body(tirx.IntImm(dtype, 0))
    var = tirx.Var(name, tir.dtype_of(extent))
    return tirx.For(var, tir.zero_like(var), extent, kind, body(var))


def bound_loop(name: str, thread: str, extent: Any, body: Callable[[Var], Any]) -> Any:
    """Loop bound to a CUDA thread axis."""
    var = tirx.Var(name, tir.dtype_of(extent))
    axis = IterVar(
        Range.from_min_extent(tir.zero_like(var), extent),
        tirx.Var(thread, tir.dtype_of(extent)),
        IterVar.ThreadIndex,
        thread,
    )
    zero = tir.zero_like(var)
    return tirx.For(var, zero, extent, ForKind.THREAD_BINDING, body(var), axis)


def each(extents: Sequence[int], make: Callable[[list[Any]], Any], unroll: bool) -> Any:
    """``make(place)`` for every place of a box of constant extents."""
    kind = ForKind.UNROLLED if unroll else ForKind.SERIAL

    def nest(dims: Sequence[int], place: list[Any]) -> Any:
        if not dims:
            return make(place)
        return loop("s", int(dims[0]), lambda v: nest(dims[1:], [*place, v]), kind)

    return nest(list(extents), [])


def when(cond: Any, stmt: Any) -> Any:
    """``if cond: stmt``; the condition may be None or constant true."""
    if cond is None or tir.is_true(cond):
        return stmt
    return tirx.IfThenElse(cond, stmt, None)


def local(name: str, shape: Sequence[Any], dtype: str, scope: str = "local") -> Var:
    """A buffer of a block."""
    return tirx.decl_buffer([*shape] or [1], dtype, name, scope=scope)


def whole(buffer: Var) -> Any:
    """Region that is all of a buffer."""
    return tirx.BufferRegion(
        buffer, [Range.from_min_extent(tir.zero_like(e), e) for e in tir.shape_of(buffer)]
    )


def kernel_block(
    name: str,
    axes: Sequence[tuple[Var, Any, Any]],
    reads: Sequence[Var],
    writes: Sequence[Var],
    body: Any,
    allocs: Sequence[Var],
    annotations: dict[str, Any],
) -> Any:
    """An all-spatial block around code that no stock primitive is to look into.

    ``axes`` are (block variable, extent, bound value). Reads and writes are whole buffers: the
    block is one lane or one tile of a recurrence, and its exact region is the plan's business.
    """
    iters = [
        IterVar(Range.from_min_extent(tir.zero_like(var), extent), var, IterVar.DataPar)
        for var, extent, _ in axes
    ]
    written = tir.VarMap((b, True) for b in writes)
    block = SBlock(
        iters,
        [whole(b) for b in reads if b not in written],
        [whole(b) for b in writes],
        name,
        body,
        None,
        list(allocs),
        [],
        annotations,
    )
    return SBlockRealize([value for _, _, value in axes], True, block)
