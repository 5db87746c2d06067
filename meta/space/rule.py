"""The space of MetaSchedule: a rule that samples every decision, and the generator around it.

A Python rewrite of a schedule is not in its trace. So the rule samples with stock instructions
and writes what it sampled into stock scalar annotations (list-valued ones would lose the sampled
variables when a trace is simplified); ``meta.expand`` turns them into a kernel.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from tvm_scan.annotations import PLAN_PREFIX, SCHEDULED_NEST
from tvm_scan.arguments import as_target, host_target
from tvm_scan.delta_rule import TimeLoop
from tvm_scan.errors import ScanError
from tvm_scan.meta.space.decisions import branches
from tvm_scan.meta.space.expand import ExpandScansPostproc
from tvm_scan.meta.space.mutator import NeighbourMutator
from tvm_scan.recurrence import Refusal
from tvm_scan.schedules.analysis import finding_at
from tvm_scan.schedules.branch import Branch
from tvm_scan.schedules.choose.arguments import target_for
from tvm_scan.schedules.machine.device import DEVICES, Device, device_of
from tvm_scan.schedules.plan import ScanPlan
from tvm_scan.schedules.splice import blocks_in, nest_of


def annotate(sch: Schedule, block: Any, plan: ScanPlan) -> None:
    """Write a plan into a block's annotations, and a mark on its loops for TVM's own rules.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        The instructions are traced.
    block : SBlockRV
        A block of the recurrence.
    plan : ScanPlan
        What to write.
    """
    _annotate(sch, block, plan, {})


def sample_branches(sch: Schedule, block: Any, target: Target) -> list[Schedule]:
    """One schedule for each branch of the space, its decisions sampled and annotated.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        Left as it is if ``block`` is in no recurrence, or in one that has its plan.
    block : SBlockRV
        Any block.
    target : tvm.target.Target
        What to tune for.
    """
    recurrence = _recurrence_at(sch, block)
    if recurrence is None:
        return [sch]
    try:
        open_branches = branches(target, recurrence)
    except ScanError:
        return [sch]
    return [_sampled(sch.copy(), block, branch) for branch in open_branches]


def _recurrence_at(sch: Schedule, block: Any) -> TimeLoop | None:
    """The recurrence whose nest ``block`` is the first block of."""
    stmt = sch.get(block)
    if SCHEDULED_NEST in stmt.annotations:
        return None
    try:
        func, nest = nest_of(sch, stmt)
    except ScanError:
        return None
    blocks = blocks_in(nest)
    if any(PLAN_PREFIX + "algorithm" in b.annotations for b in blocks):
        return None
    recurrence = finding_at(func, nest)
    return None if isinstance(recurrence, Refusal) else recurrence


def _sampled(sch: Schedule, block: Any, branch: Branch) -> Schedule:
    sampled = {
        name: sch.sample_categorical(list(values), [1.0 / len(values)] * len(values))
        for name, values in branch.choices
    }
    _annotate(sch, block, branch.base, sampled)
    return sch


def _annotate(sch: Schedule, block: Any, plan: ScanPlan, sampled: dict[str, Any]) -> None:
    for name, value in plan.annotations().items():
        sch.annotate(block, PLAN_PREFIX + name, sampled.get(name, value))
    # TVM's own rules leave a block with this annotation alone, and its postprocs for CPUs, which
    # parallelise and vectorise all others, leave a loop with any annotation.
    sch.annotate(block, "schedule_rule", "None")
    for loop in sch.get_loops(block):
        sch.annotate(loop, SCHEDULED_NEST, 1)


@derived_object
class ScanRule(ms.schedule_rule.PyScheduleRule):
    """Samples a plan for each recurrence; every other block is left to the rules after it."""

    def _initialize_with_tune_context(self, context: ms.TuneContext) -> None:
        self.target = context.target

    def apply(self, sch: Schedule, block: Any) -> list[Schedule]:
        """Return one schedule for each branch, or the schedule itself for "not mine"."""
        return sample_branches(sch, block, self.target)

    def clone(self) -> ScanRule:
        """A rule of its own for another thread."""
        return ScanRule()


def scan_space(
    target: Target | str, *, others: bool = False, seed: int = 0, marked: bool = True
) -> ms.space_generator.SpaceGenerator:
    """The space generator for ``tune_tir``, ``tune_relax`` and ``tvm_scan.meta.tune``.

    Parameters
    ----------
    target : tvm.target.Target or str
        What to tune for.
    others : bool
        Whether TVM's default rules of the target schedule the other blocks.
    seed : int
        Of the mutator's moves.
    marked : bool
        Whether candidates name the program that they came from, as ``CheckedTuning`` needs it.

    Returns
    -------
    SpaceGenerator
        Of TVM, with this project's rule, postprocessor and mutator.

    Raises
    ------
    ScanError
        If the target is none that scans are scheduled for.
    """
    target = target_for(target, None, "scan_space")
    rules: list[Any] = [ScanRule()]
    postprocs: list[Any] = [ExpandScansPostproc(marked)]
    mutators: dict[Any, float] = {NeighbourMutator(seed): 1.0}
    if others:
        kind = device_of(target).rules
        rules += list(ms.schedule_rule.ScheduleRule.create(kind))
        # TVM's postprocs are traced, so they must see the program that a replay will see: they come
        # before the expansion, all but the count of threads and shared memory. What AutoBind left
        # unbound, the expansion binds.
        stock = [
            p
            for p in ms.postproc.Postproc.create(kind)
            if not isinstance(p, ms.postproc.RewriteUnboundBlock)
        ]
        last = [p for p in stock if isinstance(p, ms.postproc.VerifyGPUCode)]
        postprocs = [*(p for p in stock if p not in last), *postprocs, *last]
        mutators |= {m: float(p) for m, p in ms.mutator.Mutator.create(kind).items()}
    return ms.space_generator.PostOrderApply(
        sch_rules=rules, postprocs=postprocs, mutator_probs=mutators
    )


def register_hooks() -> None:
    """Register the rule for blocks with ``T.sblock_attr({"schedule_rule": "tvm_scan"})``.

    TVM's ``ApplyCustomRule`` then calls it in ``tune_tir`` and ``tune_relax`` with TVM's own
    spaces, and TVM's other rules leave such a block alone. Those spaces have no postproc of ours,
    so pass ``**CheckedTuning().options()``, whose builder expands, or at least
    ``builder=tvm_scan.meta.local_builder()``. The records hold the plan; expand it with
    ``ExpandScans`` (or ``expand_scans``) after a database was applied.
    """
    for device in DEVICES.values():
        for kind in (device.name, device.runtime) if device.is_served else ():
            name = f"s_tir.meta_schedule.{kind}.tvm_scan"
            tvm.register_global_func(name, partial(_hook, device), override=True)


def _hook(device: Device, sch: Schedule, block: Any) -> list[Schedule]:
    target = Target.current(allow_none=True)
    if target is None or device_of(target).is_gpu != device.is_gpu:
        target = as_target(device.runtime, "register_hooks")
    return sample_branches(sch, block, target or host_target())
