"""The way from a record of a stock database to the tree: replay the trace, then expand."""

from __future__ import annotations

import logging
from typing import Any

from tvm import IRModule
from tvm.s_tir import Schedule
from tvm.target import Target
from tvm.tirx import PrimFunc

from tvm_scan.annotations import IS_SCHEDULED
from tvm_scan.arguments import as_func
from tvm_scan.errors import PlanError
from tvm_scan.recurrence import Refusal
from tvm_scan.schedules import expand_scans
from tvm_scan.schedules.analysis import analyse, finding_at
from tvm_scan.schedules.annotated import annotated_plans
from tvm_scan.schedules.choose.arguments import target_for
from tvm_scan.schedules.choose.unfit import why_unfit
from tvm_scan.schedules.leftover import schedule_leftovers
from tvm_scan.schedules.machine.device import device_of
from tvm_scan.schedules.splice import nest_of

_LOG = logging.getLogger("tvm_scan")


def replay(database: Any, func: PrimFunc, target: Target | str) -> PrimFunc | None:
    """Apply the best record of a function and expand its annotations.

    A trace holds the decisions as stock annotations; without the expansion it replays to the
    sequential loop, which is slower and never wrong.

    Parameters
    ----------
    database : tvm.s_tir.meta_schedule.database.Database
        For example a ``JSONDatabase``.
    func : PrimFunc
        The sequential function that was tuned.
    target : tvm.target.Target or str
        The target it was tuned for.

    Returns
    -------
    PrimFunc or None
        The scheduled function; None where the database has no record of it, or one whose plan does
        not fit.

    Raises
    ------
    ScanError
        If it is no function, or no target.
    """
    func, target = as_func(func, "replay"), target_for(target, None, "replay")
    record = None
    for mod in workloads(func):
        record = database.query_tuning_record(mod, target, "main")
        if record is not None:
            break
    try:
        return None if record is None else replay_record(record, mod, func, target)
    except PlanError as error:
        _LOG.warning(
            "a record of %s is not used: %s", (func.attrs or {}).get("global_symbol"), error
        )
        return None


def replay_record(record: Any, mod: IRModule, func: PrimFunc, target: Target) -> PrimFunc:
    """Apply one record and expand its annotations.

    Parameters
    ----------
    record : tvm.s_tir.meta_schedule.database.TuningRecord
        Whose trace is applied.
    mod : IRModule
        Its workload, or one that is structurally the same.
    func : PrimFunc
        Whose name and marks the result has.
    target : tvm.target.Target
        The target it was tuned for.

    Returns
    -------
    PrimFunc
        The scheduled function.

    Raises
    ------
    PlanError
        If a plan does not fit, be it because the record was made for another target.
    """
    sch = Schedule(mod)
    record.trace.apply_to_schedule(sch, remove_postproc=False)
    for block, plan in annotated_plans(sch):
        recurrence = finding_at(*nest_of(sch, block))
        reason = (
            "no recurrence"
            if isinstance(recurrence, Refusal)
            else why_unfit(plan, target, recurrence)
        )
        if reason is not None:
            raise PlanError(f"replay: expected a record whose plan fits, got {plan}: {reason}")
    with target:
        expand_scans(sch)
    schedule_leftovers(sch, device_of(target))
    return sch.mod["main"].with_attrs({**dict(func.attrs or {}), IS_SCHEDULED: True})


def workloads(func: PrimFunc) -> list[IRModule]:
    """The function as it stands, and as TVM's ``tune_tir`` writes it into a database."""
    blocked = analyse(func).func
    named = blocked
    if not (func.attrs and "global_symbol" in func.attrs):
        named = blocked.with_attr("global_symbol", "main")
    return [IRModule({"main": f}) for f in (blocked, named.with_attr("tirx.noalias", True))]
