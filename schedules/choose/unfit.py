"""The one check of every record: whether a plan that was measured may be used."""

from __future__ import annotations

from tvm.target import Target

from tvm_scan.delta_rule import TimeLoop
from tvm_scan.errors import PlanError
from tvm_scan.schedules.common.sizes import sizes_of
from tvm_scan.schedules.plan import ScanPlan


def why_unfit(plan: ScanPlan, target: Target, recurrence: TimeLoop) -> str | None:
    """Say why a recorded plan is not used for a recurrence, be it the record's own or a near one.

    Parameters
    ----------
    plan : ScanPlan
        Of a record: any values in its fields.
    target : tvm.target.Target
        Where it would run.
    recurrence : Recurrence or DeltaRule
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
    length = sizes_of(recurrence)[1]
    return None if length is None else plan.why_wasteful(length)
