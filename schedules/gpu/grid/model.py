"""Trees over tiles of time in the cost model: what they move, issue and wait for."""

from __future__ import annotations

from math import ceil, log2

from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.strides import contiguous_axis
from tvm_scan.schedules.gpu.checks import carry_threads, element_bytes, shared_bytes
from tvm_scan.schedules.gpu.staging_model import lines_of_step, shared_accesses
from tvm_scan.schedules.machine.gpu_chip import AROUND, BARRIER, CACHED, EXP, LEVEL, MEMORY, Work
from tvm_scan.schedules.machine.step_counts import StepCost
from tvm_scan.schedules.plan import ScanPlan

__all__ = ["tree_work"]


def tree_work(
    plan: ScanPlan, recurrence: Recurrence, step: StepCost, rows: float, length: float
) -> Work:
    """Tiles of time: every step is lifted and combined, and then made again."""
    threads, items = float(plan.threads_per_block), float(plan.items_per_thread)
    tiles, words = ceil(length / plan.tile), element_bytes(recurrence) / 4
    doublings = log2(threads)
    if plan.block_tree == "warp":
        levels, barriers = doublings + 3, 1.0
    elif plan.block_tree == "kogge_stone":
        levels, barriers = doublings, doublings + 1
    else:
        levels, barriers = 2 * doublings, 2 * (doublings - 5)
    if threads <= 32:
        barriers = 0.0  # a warp has its own
    exchange = levels * words * 4
    # Lifting costs about what the step costs, and a combine two operations per word.
    each = 2 * (step.flops + step.specials * AROUND) + 2 * words
    width = 4.0 if plan.vector_loads else 1.0
    made = rows * tiles * plan.tile
    staged = shared_accesses(plan, recurrence)
    issued = made * (each + 3 * step.accesses / width + staged + exchange / items) / 32
    if plan.block_load == "transposed":
        barriers += 2.0
    at_memory = MEMORY if not step.specials else MEMORY + 2 * EXP * items
    one = at_memory + items * each + levels * (LEVEL + words) + barriers * BARRIER
    # Warps' totals are written and read once; the other trees pass every level through memory.
    passed = 2 * words if plan.block_tree == "warp" else exchange
    passed = passed if shared_bytes(plan, recurrence) else 0.0
    shared = made * (staged + passed / items) / 32
    steps = rows * length
    lines = steps * lines_of_step(plan, recurrence)
    coalesced = 1.0 if contiguous_axis(recurrence) != "lane" else 8.0
    if plan.algorithm == "serial_tiles":
        moved = steps * step.bytes * coalesced
        chain = tiles * one
        if plan.stages > 1:
            # All tiles but the first one are there when their turn comes.
            chain -= (tiles - 1) * (MEMORY - LEVEL)
        specials, count = 2 * steps * step.specials, rows * threads
        passed = tiles * barriers
        return Work(moved, specials, issued, passed, shared, count, chain, 0.0, 1.0, lines)
    if plan.algorithm == "single_pass":
        # Every tile hands over its element, and reads those of half a window on average.
        looked_up = min(tiles, threads) / 2 * (words + 1) * 4
        handed = rows * tiles * (4 * words + 12)
        moved = steps * step.bytes * coalesced + handed + rows * tiles * looked_up * CACHED
        # Windows follow one another by two trips through the cache.
        chain = 2 * one + MEMORY
        once = 2 * MEMORY * ceil(tiles / threads)
        count = rows * tiles * threads
        specials = 2 * steps * step.specials
        barriers = 2 * barriers + 2
        return Work(moved, specials, issued, barriers, shared, count, chain, once, 2.0, lines)
    scratch = 16.0 * rows * tiles * words
    moved = 2 * steps * step.bytes * coalesced * 0.85 + scratch
    # The elements of a lane are scanned in chunks by one block; each chunk waits for memory twice.
    chunks = ceil(tiles / (8 * carry_threads(plan, recurrence)))
    carries = 2 * MEMORY + levels * (LEVEL + words) + barriers * BARRIER
    chain, once = 2 * one, chunks * carries
    count = rows * tiles * threads
    issued, specials, barriers = 1.7 * issued, 3 * steps * step.specials, 3 * barriers
    return Work(moved, specials, issued, barriers, shared, count, chain, once, 3.0, lines)
