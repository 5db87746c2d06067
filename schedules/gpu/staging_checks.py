"""What tiles in shared memory take, and what a plan that has them must hold to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.state_reduction import StateReduction, reduction_of
from tvm_scan.schedules.gpu.shared.layout import streams_of
from tvm_scan.schedules.gpu.shared.tables import tables_of
from tvm_scan.schedules.gpu.shared.walk_layout import walk_layout
from tvm_scan.schedules.machine.limits import Limits

if TYPE_CHECKING:
    from tvm_scan.schedules.plan import ScanPlan

__all__ = ["BLOCK_LOADS", "check_staging", "check_walk_staging", "tile_bytes"]

#: Where the items of a block's threads are exchanged.
BLOCK_LOADS = ("direct", "transposed")
_MOST_STAGES = 3


def tile_bytes(plan: ScanPlan, recurrence: Recurrence) -> list[int]:
    """Shared memory of every array of which a plan keeps tiles, all its buffers together.

    In chunks, of the kernel that has more of it: the one that reduces stages fewer arrays, but may
    have room for one that the other has not.
    """
    if plan.algorithm == "lanes":
        found = [walk_layout(plan, recurrence).tile_bytes]
        reduction = reduction_of(recurrence) if plan.chunks else None
        if isinstance(reduction, StateReduction):
            found.append(walk_layout(plan, recurrence, reduction.split).tile_bytes)
        return [size * plan.stages for size in max(found, key=sum)]
    tables = [table.bytes * plan.stages for table in tables_of(plan, recurrence)]
    return tables + [
        stream.layout.cells(plan.tile)
        * stream.layout.size
        * plan.lanes_per_block
        * (1 if stream.stored else plan.stages)
        for stream in streams_of(plan, recurrence)
    ]


def check_walk_staging(plan: ScanPlan, limits: Limits, recurrence: Recurrence) -> None:
    """Check a plan whose lanes walk time: only threads that share them have tiles."""
    plan.require(
        plan.lanes_per_block == 1,
        "lanes_per_block=1 where lanes walk time: threads_per_block says how many there are",
        f"lanes_per_block={plan.lanes_per_block}",
        "leave it at 1",
    )
    _check_choices(plan, limits)
    if plan.threads_per_lane == 1:
        plan.require(
            plan.block_load == "direct",
            "block_load=direct where no block has a tile",
            f"block_load={plan.block_load}",
            "use algorithm serial_tiles, or threads that share lanes",
        )
    elif plan.block_load == "transposed":
        plan.require(
            bool(walk_layout(plan, recurrence).tile_bytes),
            "an array whose memory runs along time, or one that the lanes of a block share",
            "none",
            "use block_load=direct",
        )


def check_staging(plan: ScanPlan, limits: Limits, recurrence: Recurrence) -> None:
    """Check how a tree plan moves its tiles."""
    plan.require(
        plan.stages == 1 or plan.algorithm == "serial_tiles",
        "one tile after the other for several stages",
        f"stages={plan.stages} in {plan.algorithm}",
        "use stages=1, or algorithm serial_tiles",
    )
    _check_choices(plan, limits)
    together = plan.lanes_per_block
    plan.require(
        together >= 1 and together * plan.threads_per_block <= limits.threads,
        f"at least one lane per block, and at most {limits.threads} threads of all of them",
        f"lanes_per_block={together} of {plan.threads_per_block} threads",
        "use fewer lanes or threads",
    )
    if plan.block_load == "transposed":
        plan.require(
            bool(streams_of(plan, recurrence) or tables_of(plan, recurrence)),
            "an array whose memory runs along time, and several vectors per thread, to transpose",
            f"none, with {plan.items_per_thread} items per thread",
            "use block_load=direct",
        )


def _check_choices(plan: ScanPlan, limits: Limits) -> None:
    plan.require(
        plan.block_load in BLOCK_LOADS,
        "one of " + ", ".join(BLOCK_LOADS),
        f"block_load={plan.block_load}",
        "leave block_load at its default",
    )
    plan.require(
        1 <= plan.stages <= _MOST_STAGES,
        f"1 to {_MOST_STAGES} stages",
        f"stages={plan.stages}",
        "use 2",
    )
    if plan.stages == 1:
        return
    plan.require(
        plan.block_load == "transposed",
        "block_load=transposed for several stages",
        f"block_load={plan.block_load}, stages={plan.stages}",
        "use stages=1",
    )
    plan.require(
        limits.async_copies,
        "a target of sm_80 or later for several stages",
        "an older one, or one that does not say",
        'use stages=1, or name the target\'s "arch"',
    )
