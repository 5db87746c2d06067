"""What tiles in shared memory take, and what a plan that has them must hold to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.limits import Limits
from tvm_scan.schedules.shared_layout import streams_of

if TYPE_CHECKING:
    from tvm_scan.schedules.plan import ScanPlan

__all__ = ["check_no_staging", "check_staging", "tile_bytes"]

#: Where the items of a block's threads are exchanged.
_BLOCK_LOADS = ("direct", "transposed")
_MOST_STAGES = 3


def tile_bytes(plan: ScanPlan, recurrence: Recurrence) -> list[int]:
    """Shared memory of every array of which a tree plan keeps tiles, all its buffers together."""
    return [
        stream.layout.cells(plan.tile) * stream.layout.size * (1 if stream.stored else plan.stages)
        for stream in streams_of(plan, recurrence)
    ]


def check_no_staging(plan: ScanPlan) -> None:
    """Check a plan without tiles for choices that only tiles have."""
    plan.require(
        plan.block_load == "direct" and plan.stages == 1,
        "block_load=direct and stages=1 where no block has a tile",
        f"block_load={plan.block_load}, stages={plan.stages}",
        "use algorithm serial_tiles",
    )


def check_staging(plan: ScanPlan, limits: Limits, recurrence: Recurrence) -> None:
    """Check how a tree plan moves its tiles."""
    plan.require(
        plan.block_load in _BLOCK_LOADS,
        "one of " + ", ".join(_BLOCK_LOADS),
        f"block_load={plan.block_load}",
        "leave block_load at its default",
    )
    plan.require(
        1 <= plan.stages <= _MOST_STAGES,
        f"1 to {_MOST_STAGES} stages",
        f"stages={plan.stages}",
        "use 2",
    )
    if plan.block_load == "transposed":
        plan.require(
            bool(streams_of(plan, recurrence)),
            "an array whose memory runs along time, and several vectors per thread, to transpose",
            f"none, with {plan.items_per_thread} items per thread",
            "use block_load=direct",
        )
    if plan.stages == 1:
        return
    plan.require(
        plan.block_load == "transposed" and plan.algorithm == "serial_tiles",
        "block_load=transposed in serial_tiles for several stages",
        f"block_load={plan.block_load} in {plan.algorithm}, stages={plan.stages}",
        "use stages=1",
    )
    plan.require(
        limits.async_copies,
        "a target of sm_80 or later for several stages",
        "an older one, or one that does not say",
        'use stages=1, or name the target\'s "arch"',
    )
