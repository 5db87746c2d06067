"""Blocks of neighbouring lanes that a core advances together: vectors, tiles, or in turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tvm import tirx
from tvm.ir import Var
from tvm.tirx import ForKind

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.branches import branches, choices_as_selects, readable
from tvm_scan.schedules.common.invariants import hold_invariants
from tvm_scan.schedules.common.ir import as_dtype, cell_count, int_const, loop, when
from tvm_scan.schedules.common.lanes import clear, guard_of
from tvm_scan.schedules.common.polynomials import Pool
from tvm_scan.schedules.common.replica import Replica
from tvm_scan.schedules.cpu.chains import interleaved_chains
from tvm_scan.schedules.cpu.cost.parts import takes_rows_in_vectors
from tvm_scan.schedules.cpu.cost.step import step_of
from tvm_scan.schedules.cpu.lane_streams import asked_inside, loads_across_lanes
from tvm_scan.schedules.cpu.lane_tiles import LaneTiles
from tvm_scan.schedules.cpu.line_stores import HeldStores, flush, hold_stores
from tvm_scan.schedules.cpu.plans import VECTOR, CpuPlan, lane_vectors
from tvm_scan.schedules.cpu.strip_sums import StripSums
from tvm_scan.schedules.cpu.vector_math import hoist_first_iteration, with_vector_math
from tvm_scan.schedules.machine.terms import apart

#: Vectors of a block in tiles that are written out.
_WRITTEN_OUT = 4


@dataclass(frozen=True, eq=False)
class LaneBlock:
    """Work of a task on the lanes of a block.

    Attributes
    ----------
    body : Stmt
        All of it.
    registers : list of Var
        Its buffers.
    arrays : list of Var
        Those of them that hold more than a vector.
    stored : list of str
        Dtypes of the buffers that are stored past the caches.
    """

    body: Any
    registers: list[Var]
    arrays: list[Var]
    stored: list[str]

    @classmethod
    def in_turn(cls, blocks: Sequence[LaneBlock]) -> LaneBlock:
        """Blocks one after another."""
        return cls._of(tir.seq([block.body for block in blocks]), blocks)

    @classmethod
    def either(cls, condition: Any, block: LaneBlock, other: LaneBlock) -> LaneBlock:
        """A block where a condition holds, else the other."""
        return cls._of(tirx.IfThenElse(condition, block.body, other.body), [block, other])

    @classmethod
    def _of(cls, body: Any, blocks: Sequence[LaneBlock]) -> LaneBlock:
        return cls(
            body,
            [b for block in blocks for b in block.registers],
            [b for block in blocks for b in block.arrays],
            [d for block in blocks for d in block.stored],
        )


def lane_block(
    recurrence: Recurrence, width: int, plan: CpuPlan, lanes: Sequence[Any], count: Any = None
) -> LaneBlock:
    """All steps of ``width`` neighbouring lanes.

    Parameters
    ----------
    recurrence : Recurrence
        What runs.
    width : int
        Lanes, any number; where `count` is given, the most that there are.
    plan : CpuPlan
        How they advance.
    lanes : sequence of Expr
        The first of them.
    count : Expr, optional
        How many there are, where only the run tells.

    Returns
    -------
    LaneBlock
        Of as many lanes; of none, where there are none.
    """
    time, of_step = recurrence.time, step_of(recurrence)
    # Chains of polynomials, and sums over states, hide one another in longer vectors.
    is_short = not of_step.is_long
    dtype = tir.dtype_of(lanes[-1]) if lanes else tir.dtype_of(time.var)
    fill = None
    if width > 1 and plan.vectorize:
        known = hold_invariants(recurrence, fold=not plan.library_math)
        recurrence, fill = known.recurrence, known.fill
    always = readable(recurrence) if width > 1 and plan.vectorize else []
    tiles = None
    if plan.transpose and width % 16 == 0 and count is None:
        tiles = LaneTiles(recurrence, width, nontemporal=plan.nontemporal, prefetch=plan.prefetch)
        recurrence = tiles.recurrence
    held = HeldStores(recurrence, ())
    if plan.nontemporal and tiles is None and recurrence.lanes and count is None:
        held = hold_stores(recurrence, recurrence.lanes[-1].var, width)
        recurrence = held.recurrence
    replica = Replica(recurrence, lanes, unroll=False, width=width)

    together = tiles.together if tiles and is_short else VECTOR
    probe = tirx.Var("u", dtype)
    parts: list[tuple[Any, int]] = [*lane_vectors(of_step, width, together)]
    if count is not None:
        # Whole vectors, and the others one by one.
        whole, left = count // VECTOR, count % VECTOR
        parts = [(whole, VECTOR), (left, 1)] if width > VECTOR else [(count, 1)]
    vectors = [_Vectors(*part) for part in parts]

    def across(make: Any) -> Any:
        """``make`` for each lane of the block."""
        if width == 1:
            return make(None)
        if not plan.vectorize:
            kind = ForKind.UNROLLED if count is None else ForKind.SERIAL
            return loop("u", width if count is None else count, make, kind, dtype)

        def code(u: Any) -> Any:
            known = [*replica.buffers, *(tiles.buffers if tiles else []), *always]
            return choices_as_selects(hoist_first_iteration(make(u)), known)

        of_lanes = ForKind.SERIAL if branches(code(probe)) else ForKind.VECTORIZED

        def vector(u: Any, lane: Any, of: _Vectors) -> Any:
            stmt = code(u)
            if width > of.size and of_lanes == ForKind.VECTORIZED:
                stmt = of.sums(stmt, lane)
            if plan.library_math:
                return stmt
            return with_vector_math(stmt, of.pool, lane, ldexp=plan.ldexp)

        def strip(of: _Vectors, first: Any, w: Any) -> Any:
            begin = w * int_const(of.size, dtype) + as_dtype(first, dtype)
            kind = of_lanes if of.size > 1 else ForKind.SERIAL
            return loop("u", of.size, lambda u: vector(begin + u, u, of), kind, dtype)

        # A wide block is a strip of memory rows: many vectors per step, carries in L1. Of tiles'
        # few vectors LLVM has to know the lanes, or it takes the address of every cell that is read
        # by itself out of a vector: clamped sums of rows of 14 steps in tiles of 32 took 2.9 cycles
        # a cell on a Zen 4, and 1.8 with the vectors written out.
        few = tiles is not None and width <= _WRITTEN_OUT * together
        kind = ForKind.UNROLLED if few else ForKind.SERIAL
        stmts: list[Any] = []
        first: Any = 0
        for of in vectors:
            many = of.size == together or count is not None
            each = kind if many else ForKind.UNROLLED
            stmts.append(loop("w", of.count, partial(strip, of, first), each, dtype))
            first = first + of.count * of.size
        return tir.seq(stmts)

    stmts = [across(replica.begin)]
    if fill is not None:
        stmts.insert(0, across(lambda u: replica.instantiate(fill, u)))
    if recurrence.boundary is not None:
        stmts.append(across(replica.boundary))
    if tiles is not None:
        stmts.append(tiles.serial_scan(replica, across))
    elif width > 1 and not plan.vectorize:
        stmts.append(interleaved_chains(time.extent, across, lambda u, t: replica.step(t, u)))
    else:

        def step(t: Any) -> Any:
            stored = flush(
                held,
                replica,
                width,
                lambda index, u: replica.instantiate(index, as_dtype(u, dtype), t),
            )
            ahead = plan.prefetch if count is None else 0
            asked = _asked(recurrence, replica, width, t, ahead, dtype)
            return tir.seq([*asked, across(lambda u: replica.step(t, u)), stored])

        stmts.append(loop("t", time.extent, step))
    if recurrence.finish is not None:
        stmts.append(across(replica.finish))
    values = [b for of in vectors for b in (*of.pool.buffers, *of.sums.buffers)]
    registers = [*replica.buffers, *values, *(tiles.buffers if tiles else [])]
    if width > 1:
        # Without a use outside the vector loop TVM would move the registers into it and shrink
        # them to one cell.
        stmts.insert(0, clear([*replica.buffers, *values]))
    body = when(guard_of(recurrence, lanes), tir.seq(stmts))
    if not (plan.vectorize or takes_rows_in_vectors(of_step)):
        body = apart(body)  # the compiler leaves it apart from the next one
    arrays = _arrays(replica, tiles, width)
    return LaneBlock(body, registers, arrays, tiles.stored if tiles else held.dtypes)


class _Vectors:
    """Some vectors of as many lanes, and the registers of one of them."""

    def __init__(self, count: Any, size: int) -> None:
        self.count, self.size = count, size
        self.pool, self.sums = Pool(size), StripSums(size)


def _asked(
    recurrence: Recurrence, replica: Replica, width: int, t: Any, ahead: int, dtype: str
) -> list[Any]:
    """Ask for the lines of a strip so many steps ahead, each a row from the last one's."""
    if width == 1 or not ahead:
        return []
    out = []
    time = tirx.Min(t + int_const(ahead, t), recurrence.time.extent - int_const(1, t))
    for load in loads_across_lanes(recurrence):
        line = tir.LINE_BYTES // tir.byte_size(tir.dtype_of(load.source))
        row = tir.as_int(tir.shape_of(load.source)[-1])
        # Of rows that begin within a line, a strip ends in one more, which none has read before.
        ends = [] if row is not None and row % line == 0 else [width - 1]
        for lane in (*range(0, width, line), *ends):
            number = int_const(lane, dtype)
            at = [replica.instantiate(i, number, time) for i in load.indices]
            out.append(asked_inside(load.source, at))
    return out


def _arrays(replica: Replica, tiles: LaneTiles | None, width: int) -> list[Var]:
    """Buffers of a block of lanes that hold more than one vector."""
    if width == 1:
        return []
    apart = tir.VarMap((b, True) for b in (tiles.slots(replica) if tiles else []))
    wide = [b for b in replica.buffers if cell_count(b) > VECTOR and b not in apart]
    return [*wide, *(shared.tile for shared in (tiles.shared if tiles else []))]
