"""Choices on conditions that are free of the carries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Var

from tvm_scan import tir

__all__ = ["as_choice", "decided", "free_conditions"]


def as_choice(e: Any) -> tuple[Any, Any, Any] | None:
    """``(condition, yes, no)`` of a select or if_then_else, else None."""
    if isinstance(e, tirx.Select):
        return e.condition, e.true_value, e.false_value
    if tir.call_name(e) == "prim.if_then_else":
        return tuple(e.args)
    return None


def free_conditions(steps: Sequence[Any], olds: Sequence[Var]) -> list[Any]:
    """Conditions of the choices in ``steps`` that no carry decides, each once."""
    found: list[Any] = []

    def visit(e: Any) -> None:
        choice = as_choice(e)
        if choice is None or tir.contains_var(choice[0], olds):
            return
        if not any(tir.structurally_equal(choice[0], other) for other in found):
            found.append(choice[0])

    for step in steps:
        tvm_ffi.structural_walk(step, [(tirx.Select, visit), (Call, visit)])
    return found


def decided(e: Any, condition: Any, value: bool) -> Any:
    """``e`` with every choice on ``condition`` made."""

    def visit(node: Any) -> Any:
        choice = as_choice(node)
        if choice is None or not tir.structurally_equal(choice[0], condition):
            return node
        return choice[1] if value else choice[2]

    return tvm_ffi.structural_map(e, [(tirx.Select, visit), (Call, visit)])
