"""Features of a candidate for a cost model: a row of numbers.

A plan's prediction says what it takes and why; its decisions stand beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from math import log2

import numpy as np
from tvm import IRModule
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from tvm_scan.delta_rule import TimeLoop
from tvm_scan.schedules.analysis import analyse
from tvm_scan.schedules.annotated import annotated_plans
from tvm_scan.schedules.machine.cost import Cost
from tvm_scan.schedules.machine.machine import Machine
from tvm_scan.schedules.plan import ScanPlan
from tvm_scan.schedules.registry import SCHEDULES


def decisions_of(plan: ScanPlan) -> list[float]:
    """A plan as numbers: logarithms of its sizes, 0 or 1 for what is decided so or so.

    Parameters
    ----------
    plan : ScanPlan
        Any plan.

    Returns
    -------
    list of float
        As many for every plan.
    """
    features = [float(type(plan) is schedule) for schedule in SCHEDULES]
    decisions = plan.decisions()
    for name, words in _every_decision().items():
        value = getattr(plan, name) if name in decisions else 0
        if words:
            features += [float(value == word) for word in words]
        else:
            features.append(log2(1 + int(value)))
    return features


def _every_decision() -> dict[str, tuple[str, ...]]:
    """Decisions of all schedules, each once, and their values where these are words."""
    return {name: s.words.get(name, ()) for s in SCHEDULES for name in s.decisions()}


def row_of(plan: ScanPlan, target: Target, recurrence: TimeLoop) -> list[float]:
    """Prediction and decisions of a plan for one recurrence.

    Parameters
    ----------
    plan : ScanPlan
        A plan that fits.
    target : tvm.target.Target
        What it is for.
    recurrence : Recurrence
        What runs.

    Returns
    -------
    list of float
        As many for every plan.
    """
    cost = plan.cost(recurrence, Machine.of(target))
    return [*cost.features(), *decisions_of(plan)]


class CandidateRows:
    """Rows of TVM's candidates: those of their plans, and their stores in sum and at most.

    Beside our plans a candidate of TVM's spaces has what TVM's own rules decided, which shows in
    TVM's features of its stores. These take up to a second for an unrolled kernel, and a population
    is asked about again and again, so what was extracted is kept.
    """

    def __init__(self) -> None:
        self._stores = ms.feature_extractor.PerStoreFeature()
        self._mod: IRModule | None = None
        self._known: dict[str, np.ndarray] = {}

    def of(self, context: ms.TuneContext, candidates: Sequence[ms.MeasureCandidate]) -> np.ndarray:
        """Return a matrix with a row for each candidate.

        Parameters
        ----------
        context : TuneContext
            Of their task.
        candidates : sequence of MeasureCandidate
            Expanded.

        Returns
        -------
        ndarray
            All rows of a task are of one length.
        """
        if self._mod is None or not self._mod.same_as(context.mod):
            self._mod, self._known = context.mod, {}
        names = [str(candidate.sch.trace) for candidate in candidates]
        new = {n: c for n, c in zip(names, candidates, strict=True) if n not in self._known}
        if new:
            self._known.update(zip(new, self._extracted(context, list(new.values())), strict=True))
        return np.array([self._known[name] for name in names])

    def _extracted(
        self, context: ms.TuneContext, candidates: list[ms.MeasureCandidate]
    ) -> list[np.ndarray]:
        recurrences = analyse(context.mod["main"]).accepted
        width = len(fields(Cost)) + len(decisions_of(SCHEDULES[0]()))
        out = []
        stores = self._stores.extract_from(context, candidates)
        for candidate, matrix in zip(candidates, stores, strict=True):
            rows = matrix.numpy()
            summed = np.log2(1 + np.abs(rows)).sum(0), rows.max(0, initial=0.0)
            sch = Schedule(context.mod)
            candidate.sch.trace.apply_to_schedule(sch, remove_postproc=False)
            plans = [plan for _, plan in annotated_plans(sch)]
            ours = np.zeros(width * len(recurrences))
            for number, (plan, recurrence) in enumerate(zip(plans, recurrences, strict=False)):
                ours[number * width : (number + 1) * width] = row_of(
                    plan, context.target, recurrence
                )
            out.append(np.concatenate([ours, *summed]))
        return out
