"""``parallelize``: a function with loops in, a scheduled function out."""

from __future__ import annotations

from tvm import tirx
from tvm.target import Target

from tvm_scan.arguments import as_func
from tvm_scan.schedules.choose.arguments import Chooser, as_choice, target_for
from tvm_scan.schedules.nests import schedule_nests
from tvm_scan.schedules.plan import ScanPlan
from tvm_scan.schedules.verification.verify import check_verified
from tvm_scan.schedules.verification.verify import verify as compare


def parallelize(
    func: tirx.PrimFunc,
    target: Target | str | None = None,
    plan: ScanPlan | str | Chooser | None = None,
    *,
    verify: bool = False,
) -> tirx.PrimFunc:
    """Schedule every recurrence of a function, and make the rest runnable on the target.

    A delta rule, which is no scan, runs in chunks of matrix products unless one plan is given.

    Parameters
    ----------
    func : PrimFunc
        A function with at least one sequential time loop.
    target : tvm.target.Target or str, optional
        The current target, else this machine's CPU with its own instruction set, which is also
        ``"cpu"``.
    plan : ScanPlan, str or callable, optional
        One plan for every recurrence of the function, as it is or as its string, or a function
        from a recurrence to its plan. If not given each has its own ``plan_of``: that of a
        shipped record of the nearest shape, else the default.
    verify : bool
        Whether to compile and run both forms first, on random and adversarial inputs; see
        ``tvm_scan.verify``. It takes seconds, and a device of the target.

    Returns
    -------
    PrimFunc
        The scheduled function, marked as such for TVM's own passes.

    Raises
    ------
    RefusalError
        If no nest of the function is a recurrence.
    PlanError
        If the plan does not fit.
    ScanError
        If ``verify`` finds a result beyond its bound, or an argument is of another kind.
    """
    func, plan = as_func(func, "parallelize"), as_choice(plan, "parallelize")
    same_plan = plan if isinstance(plan, ScanPlan) else None
    target = target_for(target, same_plan, "parallelize")
    if verify:
        check_verified(compare(func, target, plan))
    return schedule_nests(func, target, plan)
