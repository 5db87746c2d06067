"""Plans as annotations of blocks: reading them back."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from tvm import tirx
from tvm.s_tir import SBlock, Schedule

from tvm_scan import tir
from tvm_scan.annotations import PLAN_PREFIX
from tvm_scan.schedules.plan import ScanPlan
from tvm_scan.schedules.splice import blocks_in

__all__ = ["first_annotated", "is_annotated", "plan_of"]


def is_annotated(func: tirx.PrimFunc) -> bool:
    """Whether any block of the function carries a plan."""
    return any(PLAN_PREFIX + "algorithm" in b.annotations for b in blocks_in(func.body))


def first_annotated(sch: Schedule) -> tuple[SBlock, ScanPlan] | None:
    """The first block of a schedule that carries a plan, and the plan."""
    for _, func in sch.mod.functions_items():
        if isinstance(func, tirx.PrimFunc):
            for block in blocks_in(func.body):
                if PLAN_PREFIX + "algorithm" in block.annotations:
                    return block, plan_of(block)
    return None


def plan_of(block: SBlock) -> ScanPlan:
    """The plan that a block's annotations spell.

    Parameters
    ----------
    block : SBlock
        A block with ``annotations.PLAN_PREFIX`` annotations.

    Returns
    -------
    ScanPlan
        Fields without an annotation have their defaults.
    """
    values: dict[str, Any] = {}
    for field in fields(ScanPlan):
        raw = block.annotations.get(PLAN_PREFIX + field.name)
        if raw is None:
            continue
        number = tir.as_int(raw)
        kind: type = type(field.default)
        values[field.name] = kind(str(raw) if number is None else number)
    return ScanPlan(**values)
