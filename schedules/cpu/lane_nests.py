"""CPU builder: lanes over cores.

Work and span, for R lanes of L steps on P cores: R L steps, span R L / P.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tvm import tirx
from tvm.tirx import ForKind

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.ends import first_steps
from tvm_scan.schedules.common.ir import Kernel, as_dtype, int_const, loop, when
from tvm_scan.schedules.common.lanes import decode_lanes, guard_of, lane_count
from tvm_scan.schedules.common.result import Built
from tvm_scan.schedules.common.stack import on_lines, on_stack
from tvm_scan.schedules.cpu.cost.step import step_of
from tvm_scan.schedules.cpu.lane_block import LaneBlock, lane_block, left_apart
from tvm_scan.schedules.cpu.line_stores import with_line_stores
from tvm_scan.schedules.cpu.plans import CpuPlan, rest_blocks
from tvm_scan.schedules.cpu.time_vector import TimeVector


def build_lanes(recurrence: Recurrence, plan: CpuPlan) -> Built:
    """Every lane is a serial scan; blocks of lanes go to cores.

    A block of ``lane_block`` neighbouring lanes advances together: as cells of vectors where the
    lane axis is contiguous in memory, else interleaved, so that the latency of one lane's
    chain hides behind the others. Lanes beyond the last full block are one task more of the same
    loop, its first one: the first core has most tasks.
    """
    if plan.time_vector:
        return Built([_vector_nest(recurrence, plan)], [])
    # A guard may cut through a block of lanes: then every lane asks for itself.
    alone = not recurrence.lanes or recurrence.guard is not None or plan.lane_block == 1
    if alone or tir.as_int(recurrence.lanes[-1].extent) == 0:
        return Built([_single_lanes(recurrence, plan)], [])
    lanes = recurrence.lanes[-1].extent
    size = int_const(plan.lane_block, lanes)
    full, rest = tir.simplify(lanes // size), tir.simplify(lanes % size)
    known = tir.as_int(rest)
    widths: list[tuple[int, Any]]
    if known is None:
        # What only the run tells is one block, with room for as many lanes as may be left.
        widths = [(plan.lane_block, rest)]
    else:
        widths = [(lanes_left, None) for lanes_left in rest_blocks(plan, known)]
    return Built([_block_nest(recurrence, plan, full, widths)], [])


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
    body = left_apart(body, recurrence)
    kernel = Kernel("scan_lanes", recurrence.inputs, recurrence.outputs, body, vectors.buffers)
    # A single lane needs no pool, whose start costs more than a thousand steps.
    kind = ForKind.SERIAL if tir.as_int(rows) == 1 else ForKind.PARALLEL
    kernel = on_lines(on_stack(kernel), rows)
    nest = loop("row", rows, lambda r: kernel.block([(row, rows, r)]), kind)
    return with_line_stores(nest, vectors.held.dtypes)


def _single_lanes(recurrence: Recurrence, plan: CpuPlan) -> Any:
    """Every lane a task."""
    rows = lane_count(recurrence)
    row = tirx.Var("v_row", tir.dtype_of(rows))
    block = lane_block(recurrence, 1, plan, decode_lanes(recurrence, row))
    return _over_cores(recurrence, plan, row, rows, block)


def _block_nest(
    recurrence: Recurrence, plan: CpuPlan, full: Any, rest: Sequence[tuple[int, Any]]
) -> Any:
    """Blocks of the innermost lanes as tasks.

    Parameters
    ----------
    recurrence : Recurrence
        With lanes, without a guard.
    plan : CpuPlan
        With the lanes of a full block.
    full : Expr
        How many are full.
    rest : sequence of (int, Expr or None)
        Lanes of the narrower blocks behind these, which are one task more, the first one: room for
        them, and how many there are where that is not it.
    """
    width, extent = plan.lane_block, recurrence.lanes[-1].extent
    others = [axis.extent for axis in recurrence.lanes[:-1]]
    outer = tir.simplify(prod(others, start=int_const(1, extent)))
    inner = tir.simplify(full + int_const(bool(rest), full))
    rows = tir.simplify(outer * inner)
    row = tirx.Var("v_row", tir.dtype_of(rows))
    number = (row // inner) * extent
    lead = decode_lanes(recurrence, number)[:-1]

    def of_lanes(size: int, first: Any, count: Any = None) -> LaneBlock:
        return lane_block(recurrence, size, plan, [*lead, first], count)

    at, one, done = row % inner, int_const(1, row), full * width
    ends = []
    for size, count in rest:
        ends.append(of_lanes(size, tir.simplify(done), count))
        done = done + size
    if not ends:
        block = of_lanes(width, tir.simplify(at * width))
    elif tir.as_int(full) == 0:
        block = LaneBlock.in_turn(ends)
    else:
        whole = of_lanes(width, (at - one) * width)
        block = LaneBlock.either(at < one, LaneBlock.in_turn(ends), whole)
    return _over_cores(recurrence, plan, row, rows, block)


def _over_cores(
    recurrence: Recurrence, plan: CpuPlan, row: Any, rows: Any, block: LaneBlock
) -> Any:
    kernel = Kernel(
        "scan_lanes", recurrence.inputs, recurrence.outputs, block.body, block.registers
    )
    kernel = on_stack(kernel, block.arrays if plan.vectorize else ())
    if plan.vectorize:
        kernel = on_lines(kernel, rows)
    nest = loop("row", rows, lambda r: kernel.block([(row, rows, r)]), ForKind.PARALLEL)
    return with_line_stores(nest, block.stored)
