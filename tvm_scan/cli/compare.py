"""``tvm-scan compare``: plans, records and databases of one recurrence, measured in turns."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tvm.target import Target
from tvm.tirx import PrimFunc

from tvm_scan import ScanPlan, default_plan, tir
from tvm_scan.cli.records import find_entry, open_store
from tvm_scan.cli.support.execute import Bound, interleaved_samples, prepare
from tvm_scan.cli.support.failure import NO_RECORD, WRONG_RESULT, CommandError
from tvm_scan.cli.support.load import Choice, Choose, find_recurrence, make_target, schedule
from tvm_scan.cli.support.terminal import print_json, print_table
from tvm_scan.cli.tune import load_program
from tvm_scan.errors import PlanError, ScanError
from tvm_scan.meta.measure.check import Case, compare, make_cases
from tvm_scan.meta.measure.progress import duration
from tvm_scan.meta.store.database import RecordStore
from tvm_scan.meta.store.nearest import tuned_function

__all__ = ["compare_sides"]

_LOOP, _DEFAULT = "loop", "default"


@dataclass(frozen=True, eq=False)
class _Side:
    """One of what is compared."""

    name: str
    plan: str
    func: PrimFunc


@dataclass(frozen=True)
class _Row:
    """Median seconds, and the ratio of the first side's time to this one's, round by round."""

    name: str
    plan: str
    seconds: float
    ratio: float
    low: float
    high: float
    rounds: int


def compare_sides(
    what: str,
    sides: list[str],
    name: str | None,
    shape: str | None,
    dtype: str,
    target_name: str,
    seconds: float,
    as_json: bool,
) -> None:
    """Print; see ``tvm-scan compare --help``."""
    target = make_target(target_name)
    program = load_program(what, name, shape, dtype)
    if len(program) != 1 or len(sides) < 2:
        raise CommandError(
            f"expected one function and at least two sides, got {len(program)} and {len(sides)}; "
            "give, for instance, loop default"
        )
    ((_, func),) = program.items()
    find_recurrence(func)
    made = [_side(text, func, target) for text in dict.fromkeys(sides)]
    try:
        cases = make_cases(func)
    except ScanError as error:
        raise CommandError(str(error)) from error
    rows, wrong = _measure(func, made, target, cases, seconds)
    report = {"function": what, "rows": [asdict(row) for row in rows], "wrong": wrong}
    print_json(report) if as_json else _show(rows)
    if wrong:
        raise CommandError("\n".join(wrong), WRONG_RESULT)


def _side(text: str, func: PrimFunc, target: Target) -> _Side:
    if text == _LOOP:
        return _Side(text, "the loop as it stands", func)
    if text == _DEFAULT:
        return _scheduled(
            text, func, target, Choice(target, lambda found, where: default_plan(where, found))
        )
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
    store = open_store(Path(folder))
    if digest:
        return _scheduled(text, func, target, Choice(target, _in_turn(store, digest)))
    tuned = tuned_function(store, func, target)
    if tuned is None:
        raise CommandError(
            f"expected a record near this function for this target in {folder}, found none; run "
            "tvm-scan tune",
            NO_RECORD,
        )
    shown = " + ".join(map(str, tuned.plans)) + ("" if tuned.exact else " (nearest shape)")
    return _Side(text, shown, tuned.func)


def _in_turn(store: RecordStore, digest: str) -> Choose:
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


def _scheduled(name: str, func: PrimFunc, target: Target, plan: ScanPlan | Choice) -> _Side:
    scheduled = schedule(func, target, plan)  # chooses the plans that are then shown
    return _Side(name, str(plan), scheduled)


def _measure(
    func: PrimFunc, sides: list[_Side], target: Target, cases: list[Case], seconds: float
) -> tuple[list[_Row], list[str]]:
    names = tuple(str(p.name) for p in func.params)
    stores = tir.buffers_stored(func.body)
    written = tuple(str(p.name) for p in func.params if p in stores)
    calls: dict[str, Any] = {}
    wrong = []
    for number, side in enumerate(sides):
        for case in reversed(cases):  # the first one stays for the timing
            arrays = dict(zip(names, case.inputs, strict=True))
            call, tensors = prepare(side.func, target, Bound(names, arrays, written))
            call()
            got = [tensors[names[position]].numpy() for position, _ in case.expected]
            difference = compare(case, got)
            if difference is not None:
                wrong.append(f"{side.name} ({side.plan}): {difference}")
        calls[str(number)] = call
    samples = interleaved_samples(calls, seconds)
    first = np.array(samples["0"])
    rows = []
    for number, side in enumerate(sides):
        taken = np.array(samples[str(number)])
        low, middle, high = np.percentile(first / taken, [25, 50, 75])
        about = (float(np.median(taken)), float(middle), float(low), float(high), len(taken))
        rows.append(_Row(side.name, side.plan, *about))
    return rows, wrong


def _show(rows: list[_Row]) -> None:
    shown = [
        (r.name, duration(r.seconds), f"{r.ratio:.2f}x", f"{r.low:.2f} to {r.high:.2f}", r.plan)
        for r in rows
    ]
    print_table(("side", "time", "speed", "middle half", "plan"), shown, plain=True)
    print(f"speed against {rows[0].name}, the median of {rows[0].rounds} rounds")
