"""``parallel_scan``: check, annotate, expand. ``expand_scans``: the only expansion point.

A schedule's trace does not record a rewrite that Python makes. So the decisions are traced, as
stock scalar annotations on the block, and the rewrite is a function of the annotated program:
replaying the trace and expanding again gives the same program.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import SBlock, Schedule
from tvm.target import Target

from tvm_scan.annotations import PLAN_PREFIX
from tvm_scan.delta_rule import TimeLoop
from tvm_scan.errors import RefusalError, ScanError
from tvm_scan.extraction.threads import without_threads
from tvm_scan.recurrence import Refusal
from tvm_scan.schedules.analysis import finding_at
from tvm_scan.schedules.annotated import first_annotated, is_annotated
from tvm_scan.schedules.choose.arguments import (
    as_plan,
    block_at,
    check_fits,
    target_for,
    target_of_plan,
)
from tvm_scan.schedules.choose.plan_of import plan_of
from tvm_scan.schedules.common.result import Built
from tvm_scan.schedules.machine.device import Device, device_of
from tvm_scan.schedules.machine.machine import Machine
from tvm_scan.schedules.machine.terms import in_terms_of
from tvm_scan.schedules.plan import ScanPlan
from tvm_scan.schedules.splice import ensure_blocks, nest_of, silent, splice


def parallel_scan(
    sch: Schedule,
    block: Any,
    plan: ScanPlan | str | None = None,
    *,
    target: Target | str | None = None,
) -> ScanPlan:
    """Rewrite the sequential time loop around a block into a parallel scan.

    Why: a loop ``h[t] = a[t] h[t-1] + x[t]`` looks sequential, but its steps compose, so that
    chunks of time can be reduced on their own, their effects scanned as a tree, and the loop
    body replayed from the carry at the head of each chunk.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        The schedule. Its block variables stay valid; ``block`` means the replaying block
        afterwards.
    block : SBlockRV
        A block of the loop nest.
    plan : ScanPlan or str, optional
        The decisions, or their string; ``plan_of`` the recurrence if not given.
    target : tvm.target.Target or str, optional
        Whose limits the plan must fit; the current target, else this machine for a CPU plan.

    Returns
    -------
    ScanPlan
        The plan that was applied.

    Raises
    ------
    RefusalError
        If the nest is provably neither a supported recurrence nor a delta rule; the message
        underlines why.
    PlanError
        If the plan does not fit the target, with the numbers.

    Notes
    -----
    Before::

        for b, t in T.grid(B, L):
            with T.sblock("scan"):
                H[vb, vt] = T.if_then_else(vt > 0, H[vb, vt - 1], 0) * A[vb, vt] + X[vb, vt]

    After, for ``cpu/three_phase(chunks=C)``::

        for task in T.parallel(B * C):  with T.sblock("scan_reduce"):  ...  # chunk -> (a, b)
        for row in T.parallel(B):       with T.sblock("scan_carries"): ...  # scan of (a, b)
        for task in T.parallel(B * C):  with T.sblock("scan_replay"):  ...  # body from the carry

    Preconditions: (1) the nest is a statement of the root block; (2) it is a recurrence of a
    known family, see ``tvm_scan.extract``, or a delta rule; (3) parameters do not overlap.
    """
    # ---- check ----------------------------------------------------------------------------
    func, nest = nest_of(sch, block_at(sch, block))
    recurrence = finding_at(func, nest)
    if isinstance(recurrence, Refusal):
        raise RefusalError(recurrence.message(), recurrence)
    plan = None if plan is None else as_plan(plan, "parallel_scan")
    on = target_for(target, plan, "parallel_scan")
    plan = plan or plan_of(recurrence, on)
    check_fits(plan, on, recurrence)
    # ---- build and replace ----------------------------------------------------------------
    for name, value in plan.annotations().items():
        sch.annotate(block, PLAN_PREFIX + name, value)
    with on:
        expand_scans(sch)
    return plan


def expand_scans(program: Any) -> Any:
    """Expand every annotated nest into the tree that its plan describes.

    Parameters
    ----------
    program : Schedule, IRModule or PrimFunc
        A schedule is changed in place, without a trace; of the others a new one is returned.
        Nests without annotations are left alone.

    Returns
    -------
    Schedule, IRModule or PrimFunc
        As given.

    Raises
    ------
    RefusalError
        If an annotated nest is no recurrence (it was changed after the annotation).
    PlanError
        If a plan does not fit: annotations may be a record's, which anybody may have written.
    """
    if isinstance(program, tirx.PrimFunc):
        sch = Schedule(ensure_blocks(program))
        expand_scans(sch)
        return sch.mod["main"].with_attrs(dict(program.attrs or {}))
    if isinstance(program, tvm.IRModule):
        mod = program.clone()
        for name, func in program.functions_items():
            if isinstance(func, tirx.PrimFunc) and is_annotated(func):
                mod.update_func(name, expand_scans(func))
        return mod
    if not isinstance(program, Schedule):
        raise ScanError(
            "expand_scans: expected a Schedule, an IRModule or a PrimFunc, "
            f"got {type(program).__name__}"
        )
    while todo := first_annotated(program):
        _expand(program, *todo)
    return program


def build(recurrence: TimeLoop, plan: ScanPlan, device: Device) -> Built | None:
    """Statements of a plan, in the terms of a device; pure.

    Parameters
    ----------
    recurrence : Recurrence or DeltaRule
        What to build.
    plan : ScanPlan
        A plan that passed ``check``.
    device : Device
        Where it will run.

    Returns
    -------
    Built or None
        None for the nest as it is.
    """
    built = plan.build(recurrence)
    if built is None:
        return None
    parts = [dtype for algebra in recurrence.algebras for dtype in algebra.dtypes]
    signed = any(dtype.startswith("int") for dtype in parts)
    nests = [in_terms_of(device, nest, signed=signed) for nest in built.nests]
    return Built(nests, built.allocs)


def _expand(sch: Schedule, block: SBlock, plan: ScanPlan) -> None:
    func, nest = nest_of(sch, block)
    recurrence = finding_at(func, nest)
    if isinstance(recurrence, Refusal):
        raise RefusalError(recurrence.message(), recurrence)
    device = _check_annotated(plan, recurrence)
    built = build(recurrence, plan, device)
    if built is not None:
        splice(sch, block, nest, built)
        return
    with silent(sch):
        rv = sch.get_sblock(block.name_hint, _name_of(sch, func))
        for key in block.annotations.keys():
            if str(key).startswith(PLAN_PREFIX):
                sch.unannotate(rv, key)
    unbind(sch, sch.get(rv), device)


def _check_annotated(plan: ScanPlan, recurrence: TimeLoop) -> Device:
    """Check the plan of an annotation, and return what it runs on."""
    target = Target.current(allow_none=True)
    if target is not None and device_of(target).plans == plan.device:
        plan.check(target, recurrence)
        return device_of(target)
    # What it is for is not known here, so that what only some processors have is taken for had.
    machine = Machine.of(target_of_plan(plan, "expand_scans"))
    plan.check_on(replace(machine, ldexp=True, line_stores=True), recurrence)
    return machine.device


def unbind(sch: Schedule, block: SBlock, device: Device) -> None:
    """Make loops of the threads that a loop was bound to by hand, for a CPU, which has none."""
    _, nest = nest_of(sch, block)
    serial = in_terms_of(device, without_threads(nest))
    if not serial.same_as(nest):
        splice(sch, block, nest, Built([serial], []))


def _name_of(sch: Schedule, func: tirx.PrimFunc) -> str:
    for name, other in sch.mod.functions_items():
        if other.same_as(func):
            return str(name.name_hint)
    raise ScanError("expand_scans: the function is not in the schedule's module")
