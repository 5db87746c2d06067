"""Rules for what no prediction knows of a plan, each with its measurement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from tvm_scan.delta_rule import TimeLoop
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.cpu.cost.step import step_of
from tvm_scan.schedules.cpu.lanes import Lanes
from tvm_scan.schedules.cpu.plans import CpuPlan
from tvm_scan.schedules.cpu.three_phase import ThreePhase
from tvm_scan.schedules.plan import ScanPlan


@dataclass(frozen=True)
class Rule:
    """A factor by which a prediction is multiplied before plans are compared.

    Attributes
    ----------
    name : str
        In a few words.
    measured : str
        What was seen.
    concerns : callable
        Whether it concerns a plan for a recurrence.
    factor : float
        Infinity forbids the plan.
    """

    name: str
    measured: str
    concerns: Callable[[ScanPlan, TimeLoop], bool]
    factor: float = inf


def _rounds_carries(plan: ScanPlan, recurrence: TimeLoop) -> bool:
    return isinstance(plan, CpuPlan) and plan.keeps_loop and recurrence.carries_halves


def _multiplies_chunks(plan: ScanPlan, recurrence: TimeLoop) -> bool:
    scalar = isinstance(plan, ThreePhase) and not plan.time_vector
    if not scalar or not isinstance(recurrence, Recurrence):
        return False
    return any(part.extend_chain.products for part in step_of(recurrence).parts)


def _chooses_in_vectors(plan: ScanPlan, recurrence: TimeLoop) -> bool:
    vectors = isinstance(plan, Lanes) and plan.vectorize
    if not vectors or not isinstance(recurrence, Recurrence):
        return False
    return not step_of(recurrence).in_vectors


def _is_the_loop(plan: ScanPlan, _: TimeLoop) -> bool:
    return isinstance(plan, CpuPlan) and plan.keeps_loop


#: In order.
RULES = (
    Rule(
        "the loop rounds a carry of halves at every step",
        "other numbers than those of every other plan, which keep the carry in float32",
        _rounds_carries,
    ),
    Rule(
        "chunks of scalars multiply their gates until they are denormal",
        "5 to 30 times the predicted time with gates of 0.9 to 1 and chunks of 1000 steps",
        _multiplies_chunks,
    ),
    Rule(
        "lanes of which each chooses what it reads are no vectors",
        "2 to 4 times the time of interleaved lanes",
        _chooses_in_vectors,
    ),
    Rule(
        "the loop is left only for what is clearly faster",
        "predictions of it are within 10 % of its time; nobody forgives less than the loop's speed",
        _is_the_loop,
        0.907,
    ),
)


def factor_of(plan: ScanPlan, recurrence: TimeLoop) -> tuple[float, tuple[Rule, ...]]:
    """Return the factor by which a prediction is multiplied, and the rules that say so."""
    rules = tuple(rule for rule in RULES if rule.concerns(plan, recurrence))
    factor = 1.0
    for rule in rules:
        factor *= rule.factor
    return factor, rules
