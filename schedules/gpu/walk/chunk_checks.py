"""Checks of a plan whose lanes walk time in chunks."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.sizes import sizes_of
from tvm_scan.schedules.common.state_reduction import reduction_of
from tvm_scan.schedules.common.state_split import NoSplit

if TYPE_CHECKING:
    from tvm_scan.schedules.gpu.thread.plans import WalkPlan


#: The middle kernel writes its loop over the chunks in batches; more than these take it too long.
MOST_CHUNKS = 4096


def takes_chunks(splits_steps: bool, recurrence: Recurrence) -> bool:
    """Return whether a walk can reduce a chunk to its elements, if it takes steps apart."""
    return not splits_steps or not isinstance(reduction_of(recurrence), NoSplit)


def check_chunks(plan: WalkPlan, recurrence: Recurrence) -> None:
    """Check ``plan.chunks`` of a plan for CUDA."""
    if plan.chunks == 0:
        return
    plan.require(
        2 <= plan.chunks <= MOST_CHUNKS,
        f"2 to {MOST_CHUNKS} chunks, or 0 for none",
        f"chunks={plan.chunks}",
        "use 16",
    )
    reduction = reduction_of(recurrence) if plan.splits_steps else None
    plan.require(
        not isinstance(reduction, NoSplit),
        "states that are affine, each in itself alone, for threads that share a lane in chunks",
        # The text of a whole reduction takes a millisecond, that of a refusal does not.
        str(reduction) if isinstance(reduction, NoSplit) else "them",
        "leave chunks at 0, or threads_per_lane at 1",
    )
    rows, _ = sizes_of(recurrence)
    cells = max(prod(int(a.extent) for a in c.state_axes) for c in recurrence.carries)
    if rows is not None:
        total = rows * plan.chunks * cells
        plan.require(
            total < 1 << 31,
            "fewer than 2^31 states of all lanes and chunks",
            f"{total}",
            "use fewer chunks",
        )
