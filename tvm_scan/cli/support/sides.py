"""Sides of a comparison: the loop, plans and records of one function, in turns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm.target import Target
from tvm.tirx import PrimFunc

from tvm_scan import ScanPlan, default_plan, parallelize
from tvm_scan.cli.support.execute import bound_call, compiled, interleaved_samples
from tvm_scan.cli.support.failure import NO_RECORD, CommandError
from tvm_scan.cli.support.load import Choice, Choose
from tvm_scan.cli.support.records import find_entry
from tvm_scan.errors import PlanError
from tvm_scan.meta.measure.check import Case, first_difference
from tvm_scan.meta.store.database import RecordStore
from tvm_scan.meta.store.nearest import tuned_function

_LOOP, _DEFAULT = "loop", "default"


@dataclass(frozen=True, eq=False)
class Side:
    """One of what is compared."""

    name: str
    plan: str
    func: PrimFunc


@dataclass(frozen=True)
class Row:
    """Median seconds, and the ratio of the first side's time to this one's, round by round."""

    name: str
    plan: str
    seconds: float
    ratio: float
    low: float
    high: float
    rounds: int


def side_of(text: str, func: PrimFunc, target: Target) -> Side:
    """Make what a user names something to measure.

    Parameters
    ----------
    text : str
        ``loop``, ``default``, a plan, a folder of records, or ``FOLDER@ID``.
    func : PrimFunc
        The loop.
    target : tvm.target.Target
        What to compile for.

    Raises
    ------
    CommandError
        If it names nothing of the kind.
    """
    if text == _LOOP:
        return Side(text, "the loop as it stands", func)
    if text == _DEFAULT:
        choice = Choice(target, lambda recurrence, where: default_plan(where, recurrence))
        return _scheduled(text, func, target, choice)
    folder, _, digest = text.rpartition("@")
    if not folder and Path(text).is_dir():
        folder, digest = text, ""
    if not folder:
        try:
            return _scheduled("plan", func, target, ScanPlan.parse(text))
        except PlanError as error:
            raise CommandError(
                f"expected loop, default, a plan, a folder of records or FOLDER@ID, got {text!r} "
                f"({error})"
            ) from error
    store = RecordStore(folder)
    if digest:
        return _scheduled(text, func, target, Choice(target, _plans_in_order(store, digest)))
    tuned = tuned_function(store, func, target)
    if tuned is None:
        raise CommandError(
            f"expected a record near this function for this target in {folder}, found none; run "
            "tvm-scan tune",
            NO_RECORD,
        )
    shown = " + ".join(map(str, tuned.plans)) + ("" if tuned.exact else " (nearest shape)")
    return Side(text, shown, tuned.func)


def _plans_in_order(store: RecordStore, digest: str) -> Choose:
    """The plans of a record, one for each recurrence in order."""
    plans = find_entry(store, digest).plans
    remaining = iter(plans)

    def choose(_target: Target, _found: object) -> ScanPlan:
        plan = next(remaining, None)
        if plan is None:
            raise CommandError(
                f"expected a record of a function with as many recurrences as this one, got "
                f"{digest} with {len(plans)}; give one of this function"
            )
        return plan

    return choose


def _scheduled(name: str, func: PrimFunc, target: Target, plan: ScanPlan | Choice) -> Side:
    scheduled = parallelize(func, target, plan)  # chooses the plans that are then shown
    return Side(name, str(plan), scheduled)


def measure_sides(
    sides: list[Side], target: Target, cases: list[Case], seconds: float
) -> tuple[list[Row], list[str]]:
    """Measure sides in turns, each after it was checked against the loop.

    Parameters
    ----------
    sides : list of Side
        What is measured; the first is what the others are compared with.
    target : tvm.target.Target
        What they were made for.
    cases : list of Case
        Inputs and what the loop makes of them; the first are those of the timing.
    seconds : float
        For all of them together.

    Returns
    -------
    rows : list of Row
        One for each side.
    wrong : list of str
        What was found of sides that are not the loop.
    """
    calls: dict[str, Any] = {}
    wrong = []
    for number, side in enumerate(sides):
        run, device = compiled(side.func, target)
        difference = first_difference(cases, run, device)
        if difference is not None:
            wrong.append(f"{side.name} ({side.plan}): {difference}")
        tensors = [tvm.runtime.tensor(array, device) for array in cases[0].inputs]
        calls[str(number)] = bound_call(run, device, tensors)
    samples = interleaved_samples(calls, seconds)
    first = np.array(samples["0"])
    rows = []
    for number, side in enumerate(sides):
        taken = np.array(samples[str(number)])
        low, middle, high = np.percentile(first / taken, [25, 50, 75])
        about = (float(np.median(taken)), float(middle), float(low), float(high), len(taken))
        rows.append(Row(side.name, side.plan, *about))
    return rows, wrong
