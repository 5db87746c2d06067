"""``plan_of``: the one answer to the question which plan a recurrence gets."""

from __future__ import annotations

from typing import Protocol

from tvm.target import Target

from tvm_scan.arguments import as_recurrence, as_target, host_target
from tvm_scan.delta_rule import TimeLoop
from tvm_scan.errors import ScanError
from tvm_scan.schedules.choose.default import default_plan
from tvm_scan.schedules.choose.shipped import shipped_plan
from tvm_scan.schedules.plan import ScanPlan


class Records(Protocol):
    """Plans that were measured; ``tvm_scan.meta.RecordStore`` is one."""

    def plan_of(self, recurrence: TimeLoop, target: Target) -> ScanPlan | None:
        """Return the plan of this recurrence or of a near shape; None where there is none."""


def plan_of(
    recurrence: TimeLoop,
    target: Target | str | None = None,
    records: Records | None = None,
) -> ScanPlan:
    """Answer which plan a recurrence gets on a target.

    The first of these that there is: the plan that ``records`` have for this recurrence or a near
    shape of it; that of a record which is shipped for this kind of machine; the default.

    Parameters
    ----------
    recurrence : Recurrence or DeltaRule
        What ``tvm_scan.extract`` returned; its extents may be symbolic.
    target : tvm.target.Target or str, optional
        Where it will run; the current target, else this machine's CPU.
    records : RecordStore, optional
        What was measured here; see ``tvm_scan.meta``.

    Returns
    -------
    ScanPlan
        A plan that passes ``check``.

    Raises
    ------
    RefusalError
        If it is a refusal.
    ScanError
        If it is no recurrence, the target is none, or the records are none.
    """
    recurrence = as_recurrence(recurrence, "plan_of")
    known = as_target(target, "plan_of") or Target.current(allow_none=True) or host_target()
    return recorded_plan(recurrence, known, records) or default_plan(known, recurrence)


def recorded_plan(
    recurrence: TimeLoop, target: Target, records: Records | None = None
) -> ScanPlan | None:
    """Return the plan that was measured for a recurrence, or a near shape of it.

    Parameters
    ----------
    recurrence, target, records
        As those of `plan_of`.

    Returns
    -------
    ScanPlan or None
        That of `records`, else that of a record which is shipped for this kind of machine; None
        where neither has one.

    Raises
    ------
    ScanError
        If the records are none.
    """
    plan = None
    if records is not None:
        ask = getattr(records, "plan_of", None)
        if ask is None:
            raise ScanError(
                f"plan_of: expected records, got {type(records).__name__}; pass "
                "tvm_scan.meta.RecordStore(folder)"
            )
        plan = ask(recurrence, target)
    return plan or shipped_plan(target, recurrence)
