"""Values that every decision of a plan may take: the one source of every search.

A space is the branches of every schedule of a device; within a branch every decision has its own
ordered values. Sampling draws from them, enumeration goes through them, and a mutation moves to
the value beside.
"""

from __future__ import annotations

from functools import lru_cache

from tvm.target import Target

from tvm_scan.delta_rule import TimeLoop
from tvm_scan.errors import PlanError
from tvm_scan.schedules.branch import Branch
from tvm_scan.schedules.choose.default import default_plan
from tvm_scan.schedules.machine.device import device_of
from tvm_scan.schedules.machine.machine import Machine
from tvm_scan.schedules.plan import ScanPlan
from tvm_scan.schedules.registry import schedules_of


def branches(target: Target, recurrence: TimeLoop) -> list[Branch]:
    """The space of plans of a recurrence on a target.

    Parameters
    ----------
    target : tvm.target.Target
        Where it will run.
    recurrence : Recurrence or DeltaRule
        What will run. Extents that are symbolic are taken as large.

    Returns
    -------
    list of Branch
        The sequential plan first; the default plan is in one of them. None is empty.

    Raises
    ------
    PlanError
        For a target of a kind that no row serves.
    """
    machine = Machine.of(target)
    schedules = schedules_of(device_of(target).plans, recurrence)
    fitting = [b for schedule in schedules for b in schedule.space(recurrence, machine)]
    fitting = [b for b in fitting if any(fits(plan, target, recurrence) for plan in b.plans())]
    default = default_plan(target, recurrence)
    return fitting if any(b.holds(default) for b in fitting) else [*fitting, Branch(default)]


@lru_cache(maxsize=1 << 14)
def fits(plan: ScanPlan, target: Target, recurrence: TimeLoop) -> bool:
    """Return whether a plan can be built: its own check, and registers by estimate.

    Parameters
    ----------
    plan : ScanPlan
        Any plan.
    target : tvm.target.Target
        Where it will run.
    recurrence : Recurrence or DeltaRule
        What will run.
    """
    try:
        plan.check(target, recurrence)
    except PlanError:
        return False
    return plan.registers_fit(recurrence)


def enumerate_plans(target: Target, recurrence: TimeLoop) -> list[ScanPlan]:
    """Every plan that fits: the default first, then the sequential one, then the others.

    Parameters
    ----------
    target : tvm.target.Target
        Where it will run.
    recurrence : Recurrence or DeltaRule
        What will run.

    Returns
    -------
    list of ScanPlan
        Without repetitions.
    """
    first = default_plan(target, recurrence)
    rest = (p for b in branches(target, recurrence) for p in b.plans())
    return list(dict.fromkeys([first, *(p for p in rest if fits(p, target, recurrence))]))


def size(target: Target, recurrence: TimeLoop) -> int:
    """Number of plans that fit."""
    return len(enumerate_plans(target, recurrence))
