"""Expressions as sums of products, each split by the variable that a factor depends on."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from functools import reduce
from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.algebra.choices import as_choice
from tvm_scan.algebra.literal import is_constant, is_float, one, zero
from tvm_scan.extraction.step_loops import NotUnderstood

#: Most products of a sum.
_MOST = 8

#: Factors that depend on the row, and the rest of a product.
_Products = list[tuple[list[Any], Any]]


def products(expr: Any, row: Var, apart: list[Var]) -> list[tuple[Any, Any]]:
    """Pairs ``(p, u)`` with ``expr == sum of p u`` (over the reals), every u free of ``row``.

    Parameters
    ----------
    expr : Expr
        Sums and differences of products.
    row : Var
        What every u must be free of.
    apart : list of Var
        What every p must be free of.

    Returns
    -------
    list of tuple of Expr
        Of different p each.

    Raises
    ------
    NotUnderstood
        If a factor depends on both, or there are many products.
    """
    unit = one(tir.dtype_of(expr))
    return [
        (reduce(operator.mul, factors) if factors else unit, rest)
        for factors, rest in _products(expr, row, apart)
    ]


def _products(e: Any, row: Var, apart: list[Var]) -> _Products:
    if not tir.contains_var(e, [row]):
        return [([], e)]
    if isinstance(e, tirx.Mul):
        left, right = _products(e.a, row, apart), _products(e.b, row, apart)
        if len(left) * len(right) > _MOST:
            raise NotUnderstood(f"many products in {e}")
        pairs = [(p, q) for p in left for q in right]
        return _gathered(([*p[0], *q[0]], _times(p[1], q[1])) for p, q in pairs)
    if not tir.contains_var(e, apart):
        return [([e], one(tir.dtype_of(e)))]
    if isinstance(e, tirx.Add | tirx.Sub):
        left = [] if is_constant(e.a, 0) else _products(e.a, row, apart)
        right = _products(e.b, row, apart)
        if isinstance(e, tirx.Sub):
            right = [(factors, zero(tir.dtype_of(e)) - rest) for factors, rest in right]
        return _gathered([*left, *right])
    choice = as_choice(e)
    if choice is not None and not tir.contains_var(choice[0], [row, *apart]):
        return _gathered(_chosen(*choice, row, apart))
    if isinstance(e, tirx.Div) and is_float(tir.dtype_of(e)) and not tir.contains_var(e.b, [row]):
        return [(factors, rest / e.b) for factors, rest in _products(e.a, row, apart)]
    raise NotUnderstood(f"an update that is no vector times an amount in {e}")


def _chosen(cond: Any, yes: Any, no: Any, row: Var, apart: list[Var]) -> Iterator[Any]:
    """Yield the products of a choice: both factors are 0 where another one is chosen.

    Neither is read there, whose index may be none.
    """
    nothing = zero(tir.dtype_of(yes))
    for expr, is_yes in ((yes, True), (no, False)):

        def here(value: Any, is_yes: bool = is_yes) -> Any:
            branches = (value, nothing) if is_yes else (nothing, value)
            return tirx.op.if_then_else(cond, *branches)

        if not is_constant(expr, 0):
            for factors, rest in _products(expr, row, apart):
                yield [here(factor) for factor in factors], here(rest)


def _times(left: Any, right: Any) -> Any:
    unit = one(tir.dtype_of(left))
    if tir.structurally_equal(left, unit):
        return right
    return left if tir.structurally_equal(right, unit) else left * right


def _gathered(pairs: Iterable[tuple[list[Any], Any]]) -> _Products:
    """Products of the same factors as one."""
    out: _Products = []
    for factors, rest in pairs:
        for number, (other, total) in enumerate(out):
            if _same(factors, other):
                out[number] = (other, total + rest)
                break
        else:
            out.append((factors, rest))
    if len(out) > _MOST:
        raise NotUnderstood(f"{len(out)} products")
    return out


def _same(left: list[Any], right: list[Any]) -> bool:
    """Return whether two products have the same factors, in any order."""
    todo = list(right)
    for factor in left:
        match = next((f for f in todo if tir.structurally_equal(f, factor)), None)
        if match is None:
            return False
        todo = [f for f in todo if f is not match]
    return not todo
