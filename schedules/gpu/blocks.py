"""How many blocks and steps a plan counts: a grid's only axis, and time, hold less than 2^31."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.choose.shape_key import sizes_of

if TYPE_CHECKING:
    from tvm_scan.schedules.plan import ScanPlan

__all__ = ["check_blocks"]

#: Steps that the tiles or chunks of a row may have beyond its end.
_BEYOND = 1 << 24


def check_blocks(plan: ScanPlan, recurrence: Recurrence) -> None:
    """Refuse a plan with more blocks than a grid has, or with steps that its time cannot count.

    Symbolic extents are taken as fitting.

    Parameters
    ----------
    plan : ScanPlan
        For CUDA, with threads and items that have been checked.
    recurrence : Recurrence
        What will run.

    Raises
    ------
    PlanError
        With the number of blocks, or of steps.
    """
    rows, length = sizes_of(recurrence)
    most = (1 << (63 if tir.dtype_of(recurrence.time.var) == "int64" else 31)) - _BEYOND
    plan.require(
        length is None or length <= most,
        f"at most {most} steps, so that the end of the last tile can be counted",
        f"{length} steps",
        "write the extents of its loops as T.int64(n), and fewer than 2^63",
    )
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
