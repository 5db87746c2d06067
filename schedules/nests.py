"""Every recurrence of a function, each with a plan of its own, and the rest made runnable."""

from __future__ import annotations

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.target import Target

from tvm_scan.annotations import IS_SCHEDULED
from tvm_scan.errors import RefusalError
from tvm_scan.extraction import extract
from tvm_scan.recurrence import Refusal
from tvm_scan.schedules.analysis import analyse
from tvm_scan.schedules.choose.arguments import Chooser, check_fits
from tvm_scan.schedules.choose.plan_of import plan_of
from tvm_scan.schedules.leftover import schedule_leftovers
from tvm_scan.schedules.machine.device import device_of
from tvm_scan.schedules.plan import ScanPlan
from tvm_scan.schedules.primitive import build, unbind
from tvm_scan.schedules.splice import blocks_in, nest_of, splice

#: Refusals of loops that are none of ours: another one says more.
_PLAIN = ("no-recurrence", "plain-reduction")


def schedule_nests(
    func: tirx.PrimFunc, target: Target, plan: ScanPlan | Chooser | None
) -> tirx.PrimFunc:
    """Schedule every recurrence of a function; see ``parallelize``."""
    same_plan = plan if isinstance(plan, ScanPlan) else None
    analysis = analyse(func)
    sch = Schedule(analysis.func)
    # Each nest is what it is in the function as it was written, whatever becomes of the others.
    nests = [
        (b[0], finding)
        for nest, finding in zip(analysis.nests, analysis.findings, strict=True)
        if (b := blocks_in(nest))
    ]
    refusals: list[Refusal] = []
    device = device_of(target)
    applied = 0
    for block, finding in nests:
        if isinstance(finding, Refusal):
            refusals.append(finding)
            continue
        nest = nest_of(sch, block)[1]
        chosen = plan(finding) if callable(plan) else plan or plan_of(finding, target)
        check_fits(chosen, target, finding, for_all=same_plan is not None and len(nests) > 1)
        built = build(finding, chosen, device)
        if built is None:
            unbind(sch, block, device)
        else:
            splice(sch, block, nest, built)
        applied += 1
    if not applied:
        worst = next((r for r in refusals if r.kind.value not in _PLAIN), None)
        if worst is None:
            # What is independent at a glance may have a thread or a statement that nothing takes.
            whole = extract(analysis.func)
            worst = whole if isinstance(whole, Refusal) else refusals[0]
        raise RefusalError(worst.message(), worst)
    schedule_leftovers(sch, device)
    return sch.mod["main"].with_attrs({**dict(func.attrs or {}), IS_SCHEDULED: True})
