"""Whole cache lines written past the caches.

An ordinary store first reads the line that it changes; where the output is larger than the
caches, that is half of what the memory moves. A non-temporal store of a whole line is not
preceded by a read. TVM has no such store, so that it comes as a few lines of LLVM IR, which test
the address: a line that is not aligned is stored the ordinary way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import tirx
from tvm.ir import Var
from tvm.tirx import ForKind

from tvm_scan import tir
from tvm_scan.extraction.nest import linear_in
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.invariants import register_of
from tvm_scan.schedules.common.ir import int_const, local, loop, with_llvm
from tvm_scan.schedules.common.replica import Replica

#: No bfloat16: TVM keeps it in registers as float32, and narrows it only in its own stores.
_LLVM_TYPES = {
    "float32": "float",
    "float64": "double",
    "int32": "i32",
    "int64": "i64",
    "uint32": "i32",
    "uint64": "i64",
    "float16": "half",
}

#: Lines that are written out one after another.
_FEW = 4

_STORE = """
define i32 @tvm_scan_store_{dtype}(ptr %p, <{lanes} x {type}> %v) {{
  %address = ptrtoint ptr %p to i64
  %low = and i64 %address, 63
  %aligned = icmp eq i64 %low, 0
  br i1 %aligned, label %past, label %through
past:
  store <{lanes} x {type}> %v, ptr %p, align 64, !nontemporal !0
  ret i32 0
through:
  store <{lanes} x {type}> %v, ptr %p, align {bytes}
  ret i32 0
}}
"""
_FENCE = """
define i32 @tvm_scan_fence() {
  call void asm sideeffect "sfence", "~{memory}"()
  ret i32 0
}
!0 = !{i32 1}
"""


def line_cells(dtype: str) -> int:
    """Cells of a line; 0 for a dtype that no line store takes."""
    return tir.LINE_BYTES // tir.byte_size(dtype) if dtype in _LLVM_TYPES else 0


def line_store(buffer: Var, indices: Sequence[Any], value: Any) -> Any:
    """Statement that stores a vector of one line from ``buffer[indices]`` on."""
    address = tirx.address_of(tirx.BufferLoad(buffer, list(indices)))
    name = f"tvm_scan_store_{tir.dtype_of(buffer)}"
    return tirx.Evaluate(tirx.call_extern("int32", name, address, value))


def with_line_stores(nest: Any, dtypes: Sequence[str]) -> Any:
    """A loop with the LLVM functions of its line stores, after which other threads see the lines.

    A fence waits until memory has what was stored past the caches, some 150 ns: every thread makes
    one after all of its iterations.

    Parameters
    ----------
    nest : Stmt
        A loop over tasks.
    dtypes : sequence of str
        Of the buffers that tasks store to by lines; without any, the loop stays as it is.
    """
    if not dtypes:
        return nest
    stmt = tir.seq([nest, tirx.Evaluate(tirx.call_extern("int32", "tvm_scan_fence"))])
    # TVM removes a loop over one task, and then finds no threads.
    loops = isinstance(nest, tirx.For) and tir.as_int(nest.extent) != 1
    if loops and nest.kind == ForKind.PARALLEL:
        number = tirx.IntImm("int32", 0)
        stmt = tirx.AttrStmt(number, "pragma_parallel_launch_point", number, stmt)
    return with_llvm(stmt, line_store_ir(dtypes))


def line_store_ir(dtypes: Sequence[str]) -> str:
    """LLVM IR of the functions that line stores of these dtypes call."""
    parts = [
        _STORE.format(dtype=d, type=_LLVM_TYPES[d], lanes=line_cells(d), bytes=tir.byte_size(d))
        for d in sorted(set(dtypes))
    ]
    return "".join(parts) + _FENCE


def output_stores(recurrence: Recurrence) -> list[tirx.BufferStore]:
    """Stores of every step, outside of conditions and loops, to outputs that no step reads."""
    written = tir.VarMap((b, True) for b in recurrence.outputs)
    return [store for store in lone_stores(recurrence.body) if store.buffer in written]


def lone_stores(code: Any) -> list[tirx.BufferStore]:
    """Stores outside of conditions and loops to buffers that the code does not use otherwise."""
    read = tir.buffers_loaded(code)
    every = tir.nodes(code, tirx.BufferStore)
    return [
        store
        for store in tir.nodes(code, tirx.BufferStore, outside=(tirx.IfThenElse, tirx.For))
        if store.buffer not in read
        and sum(store.buffer.same_as(other.buffer) for other in every) == 1
    ]


@dataclass(frozen=True, eq=False)
class HeldStores:
    """A recurrence that keeps in registers what it would store, and the stores.

    Attributes
    ----------
    recurrence : Recurrence
        With the registers among its own.
    stores : tuple of (Var, BufferStore)
        Register of one cell, and the store that it stands for.
    """

    recurrence: Recurrence
    stores: tuple[tuple[Var, tirx.BufferStore], ...]

    @property
    def dtypes(self) -> list[str]:
        """Dtypes of the buffers."""
        return [tir.dtype_of(store.buffer) for _, store in self.stores]


def takes_line_stores(recurrence: Recurrence, along: Var) -> bool:
    """Return whether some stores of a step follow one another in memory along a variable."""
    return any(_follows(store, along) for store in output_stores(recurrence))


def hold_stores(recurrence: Recurrence, along: Var, width: int) -> HeldStores:
    """Take the stores out of a step that follow one another in memory along a variable.

    Parameters
    ----------
    recurrence : Recurrence
        Whose step.
    along : Var
        The time variable, or the last lane's.
    width : int
        Neighbours that are stored together.

    Returns
    -------
    HeldStores
        Without stores where none follow one another.
    """
    stores = [
        s
        for s in output_stores(recurrence)
        if _follows(s, along) and width >= line_cells(_dtype(s))
    ]
    if not stores:
        return HeldStores(recurrence, ())
    cells = tir.VarMap((s.buffer, local(f"out{i}", [1], _dtype(s))) for i, s in enumerate(stores))
    zero = tirx.IntImm("int32", 0)

    def moved(buffer: Var, _: list[Any]) -> tuple[Var, list[Any]] | None:
        return (cells[buffer], [zero]) if buffer in cells else None

    registers = (*recurrence.registers, *(register_of(cell) for _, cell in cells.items()))
    body = tir.map_accesses(recurrence.body, moved)
    held = replace(recurrence, body=body, registers=registers)
    return HeldStores(held, tuple((cells[s.buffer], s) for s in stores))


def _follows(store: tirx.BufferStore, along: Var) -> bool:
    last = linear_in(store.indices[-1], along)
    others = tir.contains_var(list(store.indices[:-1]), [along])
    return last is not None and last[0] == 1 and not others and line_cells(_dtype(store)) > 0


def _dtype(store: tirx.BufferStore) -> str:
    return tir.dtype_of(store.buffer)


def flush(held: HeldStores, replica: Replica, width: int, index_at: Any) -> Any:
    """Statement that stores the held cells of ``width`` neighbours, a line at a time.

    What is left beside whole lines is a shorter vector.

    Parameters
    ----------
    held : HeldStores
        What was taken out.
    replica : Replica
        Of its recurrence, ``width`` wide.
    width : int
        Neighbours.
    index_at : callable
        ``index_at(index, first)`` is an index of a store for neighbour ``first``.
    """
    zero = tirx.IntImm("int32", 0)

    def lines(cell: Var, store: tirx.BufferStore) -> Any:
        count = line_cells(_dtype(store))

        def line(k: Any) -> Any:
            first = k * count
            value = tirx.BufferLoad(replica.register(cell), [zero, tirx.Ramp(first, 1, count)])
            return line_store(store.buffer, [index_at(i, first) for i in store.indices], value)

        def left() -> Any:
            here = [index_at(i, int_const(width - rest, dtype)) for i in store.indices]
            at = tirx.IntImm("int32", width - rest)
            if rest > 1:
                at, here[-1] = tirx.Ramp(at, 1, rest), tirx.Ramp(here[-1], 1, rest)
            value = tirx.BufferLoad(replica.register(cell), [zero, at])
            return tirx.BufferStore(store.buffer, value, here)

        whole, rest = divmod(width, count)
        dtype = tir.dtype_of(held.recurrence.time.var)
        # A few lines are vectors in registers; many are an array.
        kind = ForKind.UNROLLED if whole <= _FEW else ForKind.SERIAL
        stored = loop("k", whole, line, kind, dtype)
        return tir.seq([stored, left()]) if rest else stored

    return tir.seq([lines(cell, store) for cell, store in held.stores])
