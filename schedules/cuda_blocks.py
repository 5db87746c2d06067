"""How many blocks a plan starts, which a grid's only axis must count: fewer than 2^31."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.shape_key import sizes_of

if TYPE_CHECKING:
    from tvm_scan.schedules.plan import ScanPlan

__all__ = ["check_blocks"]


def check_blocks(plan: ScanPlan, recurrence: Recurrence) -> None:
    """Refuse a plan with more blocks than a grid has; symbolic extents are taken as fitting.

    Parameters
    ----------
    plan : ScanPlan
        For CUDA, with threads and items that have been checked.
    recurrence : Recurrence
        What will run.

    Raises
    ------
    PlanError
        With the number of blocks.
    """
    rows, length = sizes_of(recurrence)
    if rows is None or length is None:
        return
    if plan.algorithm in ("sequential", "lanes"):
        threads = rows * plan.threads_per_lane * max(1, plan.chunks)
        blocks = -(-threads // max(1, plan.threads_per_block))
    else:
        blocks = -(-rows // plan.lanes_per_block)
        if plan.algorithm == "three_phase":
            blocks *= -(-length // plan.tile)
    plan.require(
        blocks < 1 << 31,
        "fewer than 2^31 blocks, as a grid has",
        f"{blocks} blocks",
        "use larger tiles, or algorithm lanes",
    )
