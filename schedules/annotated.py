"""Plans as annotations of blocks: reading them back."""

from __future__ import annotations

from collections.abc import Iterator

from tvm import tirx
from tvm.s_tir import SBlock, Schedule

from tvm_scan.annotations import PLAN_PREFIX
from tvm_scan.schedules.plan import ScanPlan
from tvm_scan.schedules.splice import blocks_in


def is_annotated(func: tirx.PrimFunc) -> bool:
    """Return whether any block of the function carries a plan."""
    return any(PLAN_PREFIX + "algorithm" in b.annotations for b in blocks_in(func.body))


def annotated_plans(sch: Schedule) -> list[tuple[SBlock, ScanPlan]]:
    """Blocks of a schedule that carry a plan, and the plans.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        As a rule or a replayed trace left it.
    """
    return [(block, plan_at(block)) for block in _annotated(sch)]


def first_annotated(sch: Schedule) -> tuple[SBlock, ScanPlan] | None:
    """The first block of a schedule that carries a plan, and the plan."""
    block = next(_annotated(sch), None)
    return None if block is None else (block, plan_at(block))


def _annotated(sch: Schedule) -> Iterator[SBlock]:
    for _, func in sch.mod.functions_items():
        if isinstance(func, tirx.PrimFunc):
            for block in blocks_in(func.body):
                if PLAN_PREFIX + "algorithm" in block.annotations:
                    yield block


def plan_at(block: SBlock) -> ScanPlan:
    """The plan that a block's annotations spell.

    Parameters
    ----------
    block : SBlock
        A block with ``annotations.PLAN_PREFIX`` annotations.

    Returns
    -------
    ScanPlan
        Fields without an annotation have their defaults.

    Raises
    ------
    PlanError
        If an annotation is of no field, or its value not of the field's kind: then it is of another
        version, or damaged.
    """
    decisions = {
        str(key).removeprefix(PLAN_PREFIX): value
        for key, value in block.annotations.items()
        if str(key).startswith(PLAN_PREFIX)
    }
    return ScanPlan.from_annotations(decisions)
