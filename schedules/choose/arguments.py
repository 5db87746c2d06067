"""Arguments of callers: a plan for all loops or a choice for each, a target, a block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm.ir import Expr
from tvm.s_tir import SBlock, Schedule
from tvm.s_tir.schedule import SBlockRV
from tvm.target import Target

from tvm_scan.arguments import as_target, host_target
from tvm_scan.delta_rule import TimeLoop
from tvm_scan.errors import PlanError, ScanError
from tvm_scan.schedules.choose.default import default_plan
from tvm_scan.schedules.machine.device import device_of
from tvm_scan.schedules.plan import ScanPlan

Chooser = Callable[[TimeLoop], ScanPlan]


def as_plan(value: Any, caller: str) -> ScanPlan:
    """The plan that a caller gave, as a plan or as its string.

    Raises
    ------
    PlanError
        If it is neither.
    """
    if isinstance(value, ScanPlan):
        return value
    if isinstance(value, str):
        return ScanPlan.parse(value)
    raise PlanError(
        f"{caller}: expected a ScanPlan or the string of one, got {type(value).__name__}; give "
        "none to have one chosen, or for instance 'cpu/lanes(lane_block=4)'"
    )


def as_choice(value: Any, caller: str) -> ScanPlan | Chooser | None:
    """The plan that a caller gave for all recurrences, or the function that chooses for each.

    Parameters
    ----------
    value : ScanPlan, str, callable or None
        One plan for all, or a function from a recurrence to its plan.
    caller : str
        Name of the public function, for the message.

    Returns
    -------
    ScanPlan, callable or None
        None where the caller gave none.

    Raises
    ------
    PlanError
        If it is something else, or the string of no plan.
    """
    if callable(value) and not isinstance(value, Expr | type):  # a PrimFunc can be called, too
        return lambda recurrence: as_plan(value(recurrence), caller)
    return None if value is None else as_plan(value, caller)


def target_for(target: Target | str | None, plan: ScanPlan | None, caller: str) -> Target:
    """Return the target that was given, else the current one, else one that the plan is for."""
    known = as_target(target, caller) or Target.current(allow_none=True)
    return known or target_of_plan(plan, caller)


def target_of_plan(plan: ScanPlan | None, caller: str) -> Target:
    """A target that a plan is for; this machine without one."""
    return (None if plan is None else as_target(plan.device, caller)) or host_target()


def check_fits(
    plan: ScanPlan, target: Target, recurrence: TimeLoop, *, for_all: bool = False
) -> None:
    """Check a plan that somebody gave; see ``ScanPlan.check``.

    Of a GPU a plan that fits is named, and where the plan was given for several loops, how to give
    each its own.
    """
    try:
        plan.check(target, recurrence)
    except PlanError as error:
        said = f"{error}{_what_works(target, recurrence)}"
        if not for_all:
            raise PlanError(said) from error
        raise PlanError(
            f"{said}\nthe plan was given for every loop of the function, and this is the one over "
            f"{recurrence.time.var.name} that writes {_names(recurrence.outputs)}: leave the plan "
            "out, or give a function from a recurrence to its plan"
        ) from error


def _what_works(target: Target, recurrence: TimeLoop) -> str:
    """Say which plan fits a GPU; nothing where none does."""
    device = device_of(target)
    if not device.is_gpu:
        return ""
    try:
        return f"; on {device.name} {default_plan(target, recurrence)} works"
    except PlanError:
        return ""


def _names(buffers: tuple[Any, ...]) -> str:
    return ", ".join(str(buffer.name) for buffer in buffers)


def block_at(sch: Schedule, block: Any) -> SBlock:
    """The block that a caller of ``parallel_scan`` named."""
    if not isinstance(sch, Schedule):
        raise ScanError(
            f"parallel_scan: expected a Schedule, got {type(sch).__name__}; make one with "
            "tvm.s_tir.Schedule(func), or call parallelize(func)"
        )
    if not isinstance(block, SBlockRV):
        shown = repr(block) if isinstance(block, str) else type(block).__name__
        name = block if isinstance(block, str) else "NAME"
        raise ScanError(
            f"parallel_scan: expected a block of the schedule, got {shown}; "
            f"pass sch.get_sblock({name!r})"
        )
    return sch.get(block)
