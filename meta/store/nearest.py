"""The way from a database to a plan: the record of this function, or of its nearest shape."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.target import Target

from tvm_scan.arguments import as_recurrence
from tvm_scan.delta_rule import TimeLoop
from tvm_scan.errors import PlanError, RefusalError, ScanError
from tvm_scan.meta.store.arguments import as_database
from tvm_scan.meta.store.database import RecordStore
from tvm_scan.meta.store.entry import Entry
from tvm_scan.meta.store.replay import replay
from tvm_scan.schedules import parallelize
from tvm_scan.schedules.analysis import analyse
from tvm_scan.schedules.choose.arguments import target_for
from tvm_scan.schedules.choose.nearest import Known, nearest
from tvm_scan.schedules.choose.plan_of import plan_of
from tvm_scan.schedules.choose.shape_key import shape_key
from tvm_scan.schedules.common.sizes import sizes_of
from tvm_scan.schedules.machine.machine import Machine
from tvm_scan.schedules.plan import ScanPlan


@dataclass(frozen=True)
class Tuned:
    """A function with the plans of a database.

    Attributes
    ----------
    func : PrimFunc
        Scheduled.
    plans : tuple of ScanPlan
        One for each recurrence.
    records : tuple of str
        The records that they are from; empty for a plan that is from none.
    exact : bool
        Whether the record is of this very function.
    """

    func: tirx.PrimFunc
    plans: tuple[ScanPlan, ...]
    records: tuple[str, ...]
    exact: bool


def plan_for(
    recurrence: TimeLoop, target: Target | str, database: RecordStore | str | Path
) -> ScanPlan | None:
    """The plan that a database has for a recurrence.

    A record of the same function and target wins. Else it is the fastest plan of the nearest
    shape of the same recurrence on the same target: lanes and steps bucketed in powers of two, at
    most two of them away, the plan checked anew. A record of another target, another number of
    cores or another version is never used.

    Parameters
    ----------
    recurrence : Recurrence
        What ``tvm_scan.extract`` returned; its extents may be symbolic.
    target : tvm.target.Target or str
        What it is compiled for.
    database : RecordStore or path
        The records.

    Returns
    -------
    ScanPlan or None
        None where no record is near.

    Raises
    ------
    ScanError
        If there is no database.
    """
    recurrence = as_recurrence(recurrence, "plan_for")
    target = target_for(target, None, "plan_for")
    store = as_database(database, "plan_for")
    if not isinstance(store, RecordStore):
        raise ScanError(
            f"plan_for: expected a RecordStore or its folder, got {type(store).__name__}; records "
            "of another kind do not say of which shape they are"
        )
    exact = store.best(recurrence.func, target)
    if exact is not None:
        for plan, other in zip(exact.plans, analyse(recurrence.func).accepted, strict=False):
            if tvm_ffi.structural_equal(other.nest, recurrence.nest, map_free_vars=True):
                return plan
    found_near = nearest(known_plans(store, target), target, recurrence)
    return None if found_near is None else found_near.plan


def tuned_function(database: Any, func: tirx.PrimFunc, target: Target) -> Tuned | None:
    """Schedule a function by its record, or by those of its recurrences' nearest shapes.

    Parameters
    ----------
    database : RecordStore or Database
        A stock database has no provenance; of it only a record of this very function is used.
    func : PrimFunc
        The sequential function.
    target : tvm.target.Target
        What it is compiled for.

    Returns
    -------
    Tuned or None
        None where the database has nothing near.
    """
    scheduled = replay(database, func, target)
    if not isinstance(database, RecordStore):
        return None if scheduled is None else Tuned(scheduled, (), (), True)
    if scheduled is not None:
        entry = database.best(func, target)
        if entry is not None:
            return Tuned(scheduled, tuple(entry.plans), (entry.digest,), True)
    known = known_plans(database, target)
    hits: list[Known | None] = []
    plans: list[ScanPlan] = []

    def choose(recurrence: TimeLoop) -> ScanPlan:
        hit = nearest(known, target, recurrence)
        hits.append(hit)
        plans.append((hit and hit.plan) or plan_of(recurrence, target))
        return plans[-1]

    if not any(nearest(known, target, recurrence) for recurrence in analyse(func).accepted):
        return None
    try:
        near = parallelize(func, target, choose)
    except (RefusalError, PlanError):
        return None
    return Tuned(near, tuple(plans), tuple("" if h is None else h.record for h in hits), False)


def known_plans(store: RecordStore, target: Target) -> list[Known]:
    """Every usable record of a target, by recurrence and shape.

    Parameters
    ----------
    store : RecordStore
        The records.
    target : tvm.target.Target
        Must be theirs, with as many cores.

    Returns
    -------
    list of Known
        One for each recurrence of each record's function.
    """
    cores = Machine.of(target).cores
    plans = []
    for entry in store.usable(target)[0]:
        if (entry.facts or {}).get("cores", cores) != cores:
            continue
        for shape, plan in zip(_shapes(entry), entry.plans, strict=False):
            key, rows, length = shape
            if rows is not None and length is not None:
                plans.append(Known(key, rows, length, plan, entry.seconds, entry.digest))
    return plans


def shapes_of(func: tirx.PrimFunc) -> list[tuple[str, int | None, int | None]]:
    """Key, lanes and steps of every recurrence of a function."""
    return [(shape_key(recurrence), *sizes_of(recurrence)) for recurrence in analyse(func).accepted]


def _shapes(entry: Entry) -> list[tuple[str, int | None, int | None]]:
    return list(_of_workload(tuple(entry.workload)))


@lru_cache(maxsize=1024)
def _of_workload(workload: tuple[str, ...]) -> tuple[tuple[str, int | None, int | None], ...]:
    """Shapes of a workload's recurrences, found once for all of its records."""
    return tuple(shapes_of(Entry("", list(workload), [], None).func))
