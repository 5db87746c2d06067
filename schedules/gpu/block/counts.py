"""One tile of a tree in the cost model: what its threads move, issue and wait for."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2

from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.sizes import element_bytes
from tvm_scan.schedules.common.strides import contiguous_axis
from tvm_scan.schedules.gpu.block.tree_counts import thread_counts
from tvm_scan.schedules.gpu.shared.counts import (
    bytes_again,
    lines_of_step,
    shared_accesses,
    short_runs,
)
from tvm_scan.schedules.gpu.thread.plans import TreePlan
from tvm_scan.schedules.machine.gpu_chip import BARRIER, EXP, LEVEL, MEMORY
from tvm_scan.schedules.machine.step_counts import StepCost, step_cost


@dataclass(frozen=True)
class TileCounts:
    """Costs of tiles of time: every step is lifted and combined, and then made again.

    Attributes
    ----------
    tiles, words : float
        Tiles of a lane; words of an element.
    barriers : float
        That a block passes for one tile.
    cycles, exchange_cycles : float
        Cycles of one tile, waits for memory included; of its levels alone.
    issued, shared, lines : float
        Instructions of warps, their accesses to shared memory, and lines of memory that they
        touch with those and shuffles, of all lanes and steps together.
    issued_to_reduce, lines_to_reduce : float
        Of a kernel that makes the tiles' elements alone; without the lines of its inputs.
    moved, lost, specials : float
        Bytes, those that memory could move meanwhile, and special functions of all steps, each
        made once.
    """

    tiles: float
    words: float
    barriers: float
    cycles: float
    exchange_cycles: float
    issued: float
    shared: float
    lines: float
    issued_to_reduce: float
    lines_to_reduce: float
    moved: float
    lost: float
    specials: float


def tile_counts(plan: TreePlan, recurrence: Recurrence, rows: float, length: float) -> TileCounts:
    """Count one tile of a tree plan, and the steps of all of them."""
    step: StepCost = step_cost(recurrence)
    threads, items = float(plan.threads_per_block), float(plan.items_per_thread)
    tiles, words = ceil(length / plan.tile), element_bytes(recurrence) / 4
    per_thread = thread_counts(plan, recurrence)
    doublings = log2(threads)
    if plan.block_tree == "warp":
        levels, barriers = doublings + 3, 1.0
    elif plan.block_tree == "kogge_stone":
        levels, barriers = doublings, doublings + 1
    else:
        levels, barriers = 2 * doublings, 2 * (doublings - 5)
    if threads <= 32:
        barriers = 0.0  # a warp has its own
    if plan.block_load == "transposed":
        barriers += 2.0
    at_memory = MEMORY if not step.specials else MEMORY + 2 * EXP * items
    exchange_cycles = levels * (LEVEL + words) + barriers * BARRIER
    steps, warps = rows * length, rows * tiles * threads / 32
    # Of the warps' totals one is written and all are read; other trees exchange everything there.
    in_shared = (
        per_thread.scan.exchanged if plan.block_tree != "warp" else 2 * words * (threads > 32)
    )
    coalesced = 1.0 if contiguous_axis(recurrence) != "lane" else 8.0
    return TileCounts(
        tiles=tiles,
        words=words,
        barriers=barriers,
        cycles=at_memory
        + items * (per_thread.load + per_thread.extend + per_thread.step)
        + exchange_cycles,
        exchange_cycles=exchange_cycles,
        issued=warps * per_thread.replayed(items),
        shared=warps * (items * shared_accesses(plan, recurrence) + in_shared),
        lines=steps * lines_of_step(plan, recurrence) + warps * per_thread.scan.exchanged,
        issued_to_reduce=warps * per_thread.reduced(items),
        lines_to_reduce=warps * per_thread.reduce.exchanged,
        moved=steps * step.bytes * coalesced,
        lost=steps
        * (
            bytes_again(plan, recurrence)
            + step.bytes * coalesced * short_runs(plan, recurrence, length)
        ),
        specials=steps * step.specials,
    )
