"""Constructors for the few TensorIR shapes that the builders use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import tirx
from tvm.ir import Range, StringImm, Var
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import ForKind, IterVar

from tvm_scan import tir


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
    """``for name in range(extent): body(name)``; of constant extent 0 or 1, no loop is left."""
    if isinstance(extent, int):
        extent = tirx.IntImm(dtype, extent)
    if tir.as_int(extent) == 0 and kind == ForKind.SERIAL:
        return tir.seq([])
    if tir.as_int(extent) == 1 and kind in (ForKind.SERIAL, ForKind.UNROLLED):
        return body(tir.zero_like(extent))
    if kind == ForKind.SERIAL and (tir.as_int(extent) or 0) > _LONGEST:
        return _in_runs(name, extent, body)
    var = tirx.Var(name, tir.dtype_of(extent))
    return tirx.For(var, tir.zero_like(var), extent, kind, body(var))


#: Longest loop of constant extent. TVM's pass that unrolls short loops counts their statements in
#: 32 bits; where that overflows it unrolls the loop, and memory is gone.
_LONGEST = 1 << 24


def _in_runs(name: str, extent: Any, body: Callable[[Var], Any]) -> Any:
    """A very long loop as one over runs, the last of which may be shorter."""
    length = int_const(_LONGEST, extent)
    runs = int_const(-(-int(extent) // _LONGEST), extent)
    run, var = tirx.Var(f"{name}_run", tir.dtype_of(extent)), tirx.Var(name, tir.dtype_of(extent))
    first = run * length
    part = tirx.Min(length, extent - first)
    inner = tirx.For(var, tir.zero_like(var), part, ForKind.SERIAL, body(first + var))
    return tirx.For(run, tir.zero_like(run), runs, ForKind.SERIAL, inner)


def in_vectors(extent: int, width: int, make: Callable[[Any], Any], dtype: str) -> Any:
    """``make(i)`` for ``extent`` neighbours, in vectors of ``width`` one after another."""

    def vector(m: Any) -> Any:
        if width == 1:
            return make(m)
        return loop("u", width, lambda u: make(m * width + u), ForKind.VECTORIZED, dtype)

    return loop("m", extent // width, vector, ForKind.UNROLLED, dtype)


def bound_loop(name: str, thread: str, extent: Any, body: Callable[[Var], Any]) -> Any:
    """Loop bound to a CUDA thread axis."""
    var = tirx.Var(name, tir.dtype_of(extent))
    # Without a range, as sch.bind makes it: the loop has the extent.
    axis = IterVar(None, tirx.Var(thread, tir.dtype_of(extent)), IterVar.ThreadIndex, thread)
    zero = tir.zero_like(var)
    return tirx.For(var, zero, extent, ForKind.THREAD_BINDING, body(var), axis)


def each(extents: Sequence[int], make: Callable[[list[Any]], Any], unroll: bool) -> Any:
    """``make(index)`` for every cell of a box of constant extents."""
    kind = ForKind.UNROLLED if unroll else ForKind.SERIAL

    def nest(dims: Sequence[int], index: list[Any]) -> Any:
        if not dims:
            return make(index)
        return loop("s", int(dims[0]), lambda v: nest(dims[1:], [*index, v]), kind)

    return nest(list(extents), [])


def when(cond: Any, stmt: Any) -> Any:
    """``if cond: stmt``; the condition may be None or constant true."""
    if cond is None or tir.is_true(cond) or tir.is_empty(stmt):
        return stmt
    return tirx.IfThenElse(cond, stmt, None)


def local(name: str, shape: Sequence[Any], dtype: str, scope: str = "local") -> Var:
    """A buffer of a block, of one cell at least: its indices are never empty."""
    return like_register(name, [*shape] or [1], dtype, scope)


def like_register(name: str, shape: Sequence[Any], dtype: str, scope: str = "local") -> Var:
    """A buffer of a block that stands for a register: where that has no axes, it has no indices."""
    # As the parser declares them: s_tir knows no layouts.
    return tirx.decl_buffer([*shape], dtype, name, scope=scope, layout=None)


class Registers:
    """Integers that a block computes once, at its beginning, of a length known at run time.

    TVM's passes ask of every access and of every condition which numbers it may take, and put what
    a border is computed of into each: of a lane cut into chunks, quotients within choices, again
    and again. Of a number that is read from a register they ask nothing.

    Parameters
    ----------
    length : Expr
        A number, and every value stays as it is.

    Attributes
    ----------
    buffers : list of Var
        The registers, to allocate.
    stores : list of Stmt
        What sets them.
    """

    def __init__(self, length: Any) -> None:
        self.buffers: list[Var] = []
        self.stores: list[Any] = []
        self._known = tir.as_int(length) is not None

    def hold(self, name: str, value: Any) -> Any:
        """``value``, read from a register where it depends on a length known at run time."""
        if self._known or tir.as_int(value) is not None:
            return value
        register, zero = local(name, [1], tir.dtype_of(value)), int_const(0, "int32")
        self.buffers.append(register)
        self.stores.append(tirx.BufferStore(register, value, [zero]))
        return tirx.BufferLoad(register, [zero])


def cell_count(buffer: Var) -> int:
    """Number of cells of a buffer of constant extents."""
    return prod(int(extent) for extent in tir.shape_of(buffer))


def whole(buffer: Var) -> Any:
    """Region that is all of a buffer."""
    return tirx.BufferRegion(
        buffer, [Range.from_min_extent(tir.zero_like(e), e) for e in tir.shape_of(buffer)]
    )


def for_one_block(stmt: Any) -> Any:
    """Let a kernel have the registers that it needs: one block on a multiprocessor is enough.

    Left alone, ptxas gives some away for another block on the multiprocessor, and keeps what it
    does not need at the moment in local memory. This is the second number of
    ``__launch_bounds__``.
    """
    key = "tirx.launch_bounds_min_blocks_per_sm"
    return tirx.AttrStmt("default", key, int_const(1, "int32"), stmt)


@dataclass(frozen=True, eq=False)
class Kernel:
    """Code of one block: what no stock primitive is to look into.

    Attributes
    ----------
    name : str
        Name of the block.
    reads, writes : sequence of Var
        Buffers, declared in whole: the block is one lane or one tile of a recurrence, and its
        exact region is the plan's business.
    body : Stmt
        The code.
    allocs : sequence of Var
        Buffers of the block.
    """

    name: str
    reads: Sequence[Var]
    writes: Sequence[Var]
    body: Any
    allocs: Sequence[Var]

    def block(self, axes: Sequence[tuple[Var, Any, Any]]) -> Any:
        """All-spatial block over ``axes``: (block variable, extent, bound value) each.

        Shared memory is read before and after the code, so that TVM lends none of it to two
        buffers in succession: the barriers between them cost more than the memory, and the
        builders hide accesses from the pass that would put them there (``barriers``). Reads
        whose value nobody wants go between the pass that lends memory and the one that puts
        barriers in.
        """
        names = [
            tirx.Evaluate(tirx.BufferLoad(b, [tir.zero_like(e) for e in tir.shape_of(b)]))
            for b in self.allocs
            if str(b.scope()) == "shared" and tir.contains_var(self.body, [b])
        ]
        iters = [
            IterVar(Range.from_min_extent(tir.zero_like(var), extent), var, IterVar.DataPar)
            for var, extent, _ in axes
        ]
        written = tir.VarMap((b, True) for b in self.writes)
        block = SBlock(
            iters,
            [whole(b) for b in self.reads if b not in written],
            [whole(b) for b in self.writes],
            self.name,
            tir.seq([*names, self.body, *names]) if names else self.body,
            None,
            list(self.allocs),
        )
        return SBlockRealize([value for _, _, value in axes], True, block)


def threads_over(kernel: Callable[[Any], Kernel], row: Var, total: Any, threads: int) -> Any:
    """One CUDA thread per row: ``kernel(inside)`` guards its code by the condition ``inside``.

    The grid has at least one block, because CUDA refuses an empty one.
    """
    count = int_const(threads, total)
    blocks = at_least_one(parts_of(total, threads))
    launched = kernel(row < total)
    axis = (row, blocks * count)
    return bound_loop(
        "bx",
        "blockIdx.x",
        blocks,
        lambda bx: bound_loop(
            "tx", "threadIdx.x", count, lambda tx: launched.block([(*axis, bx * count + tx)])
        ),
    )


def chunks_over(
    kernel: Callable[[Any], Kernel], row: Var, total: Any, chunk: Var, chunks: int, threads: int
) -> Any:
    """``threads_over`` for each of ``chunks`` chunks; all threads of a block have the same one."""
    count = int_const(threads, total)
    of_chunk = at_least_one(parts_of(total, threads))
    blocks = tir.simplify(of_chunk * chunks)
    launched = kernel(row < total)

    def thread(bx: Any, tx: Any) -> Any:
        row_axis = (row, of_chunk * count, bx % of_chunk * count + tx)
        number = (chunk, int_const(chunks, chunk), as_dtype(bx // of_chunk, tir.dtype_of(chunk)))
        return launched.block([row_axis, number])

    return bound_loop(
        "bx",
        "blockIdx.x",
        blocks,
        lambda bx: bound_loop("tx", "threadIdx.x", count, lambda tx: thread(bx, tx)),
    )


def parts_of(extent: Any, size: int) -> Any:
    """Number of parts of that size which an extent has, the last of them not always whole."""
    return tir.simplify((extent + size - 1) // size)


def whole_parts(extent: Any, size: Any) -> tuple[Any, Any, Any]:
    """Number of parts of that size which an extent has whole, what is in them, and the rest."""
    parts = tir.simplify(extent // size)
    inside = tir.simplify(parts * size)
    return parts, inside, tir.simplify(extent - inside)


def at_least_one(extent: Any) -> Any:
    """``max(extent, 1)``, simplified where the extent is known."""
    known = tir.as_int(extent)
    if known is not None:
        return int_const(max(known, 1), extent)
    return tirx.Max(extent, int_const(1, extent))


def as_dtype(value: Any, dtype: str) -> Any:
    """Integer ``value`` in ``dtype``."""
    if isinstance(value, int):
        return int_const(value, dtype)
    return value if tir.dtype_of(value) == dtype else tirx.Cast(dtype, value)


def with_llvm(stmt: Any, code: str) -> Any:
    """Statement with LLVM IR of the functions that it calls."""
    number = tirx.IntImm("int32", 0)
    return tirx.AttrStmt(number, "pragma_import_llvm", StringImm(code), stmt)
