"""Lanes that walk time in the cost model: whole, or in chunks."""

from __future__ import annotations

from math import ceil, log2

from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.sizes import element_bytes
from tvm_scan.schedules.common.strides import contiguous_axis
from tvm_scan.schedules.gpu.shared.walk_layout import walk_layout, walk_steps
from tvm_scan.schedules.gpu.thread.plans import WalkPlan
from tvm_scan.schedules.gpu.walk.chunk_carries import AHEAD
from tvm_scan.schedules.gpu.walk.counts import WalkCounts, walk_counts
from tvm_scan.schedules.gpu.walk.time_cut import TimeCut
from tvm_scan.schedules.machine.gpu_chip import (
    BARRIER,
    CACHED,
    EXP,
    LEVEL,
    MEMORY,
    UNROLLED,
    GpuChip,
    Work,
)

#: Cycles of a chunk in the middle kernel, beside the waits for memory.
_PASS_ON = 20.0


def walk_work(
    plan: WalkPlan, recurrence: Recurrence, rows: float, length: float, chip: GpuChip
) -> Work:
    """Lanes walk time: one thread each, or several that share the states; in chunks or not."""
    count = TimeCut(recurrence, plan).count if plan.chunks else 1
    alone = plan.with_(chunks=0)
    replay = walk_counts(alone, recurrence)
    steps, shared = rows * length, float(plan.threads_per_lane)
    threads = rows * shared * count
    along_time = contiguous_axis(recurrence) != "lane"
    # Threads far apart read sectors of 32 bytes, and the cache holds few of them.
    waste = 4.0 if along_time and not plan.splits_steps and rows * count > 4096 else 1.0
    moved = steps * replay.bytes * waste
    chain = _chain(plan, replay, length / count, along_time)
    issued, specials = steps * replay.instructions / 32, steps * replay.specials
    lines, paired = steps * replay.accesses, steps * replay.paired / 32
    barriers, touched = _barriers(plan, recurrence, length / count), steps * replay.shared
    if count == 1:
        return Work(
            *(moved, specials, issued, barriers, touched, threads, chain, 0.0, 1.0, lines),
            paired=paired,
        )
    reduce, part = walk_counts(alone, recurrence, reduces=True), (count - 1) / count
    again = steps * reduce.bytes * part
    # What the second-level cache still holds when the replay asks for it.
    moved += again * waste * (CACHED if again < chip.cache_bytes else 1.0)
    # Elements are written and read, and carries too, which are half as large.
    scratch = 3.0 * rows * count * element_bytes(recurrence)
    moved += scratch * (CACHED if scratch < chip.cache_bytes else 1.0)
    issued += steps * part * reduce.instructions / 32
    specials += steps * part * reduce.specials
    lines += steps * part * reduce.accesses
    paired += steps * part * reduce.paired / 32
    chain += _chain(plan, reduce, length / count, along_time)
    between = count * (MEMORY / AHEAD + _PASS_ON) * recurrence.levels
    launches = 1.0 + 2.0 * recurrence.levels
    touched += steps * part * reduce.shared
    barriers *= 2
    return Work(
        *(moved, specials, issued, barriers, touched, threads, chain, 0.0, launches, lines),
        between=between,
        paired=paired,
    )


def _barriers(plan: WalkPlan, recurrence: Recurrence, length: float) -> float:
    """Barriers of a block that walks so many steps: around a tile, or between two with several.

    One more where the block converts a table.
    """
    layout = walk_layout(plan, recurrence)
    if not layout.tile_bytes:
        return 0.0
    return ceil(length / walk_steps(plan)) * (2.0 if plan.stages == 1 or layout.wide_bytes else 1.0)


def _chain(plan: WalkPlan, counts: WalkCounts, length: float, along_time: bool) -> float:
    """Cycles of a walk over ``length`` steps by a warp that nobody hinders."""
    exp = EXP if counts.specials else 0.0
    if not plan.splits_steps:
        wait = MEMORY / 8 + LEVEL if along_time else MEMORY / UNROLLED
        return length * (wait + counts.thread + exp)
    # The steps of a thread overlap but for the state; what threads share is shuffled.
    shuffles = 1 + log2(plan.threads_per_lane) if plan.threads_per_lane > 1 else 0
    walk = length * (counts.thread + (exp + LEVEL * shuffles) / UNROLLED)
    if plan.block_load != "transposed":
        return walk + length / (plan.threads_per_lane * plan.items_per_thread) * MEMORY
    # A tile is a line at least; with several buffers its wait is for a barrier.
    tiles = length / walk_steps(plan)
    if plan.stages == 1:
        return walk + tiles * (MEMORY + BARRIER)
    return walk + MEMORY + tiles * BARRIER
