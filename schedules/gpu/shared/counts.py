"""Changes that tiles in shared memory make to the cost model: see ``machine.gpu_cost``.

A multiprocessor's load and store unit handles one line of 128 bytes per clock, of global or of
shared memory. A warp whose threads are ``s`` bytes apart touches ``32 s / 128`` lines with every
access, however few bytes of them it takes.
"""

from __future__ import annotations

from math import ceil

from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.gpu.shared.layout import along_time
from tvm_scan.schedules.gpu.thread.plans import TreePlan

_WARP, _WORD = 32, 4


def lines_of_step(plan: TreePlan, recurrence: Recurrence) -> float:
    """Lines of memory that one step's loads and stores along time touch, of a tree plan."""
    total = 0.0
    for stream in along_time(plan, recurrence):
        items, size, lanes = plan.items_per_thread, stream.size, stream.copies.lanes
        # Of a warp's items, in lines that are read whole.
        whole = items * size / _WORD
        lines = ceil(items / lanes) * min(float(_WARP), max(1.0, whole))
        if plan.block_load == "transposed" and (lanes != items or plan.stages > 1):
            lines = 3 * whole
        total += lines / items * (1 if stream.stored else plan.passes)
    return total / _WARP


def shared_accesses(plan: TreePlan, recurrence: Recurrence) -> float:
    """Accesses of a thread to shared memory per step, beside those of a tree."""
    if plan.block_load == "direct":
        return 0.0
    return sum(
        1 / stream.copies.lanes + 1 / stream.layout.unit for stream in along_time(plan, recurrence)
    )
