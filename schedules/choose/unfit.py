"""Whether a plan that was measured may be used: the one check of every record."""

from __future__ import annotations

from tvm.target import Target

from tvm_scan.errors import PlanError
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.choose.shape_key import sizes_of
from tvm_scan.schedules.plan import ScanPlan

__all__ = ["why_unfit"]


def why_unfit(plan: ScanPlan, target: Target, recurrence: Recurrence) -> str | None:
    """Say why a recorded plan is not used for a recurrence, be it the record's own or a near one.

    Parameters
    ----------
    plan : ScanPlan
        Of a record: any values in its fields.
    target : tvm.target.Target
        Where it would run.
    recurrence : Recurrence
        What would run.

    Returns
    -------
    str or None
        What was expected and found; None where the plan fits.
    """
    try:
        plan.check(target, recurrence)
    except PlanError as error:
        return str(error)
    # Chunks of a few steps cost more than they share out.
    length = sizes_of(recurrence)[1]
    if length is not None and plan.chunks > max(1, length // 4):
        return f"expected chunks of 4 steps or more, got {plan.chunks} chunks of {length} steps"
    return None
