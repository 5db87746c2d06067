"""Choices on conditions that are free of the carries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


def choices_in(e: Any) -> list[tuple[Any, Any, Any]]:
    """Every choice that `as_choice` knows, inner ones first."""
    choices = (as_choice(node) for node in tir.nodes(e, tirx.Select, Call))
    return [choice for choice in choices if choice is not None]


def map_choices(e: Any, run: Callable[[Any, Any, Any, Any], Any]) -> Any:
    """``e`` with ``run(choice, condition, yes, no)`` in place of each choice."""

    def visit(node: Any) -> Any:
        choice = as_choice(node)
        return node if choice is None else run(node, *choice)

    return tvm_ffi.structural_map(e, [((tirx.Select, Call), visit)])


def free_conditions(steps: Sequence[Any], olds: Sequence[Var]) -> list[Any]:
    """Conditions that no carry decides, of choices between values that read one, each once."""
    return tir.each_once(
        condition
        for step in steps
        for condition, yes, no in choices_in(step)
        if not tir.contains_var(condition, olds) and tir.contains_var([yes, no], olds)
    )


def decided(e: Any, condition: Any, value: bool) -> Any:
    """``e`` with every choice on ``condition`` made."""

    def choose(choice: Any, on: Any, yes: Any, no: Any) -> Any:
        if not tir.structurally_equal(on, condition):
            return choice
        return yes if value else no

    return map_choices(e, choose)


def as_extremum(condition: Any, yes: Any, no: Any) -> Any:
    """Max or Min where a choice is one, of integers, which have no NaN; else None."""
    if not isinstance(condition, tirx.GT | tirx.GE | tirx.LT | tirx.LE):
        return None
    for first, second, straight in ((yes, no, True), (no, yes, False)):
        same = tir.structurally_equal(condition.a, first)
        if same and tir.structurally_equal(condition.b, second):
            greater = isinstance(condition, tirx.GT | tirx.GE)
            return tirx.Max if greater == straight else tirx.Min
    return None


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
