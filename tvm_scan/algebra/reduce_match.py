"""The operators of reductions, and the expressions in which they are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.algebra.choices import as_choice, as_extremum
from tvm_scan.algebra.literal import all_ones, is_float, largest, one, smallest, zero


@dataclass(frozen=True, eq=False)
class _Operator:
    symbol: str
    apply: Callable[[Any, Any], Any]
    identity: Callable[[str], Any]


def _bits(word: str, logic: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def run(left: Any, right: Any) -> Any:
        if tir.dtype_of(left) == "bool":
            return logic(left, right)
        return getattr(tirx, word)(left, right)

    return run


def _xor(left: Any, right: Any) -> Any:
    if tir.dtype_of(left) == "bool":
        return tirx.NE(left, right)
    return tirx.bitwise_xor(left, right)


OPERATORS: dict[str, _Operator] = {
    "add": _Operator("+", lambda l, r: l + r, zero),
    "mul": _Operator("*", lambda l, r: l * r, one),
    "max": _Operator("max", lambda l, r: tirx.Max(l, r), smallest),
    "min": _Operator("min", lambda l, r: tirx.Min(l, r), largest),
    "and": _Operator("&", _bits("bitwise_and", lambda l, r: tirx.And(l, r)), all_ones),
    "or": _Operator("|", _bits("bitwise_or", lambda l, r: tirx.Or(l, r)), zero),
    "xor": _Operator("^", _xor, zero),
}


@dataclass(frozen=True, eq=False)
class Choice:
    """``h > x ? h : x`` and its kin: a max or min with a meaning of its own for NaN.

    With `nan_wins`, ``isnan(x) || x > h ? x : h`` and its kin: NaN stands above every number (for
    a min below), since no comparison with a NaN carry holds. That is an order of all values, so
    the choice is associative as it is, and an infinity is its identity.
    """

    test: Any
    carry_left: bool
    keeps: bool
    nan_wins: bool = False

    def run(self, h: Any, x: Any) -> Any:
        """Choose between the carry and the value, or two values."""
        cond = self.test(h, x) if self.carry_left else self.test(x, h)
        if self.nan_wins:
            cond = tirx.Or(tirx.isnan(x), cond)
        return tirx.Select(cond, h, x) if self.keeps else tirx.Select(cond, x, h)


_NODES: dict[Any, str] = {
    tirx.Max: "max",
    tirx.Min: "min",
    tirx.BitwiseAnd: "and",
    tirx.BitwiseOr: "or",
    tirx.BitwiseXor: "xor",
    tirx.And: "and",
    tirx.Or: "or",
}


def _operands(e: Any) -> tuple[str, Any, Any] | None:
    op = _NODES.get(type(e))
    if isinstance(e, tirx.NE) and tir.dtype_of(e.a) == "bool":
        op = "xor"
    return None if op is None else (op, e.a, e.b)


def match_operator(e: Any, old: Var) -> tuple[str, Any, bool] | None:
    """``(op, x, carry stands first)`` with ``e == old op x``, ``x`` free of ``old``.

    ``(h op x1) op x2`` is matched as ``h op (x1 op x2)``: the same associativity that the scan
    itself uses. Bool and integer operators commute exactly, so their order is not kept; that of
    floating-point max and min is (they differ on NaN), and a mixture of both orders is refused.
    """
    operands = _operands(e) or _selected(e, old)
    if operands is None:
        return None
    op, left, right = operands
    in_left, in_right = tir.contains_var(left, [old]), tir.contains_var(right, [old])
    if in_left == in_right:
        return None
    inner, x, first = (left, right, True) if in_left else (right, left, False)
    if isinstance(inner, Var) and inner.same_as(old):
        return op, x, first
    nested = match_operator(inner, old)
    if nested is None or nested[0] != op:
        return None
    if is_float(tir.dtype_of(e)):
        # NaN makes regrouping inside one step inexact; take it only where it cannot matter.
        return None
    return op, OPERATORS[op].apply(nested[1], x), True


def _selected(e: Any, old: Var) -> tuple[str, Any, Any] | None:
    """``select(h > x, h, x)`` and its kin, for integers (floats differ from max on NaN)."""
    choice = as_choice(e)
    if choice is None or is_float(tir.dtype_of(e)):
        return None
    _, yes, no = choice
    kind = as_extremum(*choice)
    return None if kind is None else (_NODES[kind], yes, no)


_TESTS = ((tirx.GT, True), (tirx.GE, True), (tirx.LT, False), (tirx.LE, False))


def match_choice(e: Any, old: Var) -> tuple[str, Any, Choice] | None:
    """``(op, x, choice)`` for a choice between the carry and ``x`` by comparing the two."""
    choice = as_choice(e)
    if choice is None:
        return None
    cond, yes, no = choice
    cond, nan_wins = _less_nan(cond, yes)
    for test, greater in _TESTS:
        if not isinstance(cond, test):
            continue
        for h, x, keeps in ((yes, no, True), (no, yes, False)):
            if not (isinstance(h, Var) and h.same_as(old)) or tir.contains_var(x, [old]):
                continue
            if nan_wins and keeps:
                continue
            for carry_left, (left, right) in ((True, (h, x)), (False, (x, h))):
                same = tir.structurally_equal(cond.a, left)
                if same and tir.structurally_equal(cond.b, right):
                    op = "max" if greater == (carry_left == keeps) else "min"
                    return op, x, Choice(test, carry_left, keeps, nan_wins)
    return None


def _less_nan(cond: Any, x: Any) -> tuple[Any, bool]:
    """``c`` of ``isnan(x) or c``, and whether it was of that form."""
    if isinstance(cond, tirx.Or):
        for test, other in ((cond.a, cond.b), (cond.b, cond.a)):
            if tir.call_name(test) == "tirx.isnan" and tir.structurally_equal(test.args[0], x):
                return other, True
    return cond, False
