"""Choices on conditions that are free of the carries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Var

from tvm_scan import tir
from tvm_scan.algebra.literal import is_float


def as_choice(e: Any) -> tuple[Any, Any, Any] | None:
    """``(condition, yes, no)`` of a select or if_then_else, else None."""
    if isinstance(e, tirx.Select):
        return e.condition, e.true_value, e.false_value
    if tir.call_name(e) == "prim.if_then_else":
        return tuple(e.args)
    return None


def free_conditions(steps: Sequence[Any], olds: Sequence[Var]) -> list[Any]:
    """Conditions that no carry decides, of choices between values that read one, each once."""
    conditions: list[Any] = []

    def visit(e: Any) -> None:
        choice = as_choice(e)
        if choice is None or tir.contains_var(choice[0], olds):
            return
        if not any(tir.contains_var(value, olds) for value in choice[1:]):
            return
        if not any(tir.structurally_equal(choice[0], other) for other in conditions):
            conditions.append(choice[0])

    for step in steps:
        tvm_ffi.structural_walk(step, [(tirx.Select, visit), (Call, visit)])
    return conditions


def decided(e: Any, condition: Any, value: bool) -> Any:
    """``e`` with every choice on ``condition`` made."""

    def visit(node: Any) -> Any:
        choice = as_choice(node)
        if choice is None or not tir.structurally_equal(choice[0], condition):
            return node
        return choice[1] if value else choice[2]

    return tvm_ffi.structural_map(e, [(tirx.Select, visit), (Call, visit)])


def opposite(condition: Any) -> Any:
    """The negation of a condition, for NaN too.

    TVM simplifies ``not a > b`` to ``a <= b``, of floats too, where both are false for a NaN.
    """
    if isinstance(condition, tirx.Not):
        return condition.a
    if isinstance(condition, tirx.And | tirx.Or):
        kind = tirx.Or if isinstance(condition, tirx.And) else tirx.And
        return kind(opposite(condition.a), opposite(condition.b))
    inverse = _INVERSE.get(type(condition))
    if inverse is None or not is_float(tir.dtype_of(condition.a)):
        return tirx.Not(condition)
    unordered = tirx.Or(tirx.isnan(condition.a), tirx.isnan(condition.b))
    return tirx.Or(inverse(condition.a, condition.b), unordered)


_INVERSE: dict[Any, Any] = {
    tirx.LT: tirx.GE,
    tirx.LE: tirx.GT,
    tirx.GT: tirx.LE,
    tirx.GE: tirx.LT,
}
