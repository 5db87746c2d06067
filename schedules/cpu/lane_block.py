"""Blocks of neighbouring lanes that a core advances together: vectors, tiles, or in turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from tvm_scan.schedules.cpu.cost.short_rows import takes_rows_in_vectors
from tvm_scan.schedules.cpu.cost.step import Step, step_of
from tvm_scan.schedules.cpu.lane_streams import asked_inside, loads_across_lanes
from tvm_scan.schedules.cpu.lane_tiles import LaneTiles
from tvm_scan.schedules.cpu.line_stores import HeldStores, flush, hold_stores
from tvm_scan.schedules.cpu.plans import VECTOR, CpuPlan, lane_vectors, writes_out
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
    whole, time = recurrence, recurrence.time
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
    across = _Across(replica, plan, step_of(whole), dtype, always, tiles, count)

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

        fixed = count is None and tir.as_int(time.extent) is not None
        written_out = fixed and plan.vectorize and writes_out(step_of(whole), width)
        kind = ForKind.UNROLLED if written_out else ForKind.SERIAL
        stmts.append(loop("t", time.extent, step, kind))
    if recurrence.finish is not None:
        stmts.append(across(replica.finish))
    registers = [*replica.buffers, *across.values, *(tiles.buffers if tiles else [])]
    if width > 1:
        # Without a use outside the vector loop TVM would move the registers into it and shrink
        # them to one cell.
        stmts.insert(0, clear([*replica.buffers, *across.values]))
    body = when(guard_of(recurrence, lanes), tir.seq(stmts))
    if not plan.vectorize:
        body = left_apart(body, whole)
    arrays = _arrays(replica, tiles, width)
    return LaneBlock(body, registers, arrays, tiles.stored if tiles else held.dtypes)


def left_apart(row: Any, recurrence: Recurrence) -> Any:
    """The statement of a row, which the compiler leaves apart from the next one."""
    return row if takes_rows_in_vectors(step_of(recurrence)) else apart(row)


class _Vectors:
    """Some vectors of as many lanes, and the registers of one of them."""

    def __init__(self, count: Any, size: int) -> None:
        self.count, self.size = count, size
        self.pool, self.sums = Pool(size), StripSums(size)


class _Across:
    """Code for each lane of a block: in vectors, in turns, or for the only one.

    Parameters
    ----------
    replica : Replica
        The block's.
    plan : CpuPlan
        How lanes advance.
    step : Step
        What is counted of the recurrence.
    dtype : str
        Of the number of a lane.
    always : list of Var
        Buffers of which every cell may be read.
    tiles : LaneTiles, optional
        Where rows pass through tiles.
    count : Expr, optional
        Lanes that there are, where only the run tells.
    """

    def __init__(
        self,
        replica: Replica,
        plan: CpuPlan,
        step: Step,
        dtype: str,
        always: list[Var],
        tiles: LaneTiles | None,
        count: Any,
    ) -> None:
        self.plan, self.width, self.dtype, self.count = plan, replica.width, dtype, count
        self._known = [*replica.buffers, *(tiles.buffers if tiles else []), *always]
        # Chains of polynomials, and sums over states, hide one another in longer vectors.
        self._together = tiles.together if tiles and not step.is_long else VECTOR
        self._few = tiles is not None and self.width <= _WRITTEN_OUT * self._together
        parts: list[tuple[Any, int]]
        if count is None:
            parts = [*lane_vectors(step, self.width, self._together)]
        elif self.width > VECTOR:
            # Whole vectors, and the others one by one.
            parts = [(count // VECTOR, VECTOR), (count % VECTOR, 1)]
        else:
            parts = [(count, 1)]
        self._vectors = [_Vectors(*part) for part in parts]

    @property
    def values(self) -> list[Var]:
        """Return the registers of the vectors, once all code is made."""
        return [b for of in self._vectors for b in (*of.pool.buffers, *of.sums.buffers)]

    def __call__(self, make: Callable[[Any], Any]) -> Any:
        """``make(lane)`` for each lane of the block."""
        if self.width == 1:
            return make(None)
        if not self.plan.vectorize:
            kind = ForKind.UNROLLED if self.count is None else ForKind.SERIAL
            lanes = self.width if self.count is None else self.count
            return loop("u", lanes, make, kind, self.dtype)
        probe = tirx.Var("u", self.dtype)
        in_vectors = not branches(self._code(make, probe))
        stmts: list[Any] = []
        first: Any = 0
        for of in self._vectors:
            strip = partial(self._strip, make, in_vectors, of, first)
            stmts.append(loop("w", of.count, strip, self._kind(of), self.dtype))
            first = first + of.count * of.size
        return tir.seq(stmts)

    def _kind(self, of: _Vectors) -> ForKind:
        """Kind of the loop over some vectors.

        A wide block is a strip of memory rows: many vectors per step, carries in L1. Of tiles' few
        vectors LLVM has to know the lanes, or it takes the address of every cell that is read by
        itself out of a vector: clamped sums of rows of 14 steps in tiles of 32 took 2.9 cycles a
        cell on a Zen 4, and 1.8 with the vectors written out.
        """
        left = of.size != self._together and self.count is None
        return ForKind.UNROLLED if self._few or left else ForKind.SERIAL

    def _code(self, make: Callable[[Any], Any], lane: Any) -> Any:
        return choices_as_selects(hoist_first_iteration(make(lane)), self._known)

    def _strip(
        self, make: Callable[[Any], Any], in_vectors: bool, of: _Vectors, first: Any, w: Any
    ) -> Any:
        """One of some vectors that begin at a lane."""
        begin = w * int_const(of.size, self.dtype) + as_dtype(first, self.dtype)

        def cell(u: Any) -> Any:
            stmt = self._code(make, begin + u)
            if self.width > of.size and in_vectors:
                stmt = of.sums(stmt, u)
            if self.plan.library_math:
                return stmt
            return with_vector_math(stmt, of.pool, u, ldexp=self.plan.ldexp)

        kind = ForKind.VECTORIZED if in_vectors and of.size > 1 else ForKind.SERIAL
        return loop("u", of.size, cell, kind, self.dtype)


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
