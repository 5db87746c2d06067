"""Taking a common factor out of an expression."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.algebra.literal import is_constant, is_float, one, zero
from tvm_scan.extraction.step_loops import NotUnderstood

__all__ = ["factored"]


def factored(expr: Any, row: Var, apart: list[Var]) -> tuple[Any, Any]:
    """``(p, u)`` with ``expr == p u`` (over the reals), p a product of all that depends on ``row``.

    Parameters
    ----------
    expr : Expr
        Sums and differences of products.
    row : Var
        What u must be free of.
    apart : list of Var
        What p must be free of.

    Returns
    -------
    tuple of Expr

    Raises
    ------
    NotUnderstood
        If the terms of a sum have different factors, or a factor depends on both.
    """
    factors, rest = _factors(expr, row, apart)
    product = one(tir.dtype_of(expr))
    for number, factor in enumerate(factors):
        product = factor if number == 0 else product * factor
    return product, rest


def _factors(e: Any, row: Var, apart: list[Var]) -> tuple[list[Any], Any]:
    unit = one(tir.dtype_of(e))
    if not tir.contains_var(e, [row]):
        return [], e
    if isinstance(e, tirx.Mul):
        left, right = _factors(e.a, row, apart), _factors(e.b, row, apart)
        rest = left[1] * right[1]
        for one_rest, other in ((left[1], right[1]), (right[1], left[1])):
            if tir.structurally_equal(one_rest, unit):
                rest = other
        return [*left[0], *right[0]], rest
    if not tir.contains_var(e, apart):
        return [e], unit
    if isinstance(e, tirx.Add | tirx.Sub):
        if is_constant(e.a, 0):
            factors, rest = _factors(e.b, row, apart)
            return factors, rest if isinstance(e, tirx.Add) else zero(tir.dtype_of(e)) - rest
        left, right = _factors(e.a, row, apart), _factors(e.b, row, apart)
        if not _same(left[0], right[0]):
            raise NotUnderstood(f"terms with different vectors in {e}")
        return left[0], left[1] + right[1] if isinstance(e, tirx.Add) else left[1] - right[1]
    if isinstance(e, tirx.Div) and is_float(tir.dtype_of(e)) and not tir.contains_var(e.b, [row]):
        factors, rest = _factors(e.a, row, apart)
        return factors, rest / e.b
    raise NotUnderstood(f"an update that is no vector times an amount in {e}")


def _same(left: list[Any], right: list[Any]) -> bool:
    """Return whether two products have the same factors, in any order."""
    todo = list(right)
    for factor in left:
        match = next((f for f in todo if tir.structurally_equal(f, factor)), None)
        if match is None:
            return False
        todo = [f for f in todo if f is not match]
    return not todo
