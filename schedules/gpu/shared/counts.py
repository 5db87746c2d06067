"""Changes that tiles in shared memory make to the cost model: see ``machine.gpu_cost``.

A multiprocessor's load and store unit handles one line of 128 bytes per clock, of global or of
shared memory. A warp whose threads are ``s`` bytes apart touches ``32 s / 128`` lines with every
access, however few bytes of them it takes.
"""

from __future__ import annotations

from math import ceil, sqrt

from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.gpu.shared.layout import along_time
from tvm_scan.schedules.gpu.thread.plans import TreePlan

_WARP, _WORD = 32, 4
#: Of a line's bytes, what its third access and each further one fetch again.
_AGAIN = 0.035
#: Bytes of a run, of which a block loses a share of so much; of one that loses none.
_PAGE, _SHORT, _LONG = 512.0, 0.1, 16384.0


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


def bytes_again(plan: TreePlan, recurrence: Recurrence) -> float:
    """Bytes of a step that are fetched once more, of a thread that moves its own items.

    Its accesses touch the same lines one after another, and so do those of many other warps
    meanwhile: some lines have left the first-level cache by the third time.
    """
    if plan.block_load != "direct":
        return 0.0
    streams = along_time(plan, recurrence)
    times = [plan.items_per_thread / stream.copies.lanes for stream in streams]
    return sum(_AGAIN * max(0.0, n - 2) * s.size for n, s in zip(times, streams, strict=True))


def short_runs(plan: TreePlan, recurrence: Recurrence, length: float) -> float:
    """Share of bytes that are lost where many blocks walk along rows of their own.

    What a block asks for at once is a run of a tile's bytes, and memory answers long ones sooner:
    on an H100 rows of float32 took 5 % longer in tiles of 2 KB than in tiles of 16.
    """
    streams = along_time(plan, recurrence)
    if not streams or not plan.walks_tiles or length <= plan.tile:
        return 0.0
    run = plan.tile * min(stream.size for stream in streams)
    return _SHORT * max(0.0, sqrt(_PAGE / run) - sqrt(_PAGE / _LONG))


def shared_accesses(plan: TreePlan, recurrence: Recurrence) -> float:
    """Accesses of a thread to shared memory per step, beside those of a tree."""
    if plan.block_load == "direct":
        return 0.0
    return sum(
        1 / stream.copies.lanes + 1 / stream.layout.unit for stream in along_time(plan, recurrence)
    )
