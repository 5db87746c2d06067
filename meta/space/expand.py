"""The postproc that expands the sampled plans, so that features and builds see the kernel."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import IRModule
from tvm.ir.utils import derived_object
from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from tvm_scan.annotations import SEQUENTIAL
from tvm_scan.meta.space.decisions import fits
from tvm_scan.recurrence import Refusal
from tvm_scan.schedules import expand_scans
from tvm_scan.schedules.analysis import finding_at
from tvm_scan.schedules.annotated import annotated_plans
from tvm_scan.schedules.leftover import schedule_leftovers
from tvm_scan.schedules.machine.device import device_of
from tvm_scan.schedules.splice import nest_of, silent

#: Sequential programs by the mark on their candidates.
_MARKED: dict[str, IRModule] = {}


def expand_checked(sch: Schedule, target: Target) -> bool:
    """Expand every annotated nest, if all plans fit.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        Changed in place, its trace is not.
    target : tvm.target.Target
        Whose limits hold.

    Returns
    -------
    bool
        False where a plan does not fit or a nest is no recurrence; then nothing is expanded.
    """
    for block, plan in annotated_plans(sch):
        func, nest = nest_of(sch, block)
        recurrence = finding_at(func, nest)
        if isinstance(recurrence, Refusal) or not fits(plan, target, recurrence):
            return False
    with target:
        expand_scans(sch)
    schedule_leftovers(sch, device_of(target))
    return True


def mark(sch: Schedule, mod: IRModule) -> None:
    """Say on a candidate's root block which program it was made from; not in its trace.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        The candidate.
    mod : IRModule
        The sequential program, of one function called ``main``.
    """
    key = str(tvm_ffi.structural_hash(mod))
    _MARKED[key] = mod
    with silent(sch):
        sch.annotate(_root(sch), SEQUENTIAL, key)


def unmark(sch: Schedule) -> IRModule | None:
    """Take the mark off.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        A candidate.

    Returns
    -------
    IRModule or None
        What it was made from; None where there is no mark.
    """
    with silent(sch):
        root = _root(sch)
        key = sch.get(root).annotations.get(SEQUENTIAL)
        if key is not None:
            sch.unannotate(root, SEQUENTIAL)
    return None if key is None else _MARKED[str(key)]


def _root(sch: Schedule) -> Any:
    return sch.get_sblock(sch.mod["main"].body.block.name_hint)


@derived_object
class ExpandScansPostproc(ms.postproc.PyPostproc):
    """Expands silently; what does not fit is answered with False, before anything is built.

    Parameters
    ----------
    marked : bool
        Whether to ``mark`` what is expanded, for ``meta.checked``.
    """

    def __init__(self, marked: bool = False) -> None:
        super().__init__()
        self.marked = marked

    def _initialize_with_tune_context(self, context: ms.TuneContext) -> None:
        self.target, self.mod = context.target, context.mod

    def apply(self, sch: Schedule) -> bool:
        """Return whether the candidate can be built."""
        try:
            ours = bool(annotated_plans(sch))
            fits_all = expand_checked(sch, self.target)
        except ScheduleError:  # of ours too: no candidate, but no end of the search either
            return False
        if fits_all and ours and self.marked:
            mark(sch, self.mod)
        return fits_all

    def clone(self) -> ExpandScansPostproc:
        """A postproc of its own for another thread."""
        return ExpandScansPostproc(self.marked)
