"""The plan that is used when nobody tuned: of the schedules' shortlists the least prediction."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import isinf, prod

from tvm.target import Target

from tvm_scan.arguments import as_recurrence, as_target, host_target
from tvm_scan.delta_rule import TimeLoop
from tvm_scan.errors import PlanError
from tvm_scan.schedules.choose.rules import Rule, factor_of
from tvm_scan.schedules.machine.device import device_of
from tvm_scan.schedules.machine.machine import Machine
from tvm_scan.schedules.plan import ScanPlan, schedules_of

#: Share by which a plan may cost more than the best one and still be taken, an earlier and simpler
#: one: predictions are no closer.
_ALIKE = 0.01


@dataclass(frozen=True)
class Candidate:
    """A plan that was compared.

    Attributes
    ----------
    plan : ScanPlan
        Of a schedule's shortlist.
    seconds : float
        The prediction.
    ranked : float
        What was compared: the prediction and the factors of the rules.
    rules : tuple of Rule
        That concern it.
    """

    plan: ScanPlan
    seconds: float
    ranked: float
    rules: tuple[Rule, ...]


@dataclass(frozen=True)
class Decision:
    """A default plan, and what it was chosen among.

    Attributes
    ----------
    chosen : Candidate
        The one that is taken.
    others : tuple of Candidate
        The others, the nearest first.
    """

    chosen: Candidate
    others: tuple[Candidate, ...]


def default_plan(
    target: Target | None, recurrence: TimeLoop, machine: Machine | None = None
) -> ScanPlan:
    """Choose a plan without tuning.

    Parameters
    ----------
    target : tvm.target.Target, str or None
        Where it will run; this machine's CPU if None.
    recurrence : Recurrence or DeltaRule
        What will run. Extents that are symbolic are taken as 4096.
    machine : Machine, optional
        Of a machine that is not this one; else what ``Machine.of`` says of the target.

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
    return decide(target, recurrence, machine).chosen.plan


def decide(target: Target, recurrence: TimeLoop, machine: Machine | None = None) -> Decision:
    """Choose a plan, and keep what it was chosen among; see ``default_plan``."""
    schedules = tuple(schedules_of(device_of(target).plans, recurrence))
    return _decide(schedules, machine or Machine.of(target), recurrence)


@lru_cache(maxsize=128)
def _decide(
    schedules: tuple[type[ScanPlan], ...], machine: Machine, recurrence: TimeLoop
) -> Decision:
    lengths = max((s.lengths(recurrence, machine) for s in schedules), key=len)
    candidates: list[Candidate] = []
    for schedule in schedules:
        for plan in schedule.shortlist(recurrence, machine):
            factor, rules = factor_of(plan, recurrence)
            if isinf(factor):
                continue
            costs = [plan.cost(recurrence, machine, length) for length in lengths]
            # Geometric means; those of `statistics` take as long as a prediction.
            seconds = prod(cost.seconds for cost in costs) ** (1.0 / len(costs))
            ranked = prod(cost.ranked for cost in costs) ** (1.0 / len(costs))
            candidates.append(Candidate(plan, seconds, factor * ranked, rules))
    while candidates:
        most = (1.0 + _ALIKE) * min(candidate.ranked for candidate in candidates)
        chosen = next(candidate for candidate in candidates if candidate.ranked <= most)
        candidates.remove(chosen)
        try:
            chosen.plan.check_on(machine, recurrence)
        except PlanError:
            if not candidates:
                raise
            continue
        return Decision(chosen, tuple(sorted(candidates, key=lambda candidate: candidate.ranked)))
    raise PlanError(
        f"default_plan: expected a schedule of {schedules[0].device} that fits, got none"
    )
