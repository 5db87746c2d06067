"""``ParallelizeScans`` and ``ExpandScans``: the passes that schedule."""

from __future__ import annotations

import logging
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import IRModule
from tvm.s_tir import Schedule
from tvm.target import Target

from tvm_scan import tir
from tvm_scan.annotations import IS_SCHEDULED, OP_PATTERN, OPAQUE_PATTERN
from tvm_scan.arguments import as_target
from tvm_scan.errors import PlanError, RefusalError, ScanError
from tvm_scan.extraction.threads import is_bound
from tvm_scan.meta.store.arguments import as_database
from tvm_scan.meta.store.dispatch import dispatched
from tvm_scan.meta.store.nearest import tuned_function
from tvm_scan.relax.findings import FindScans, ScanReport, called_functions
from tvm_scan.relax.short import keep_for_one_step
from tvm_scan.schedules import expand_scans, parallelize
from tvm_scan.schedules.choose.plan_of import plan_of
from tvm_scan.schedules.leftover import schedule_leftovers
from tvm_scan.schedules.machine.device import DEVICES, Device, device_of
from tvm_scan.schedules.splice import ensure_blocks

_LOG = logging.getLogger("tvm_scan")


def ParallelizeScans(
    target: Target | str | None = None, database: Any = None
) -> tvm.ir.transform.Pass:
    """Schedule the recurrences of a module: tuned where there is a record, else by default.

    The default is the plan of a shipped record of a near shape, then that of ``default_plan``.

    Put it in front of TVM's own schedule rules: a function that it scheduled carries
    ``tirx.is_scheduled`` and is left alone by them. Every other function stays as it is, and the
    reason of a refusal is logged to ``tvm_scan`` at INFO. On CUDA, where TVM's rules raise on an
    ordered loop, a refused one is a serial scan in one thread for each independent lane. On a CPU,
    which has no threads to bind to, every function that is bound to some runs without.

    Parameters
    ----------
    target : tvm.target.Target or str, optional
        The current target, else this machine's CPU.
    database : RecordStore, tvm.s_tir.meta_schedule.Database or path, optional
        Tuning records; looked up first, for this target. Of a ``tvm_scan.meta.RecordStore`` also
        those of the nearest shapes are used, see ``tvm_scan.meta.plan_for``.

    Returns
    -------
    Pass
        A module pass.

    Raises
    ------
    ScanError
        If the target is none that scans are scheduled for, or the database is none.
    """
    name = "ParallelizeScans"
    target, database = as_target(target, name), as_database(database, name)

    @tvm.ir.transform.module_pass(opt_level=0, name="ParallelizeScans")
    def run(mod: IRModule, _context: Any) -> IRModule:
        chosen = target or Target.current(allow_none=True)
        out = mod.clone()
        for report in FindScans(mod):
            for refusal in report.refused:
                _LOG.info("%s is left sequential: %s", report.name, refusal)
            name = mod.get_global_var(report.name)
            scheduled = _schedule(mod[name], chosen, report, database) or _fenced(mod[name])
            if scheduled is not None:
                # Fusing anything into a scheduled kernel would undo the schedule.
                out.update_func(name, scheduled.with_attr(OP_PATTERN, OPAQUE_PATTERN))
        device = DEVICES["llvm"] if chosen is None else device_of(chosen)
        if not device.is_gpu:
            for name in called_functions(out):
                if isinstance(func := out[name], tirx.PrimFunc) and is_bound(func.body):
                    plain = _by_lanes(func, device, str(name.name_hint))
                    out.update_func(name, func if plain is None else plain)
        return out

    return run


def ExpandScans() -> tvm.ir.transform.Pass:
    """Expand the plans that a tuning record left as annotations.

    Put it behind ``relax.transform.MetaScheduleApplyDatabase``: what that replays is annotated,
    and without this pass stays the sequential loop.

    Returns
    -------
    Pass
        A module pass.
    """

    @tvm.ir.transform.module_pass(opt_level=0, name="ExpandScans")
    def run(mod: IRModule, _context: Any) -> IRModule:
        return expand_scans(mod)

    return run


def _schedule(
    func: tirx.PrimFunc, target: Target | None, report: ScanReport, database: Any
) -> tirx.PrimFunc | None:
    done = bool((func.attrs or {}).get(IS_SCHEDULED, False))
    if not report.accepted:
        return None if done else _on_gpu(func, target, report.name)
    several = None if done or target is None else dispatched(func, target, database)
    if several is not None:
        _LOG.info("%s holds plans by length: %s", report.name, several[1])
        return several[0]
    if database is not None and target is not None:
        tuned = tuned_function(database, func, target)
        if tuned is not None:
            if tuned.exact:
                _LOG.info("%s is scheduled from a tuning record", report.name)
            else:
                _LOG.info("%s: the nearest records give %s", report.name, tuned.plans)
            return tuned.func
        _LOG.info("%s has no tuning record for this target: its default plan", report.name)
    on_gpu = target is not None and device_of(target).is_gpu
    if done and report.deltas and _is_one_step(report) and on_gpu:
        _LOG.info("%s has one step: it stays as it was scheduled", report.name)
        return None
    try:
        if done and all(plan_of(loop, target).keeps_loop for loop in report.accepted):
            return None
        scheduled = parallelize(func, target)
        return keep_for_one_step(func, scheduled, report.accepted, target) if done else scheduled
    except (RefusalError, PlanError) as error:
        _LOG.info("%s is left sequential: %s", report.name, error)
        return None if done else _on_gpu(func, target, report.name)


def _is_one_step(report: ScanReport) -> bool:
    lengths = [tir.as_int(each.time.extent) for each in report.accepted]
    return all(length is not None and length <= 1 for length in lengths)


def _by_lanes(func: tirx.PrimFunc, device: Device, name: str) -> tirx.PrimFunc | None:
    """A function with a thread for each lane of a GPU, and without threads on a CPU.

    None where that would be another program.
    """
    sch = Schedule(ensure_blocks(func))
    try:
        schedule_leftovers(sch, device)
    except ScanError as error:
        why = "cannot be bound to threads" if device.is_gpu else "keeps its threads on a CPU"
        _LOG.info("%s %s: %s", name, why, error)
        return None
    return sch.mod["main"].with_attrs({**dict(func.attrs or {}), IS_SCHEDULED: True})


def _fenced(func: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """A refused function that TVM's FuseOps would choke on, in blocks; None where it would not.

    FuseOps takes an ordered loop for an elementwise one, and FuseTIR then raises on a function of
    plain loops and on shapes that are not of int64.
    """
    done = (func.attrs or {}).get(IS_SCHEDULED, False)
    extents = [extent for param in func.params for extent in tir.shape_of(param)]
    whole = ensure_blocks(func)
    plain = not whole.same_as(func)
    if done or not (plain or any(tir.dtype_of(extent) != "int64" for extent in extents)):
        return None
    return whole


def _on_gpu(func: tirx.PrimFunc, target: Target | None, name: str) -> tirx.PrimFunc | None:
    """A refused function for a GPU, where TVM has no schedule for ordered loops at all."""
    device = None if target is None else device_of(target)
    return None if device is None or not device.is_gpu else _by_lanes(func, device, name)
