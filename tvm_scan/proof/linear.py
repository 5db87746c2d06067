"""Products of unknowns as unknowns of their own: what is left is linear, and quickly decided.

What follows for any numbers follows for products; of these no more is kept than the range that
follows from the ranges of their factors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import z3

from tvm_scan.proof.residues import monomials, normal_remainders


@dataclass(frozen=True)
class _Range:
    """Bounds of a number, None where there is none; ``positive`` where it is not zero, either."""

    low: Fraction | None = None
    high: Fraction | None = None
    positive: bool = False

    def __and__(self, other: _Range) -> _Range:
        lows = [x for x in (self.low, other.low) if x is not None]
        highs = [x for x in (self.high, other.high) if x is not None]
        return _Range(
            max(lows, default=None), min(highs, default=None), self.positive or other.positive
        )

    def __mul__(self, other: _Range) -> _Range:
        mine, others = (self.low, self.high), (other.low, other.high)
        positive = self.positive and other.positive
        if None not in mine and None not in others:
            ends = [a * b for a in mine for b in others if a is not None and b is not None]
            return _Range(min(ends), max(ends), positive)
        if self.low is not None and other.low is not None and min(self.low, other.low) >= 0:
            return _Range(self.low * other.low, None, positive)
        return _Range()


class Linear:
    """Terms as sums of monomials, with an unknown in the place of every product of unknowns.

    Parameters
    ----------
    assumed : list of z3.BoolRef
        Where ranges of factors are read.
    """

    def __init__(self, assumed: list[Any]) -> None:
        #: What is known of the unknowns that stand for products.
        self.facts: list[Any] = []
        self._known: dict[int, tuple[Any, Any]] = {}
        self._products: dict[tuple[int, ...], tuple[list[Any], Any]] = {}
        self._ranges: dict[int, tuple[Any, _Range]] = {}
        for term in assumed:
            self._learn(monomials(term))

    def __call__(self, term: Any) -> Any:
        """``term`` without products of unknowns."""
        key = term.get_id()
        if key not in self._known:
            flat = monomials(normal_remainders(term))
            pairs = [(e, self._unknown(e)) for e in outermost([flat], _is_product)]
            self._known[key] = (term, z3.substitute(flat, *pairs))
        return self._known[key][1]

    def _learn(self, term: Any) -> None:
        if z3.is_and(term):
            for part in term.children():
                self._learn(part)
        is_not = z3.is_not(term)
        test = term.arg(0) if is_not else term
        if not (z3.is_le(test) or z3.is_ge(test)):
            return
        left, right = test.children()
        at_most = z3.is_le(test)
        if _is_number(left):
            left, right, at_most = right, left, not at_most
        if not _is_number(right):
            return
        bound = Fraction(str(right))
        # ``not x <= 0`` is ``x > 0``.
        interval = (
            _Range(high=bound) if at_most != is_not else _Range(bound, None, is_not and bound >= 0)
        )
        self._ranges[left.get_id()] = (left, self._range(left) & interval)

    def _range(self, e: Any) -> _Range:
        if z3.is_mod(e) and _is_number(e.arg(1)):
            return _Range(Fraction(0), Fraction(e.arg(1).as_long() - 1))
        known = self._ranges.get(e.get_id())
        return _Range() if known is None else known[1]

    def _unknown(self, product: Any) -> Any:
        """The number in a product times an unknown for the other factors."""
        factors: list[Any] = []
        number: Any = None
        todo = list(product.children())
        while todo:
            factor = todo.pop()
            if _is_multiplication(factor):
                todo.extend(factor.children())
            elif _is_number(factor):
                number = factor if number is None else number * factor
            else:
                factors.append(factor)
        factors.sort(key=lambda factor: int(factor.get_id()))
        key = tuple(factor.get_id() for factor in factors)
        if key not in self._products:
            self._products[key] = (factors, z3.FreshConst(product.sort()))
            if z3.is_arith(product):
                self._bound(self._products[key][1], factors)
        unknown = self._products[key][1]
        return unknown if number is None else number * unknown

    def _bound(self, unknown: Any, factors: list[Any]) -> None:
        interval = self._range(factors[0])
        for factor in factors[1:]:
            interval = interval * self._range(factor)
        number = (lambda n: z3.IntVal(int(n))) if z3.is_int(unknown) else _real
        if interval.low is not None:
            self.facts.append(unknown >= number(interval.low))
        if interval.high is not None:
            self.facts.append(unknown <= number(interval.high))
        if interval.positive:
            self.facts.append(unknown > 0)


def _real(number: Fraction) -> Any:
    return z3.Q(number.numerator, number.denominator)


def is_linear(terms: list[Any]) -> bool:
    """Return whether no unknowns are multiplied."""
    return not outermost(terms, _is_product)


def multiplies(term: Any) -> bool:
    """Return whether unknowns are multiplied in it once it is simplified."""
    return not is_linear([monomials(term)])


def unknown_choices(terms: list[Any]) -> list[Any]:
    """The terms with an unknown in the place of every choice of a number."""
    pairs = [(e, z3.FreshConst(e.sort())) for e in outermost(terms, _is_choice)]
    return [z3.substitute(term, *pairs) for term in terms]


def outermost(terms: list[Any], test: Callable[[Any], bool]) -> list[Any]:
    """Every subterm that passes the test and is not below another one."""
    stack, seen, out = list(terms), set(), []
    while stack:
        node = stack.pop()
        if (key := node.get_id()) in seen or not z3.is_app(node):
            continue
        seen.add(key)
        if test(node):
            out.append(node)
        else:
            stack.extend(node.children())
    return out


def _is_multiplication(e: Any) -> bool:
    return bool(z3.is_app_of(e, z3.Z3_OP_MUL) or z3.is_app_of(e, z3.Z3_OP_BMUL))


def _is_product(e: Any) -> bool:
    """Return whether ``e`` multiplies unknown numbers."""
    return _is_multiplication(e) and sum(not _is_number(f) for f in e.children()) > 1


def _is_choice(e: Any) -> bool:
    """Return whether ``e`` is a choice between numbers."""
    return bool(z3.is_app_of(e, z3.Z3_OP_ITE) and not z3.is_bool(e))


def _is_number(e: Any) -> bool:
    return bool(z3.is_rational_value(e) or z3.is_int_value(e) or z3.is_bv_value(e))
