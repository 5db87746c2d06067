"""CPU builder: lanes over cores.

Work and span, for R lanes of L steps on P cores: R L steps, span R L / P.
"""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import tirx
from tvm.ir import Var
from tvm.tirx import ForKind

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.branches import branches, choices_as_selects, readable
from tvm_scan.schedules.common.ends import first_steps
from tvm_scan.schedules.common.invariants import hold_invariants
from tvm_scan.schedules.common.ir import (
    Kernel,
    as_dtype,
    cell_count,
    int_const,
    loop,
    when,
)
from tvm_scan.schedules.common.lanes import clear, decode_lanes, guard_of, lane_count
from tvm_scan.schedules.common.polynomials import Pool
from tvm_scan.schedules.common.replica import Replica
from tvm_scan.schedules.common.result import Built
from tvm_scan.schedules.common.stack import on_lines, on_stack
from tvm_scan.schedules.cpu.chains import interleaved_chains
from tvm_scan.schedules.cpu.cost.parts import takes_rows_in_vectors
from tvm_scan.schedules.cpu.cost.step import step_of
from tvm_scan.schedules.cpu.lane_streams import asked_inside, loads_across_lanes
from tvm_scan.schedules.cpu.lane_tiles import LaneTiles
from tvm_scan.schedules.cpu.line_stores import HeldStores, flush, hold_stores, with_line_stores
from tvm_scan.schedules.cpu.plans import VECTOR, CpuPlan, block_sizes
from tvm_scan.schedules.cpu.strip_sums import StripSums
from tvm_scan.schedules.cpu.time_vector import TimeVector
from tvm_scan.schedules.cpu.vector_math import hoist_first_iteration, with_vector_math
from tvm_scan.schedules.machine.terms import apart

#: Vectors of a block in tiles that are written out.
_WRITTEN_OUT = 4


def build_lanes(recurrence: Recurrence, plan: CpuPlan) -> Built:
    """Every lane is a serial scan; blocks of lanes go to cores.

    A block of ``lane_block`` neighbouring lanes advances together: as cells of vectors where the
    lane axis is contiguous in memory, else interleaved, so that the latency of one lane's
    chain hides behind the others. Lanes beyond the last full block run one by one.
    """
    if plan.time_vector:
        return Built([_vector_nest(recurrence, plan)], [])
    nests = []
    # A guard may cut through a block of lanes: then every lane asks for itself.
    if recurrence.lanes and recurrence.guard is None and plan.lane_block > 1:
        lanes = recurrence.lanes[-1].extent
        others = [axis.extent for axis in recurrence.lanes[:-1]]
        outer = tir.simplify(prod(others, start=int_const(1, lanes)))
        # A constant remainder goes to narrower blocks.
        widths = [plan.lane_block, 1] if tir.as_int(lanes) is None else block_sizes(plan.lane_block)
        done = int_const(0, lanes)
        for size in widths:
            full = tir.simplify((lanes - done) // size)
            if tir.as_int(full) != 0:
                nests.append(_lane_nest(recurrence, size, plan, outer, full, done))
                done = tir.simplify(done + full * size)
    return Built(nests or [_lane_nest(recurrence, 1, plan, lane_count(recurrence))], [])


def _vector_nest(recurrence: Recurrence, plan: CpuPlan) -> Any:
    """One lane after another, each by vectors of steps."""
    rows = lane_count(recurrence)
    row = tirx.Var("v_row", tir.dtype_of(rows))
    lanes = decode_lanes(recurrence, row)
    if step_of(recurrence).backwards:
        # What a prefetcher brings from before a row that is read backwards is then the next row: of
        # 35,000 rows of 229 cells a core of a Zen 4 takes 27 GB/s so, and 8 in rising order. TVM
        # 0.27 takes (5 - n) // 6 for n // -6, which it is not: nothing is divided from behind.
        lanes = [
            as_dtype(axis.extent, tir.dtype_of(lane)) - 1 - lane
            for lane, axis in zip(lanes, recurrence.lanes, strict=True)
        ]
    vectors = TimeVector(recurrence, lanes, plan)
    single = vectors.single
    extent = recurrence.time.extent
    # No vector shares the elements of the first steps.
    start = tir.simplify(tirx.Min(int_const(first_steps(recurrence), extent), extent))
    head = loop("i", start, single.step)
    steps = vectors.scan(start, tir.simplify(extent - start))
    stmts = [vectors.begin(), single.begin(), single.boundary(), head, steps, single.finish()]
    body = when(guard_of(recurrence, lanes), tir.seq(stmts))
    body = _apart(body, recurrence)
    kernel = Kernel("scan_lanes", recurrence.inputs, recurrence.outputs, body, vectors.buffers)
    # A single lane needs no pool, whose start costs more than a thousand steps.
    kind = ForKind.SERIAL if tir.as_int(rows) == 1 else ForKind.PARALLEL
    kernel = on_lines(on_stack(kernel), rows)
    nest = loop("row", rows, lambda r: kernel.block([(row, rows, r)]), kind)
    return with_line_stores(nest, vectors.held.dtypes)


def _apart(row: Any, recurrence: Recurrence) -> Any:
    """The statement of a row, which the compiler leaves apart from the next one."""
    return row if takes_rows_in_vectors(step_of(recurrence)) else apart(row)


def _lane_nest(
    recurrence: Recurrence,
    width: int,
    plan: CpuPlan,
    outer: Any,
    inner: Any = None,
    offset: Any = None,
) -> Any:
    time, of_step = recurrence.time, step_of(recurrence)
    # Chains of polynomials, and sums over states, hide one another in longer vectors.
    is_short = not of_step.is_long
    rows = outer if inner is None else tir.simplify(outer * inner)
    dtype = tir.dtype_of(rows)
    row = tirx.Var("v_row", dtype)
    if inner is None:
        lanes = decode_lanes(recurrence, row)
    else:
        last = tir.simplify((row % inner) * width) + offset
        number = (row // inner) * recurrence.lanes[-1].extent
        lanes = [*decode_lanes(recurrence, number)[:-1], last]
    fill = None
    if width > 1 and plan.vectorize:
        known = hold_invariants(recurrence, fold=not plan.library_math)
        recurrence, fill = known.recurrence, known.fill
    always = readable(recurrence) if width > 1 and plan.vectorize else []
    tiles = None
    if plan.transpose and width % 16 == 0:
        tiles = LaneTiles(recurrence, width, nontemporal=plan.nontemporal, prefetch=plan.prefetch)
        recurrence = tiles.recurrence
    held = HeldStores(recurrence, ())
    if plan.nontemporal and tiles is None and recurrence.lanes:
        held = hold_stores(recurrence, recurrence.lanes[-1].var, width)
        recurrence = held.recurrence
    replica = Replica(recurrence, lanes, unroll=False, width=width)

    together = min(width, tiles.together if tiles and is_short else VECTOR)
    probe, pool = tirx.Var("u", dtype), Pool(together)
    sums = StripSums(together)

    def across(make: Any) -> Any:
        """``make`` for each lane of the block."""
        if width == 1:
            return make(None)
        if not plan.vectorize:
            return loop("u", width, make, ForKind.UNROLLED, dtype)

        def code(u: Any) -> Any:
            known = [*replica.buffers, *(tiles.buffers if tiles else []), *always]
            return choices_as_selects(hoist_first_iteration(make(u)), known)

        of_lanes = ForKind.SERIAL if branches(code(probe)) else ForKind.VECTORIZED

        def vector(u: Any, lane: Any) -> Any:
            stmt = code(u)
            if width > together and of_lanes == ForKind.VECTORIZED:
                stmt = sums(stmt, lane)
            if plan.library_math:
                return stmt
            return with_vector_math(stmt, pool, lane, ldexp=plan.ldexp)

        def strip(w: Any) -> Any:
            first = w * int_const(together, dtype)
            return loop("u", together, lambda u: vector(first + u, u), of_lanes, dtype)

        # A wide block is a strip of memory rows: many vectors per step, carries in L1. Of tiles'
        # few vectors LLVM has to know the lanes, or it takes the address of every cell that is read
        # by itself out of a vector: clamped sums of rows of 14 steps in tiles of 32 took 2.9 cycles
        # a cell on a Zen 4, and 1.8 with the vectors written out.
        few = tiles is not None and width <= _WRITTEN_OUT * together
        kind = ForKind.UNROLLED if few else ForKind.SERIAL
        return loop("w", width // together, strip, kind, dtype)

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
            asked = _asked(recurrence, replica, width, t, plan.prefetch, dtype)
            return tir.seq([*asked, across(lambda u: replica.step(t, u)), stored])

        stmts.append(loop("t", time.extent, step))
    if recurrence.finish is not None:
        stmts.append(across(replica.finish))
    values = [*pool.buffers, *sums.buffers]
    registers = [*replica.buffers, *values, *(tiles.buffers if tiles else [])]
    if width > 1:
        # Without a use outside the vector loop TVM would move the registers into it and shrink
        # them to one cell.
        stmts.insert(0, clear([*replica.buffers, *values]))
    body = when(guard_of(recurrence, lanes), tir.seq(stmts))
    if not plan.vectorize:
        body = _apart(body, recurrence)
    kernel = Kernel("scan_lanes", recurrence.inputs, recurrence.outputs, body, registers)
    kernel = on_stack(kernel, _arrays(replica, tiles, width) if plan.vectorize else ())
    if plan.vectorize:
        kernel = on_lines(kernel, rows)
    nest = loop("row", rows, lambda r: kernel.block([(row, rows, r)]), ForKind.PARALLEL)
    return with_line_stores(nest, tiles.stored if tiles else held.dtypes)


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
