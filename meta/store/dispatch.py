"""Plans for a length that is known at run time only: from records and defaults, by length."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from math import log
from typing import Any

from tvm import tirx
from tvm.target import Target

from tvm_scan import tir
from tvm_scan.arguments import as_recurrence
from tvm_scan.delta_rule import TimeLoop
from tvm_scan.errors import PlanError, RefusalError
from tvm_scan.meta.store.database import RecordStore
from tvm_scan.meta.store.nearest import known_plans
from tvm_scan.recurrence import Axis
from tvm_scan.schedules.analysis import analyse
from tvm_scan.schedules.choose.arguments import target_for
from tvm_scan.schedules.choose.nearest import nearest
from tvm_scan.schedules.choose.plan_of import plan_of
from tvm_scan.schedules.dispatch import dispatch_by_length, stands_in_branch
from tvm_scan.schedules.machine.device import device_of
from tvm_scan.schedules.machine.machine import Machine
from tvm_scan.schedules.plan import ScanPlan

#: Lengths that are asked about, as powers of two.
_SHORTEST, _LONGEST = 3, 22
#: Most plans in one function: its code grows with each.
_BRANCHES = 3

Case = tuple[int | None, ScanPlan]


def plans_by_length(
    recurrence: TimeLoop, target: Target | str, database: RecordStore | None = None
) -> list[Case]:
    """The plans to hold in one function whose length is known at run time.

    For every power of two it is the plan that a recurrence of this length would have: of the
    nearest record, else of a shipped one, else the default. Neighbours with one plan are one
    case; beyond three cases the one joins its neighbour that loses least by it: no plan of a
    record, if others can, and by their predictions.

    Parameters
    ----------
    recurrence : Recurrence or DeltaRule
        Of symbolic length.
    target : tvm.target.Target or str
        What it is compiled for.
    database : RecordStore, optional
        Records to ask first.

    Returns
    -------
    list of (int or None, ScanPlan)
        The largest length of each case, ascending; None for the last.

    Raises
    ------
    RefusalError
        If it is a refusal.
    ScanError
        If it is no recurrence, or the target is none.
    """
    recurrence = as_recurrence(recurrence, "plans_by_length")
    target = target_for(target, None, "plans_by_length")
    known = [] if database is None else known_plans(database, target)
    dtype = tir.dtype_of(recurrence.time.extent)
    plans, sizes, recorded = [], {}, set()
    for power in range(_SHORTEST, _LONGEST + 1):
        extent = tirx.IntImm(dtype, 1 << power)
        sized = replace(recurrence, time=Axis(recurrence.time.var, extent))
        hit = nearest(known, target, sized)
        plan = (hit and hit.plan) or plan_of(sized, target)
        plan.check(target, recurrence)
        plans.append((power, plan))
        sizes[power] = sized
        recorded |= {power} if hit else set()
    machine = Machine.of(target)

    def lost(run: list[int], other: ScanPlan) -> tuple[int, float]:
        """Number of records that are left out where a run takes another plan, and its loss."""
        each = (
            other.cost(sizes[p], machine).seconds / chosen[p].cost(sizes[p], machine).seconds
            for p in run
        )
        return sum(p in recorded for p in run), sum(log(max(1.0, ratio)) for ratio in each)

    runs = [[p for p, _ in run] for _, run in groupby(plans, key=lambda pair: pair[1])]
    chosen = dict(plans)
    while len(runs) > _BRANCHES:
        pairs = [pair for i in range(1, len(runs)) for pair in ((i - 1, i), (i, i - 1))]
        run, into = min(pairs, key=lambda pair: lost(runs[pair[0]], chosen[runs[pair[1]][0]]))
        chosen.update(dict.fromkeys(runs[run], chosen[runs[into][0]]))
        # What was on both sides of it may be one plan.
        runs = [list(run) for _, run in groupby(chosen, key=chosen.__getitem__)]
    # The plan of 2^k serves up to the middle, by ratio, between it and the next.
    ends: list[int | None] = [int((1 << run[-1]) * 2**0.5) for run in runs[:-1]]
    return list(zip([*ends, None], [chosen[run[0]] for run in runs], strict=True))


def dispatched(
    func: tirx.PrimFunc, target: Target, database: Any = None
) -> tuple[tirx.PrimFunc, list[Case]] | None:
    """Hold several plans in a function of symbolic length, if they differ by length.

    Parameters
    ----------
    func : PrimFunc
        The sequential function.
    target : tvm.target.Target
        A CPU; or a GPU, where all plans must be walks over whole lanes or chunks of them, since TVM
        puts no barrier into a branch.
    database : RecordStore, optional
        Records to ask first. A stock database is not asked: on a GPU it is left to the caller.

    Returns
    -------
    tuple of (PrimFunc, list) or None
        The scheduled function and its cases; None where one plan serves all lengths, where the
        length is constant, or where there are several recurrences or delta rules.
    """
    accepted = analyse(func).accepted
    if len(accepted) != 1 or tir.as_int(accepted[0].time.extent) is not None:
        return None
    store = database if isinstance(database, RecordStore) else None
    if database is not store and device_of(target).is_gpu:
        return None
    try:
        cases = plans_by_length(accepted[0], target, store)
        if len(cases) < 2 or not all(stands_in_branch(plan) for _, plan in cases):
            return None
        return dispatch_by_length(func, target, cases), cases
    except (RefusalError, PlanError):
        return None
