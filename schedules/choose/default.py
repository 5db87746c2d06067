"""The plan that is used when nobody tuned."""

from __future__ import annotations

from tvm.target import Target

from tvm_scan.arguments import as_recurrence, as_target
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.choose.cpu_default import cpu_default
from tvm_scan.schedules.choose.gpu_default import cuda_default
from tvm_scan.schedules.machine.limits import Limits, device_of, limits_of
from tvm_scan.schedules.plan import ScanPlan

__all__ = ["default_plan", "host_target"]


def host_target() -> Target:
    """Return this machine's CPU with its own instruction set (``mcpu="native"`` means generic)."""
    return Target.from_device("cpu")


def default_plan(
    target: Target | None, recurrence: Recurrence, limits: Limits | None = None
) -> ScanPlan:
    """Choose a plan without tuning.

    Parameters
    ----------
    target : tvm.target.Target, str or None
        Where it will run; this machine's CPU if None.
    recurrence : Recurrence
        What will run. Extents that are symbolic are taken as large.
    limits : Limits, optional
        Of a machine that is not this one; else what ``limits_of`` says of the target.

    Returns
    -------
    ScanPlan
        A plan that passes ``check``.

    Raises
    ------
    RefusalError
        If it is a refusal.
    ScanError
        If it is no recurrence, or the target is none.
    """
    recurrence = as_recurrence(recurrence, "default_plan")
    target = as_target(target, "default_plan") or host_target()
    limits = limits or limits_of(target)
    if device_of(target) == "cuda":
        return cuda_default(limits, recurrence)
    return cpu_default(target, limits, recurrence)
