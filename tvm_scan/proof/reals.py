"""Floating-point numbers as reals with infinities and NaN, without rounding and without overflow.

A number is a fraction ``top / bottom`` with ``bottom != 0``, so that equalities of quotients are
equalities of polynomials. Which numbers may be infinite or NaN is most often known from their
form: then the three flags are Python's own False, and cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import z3

from tvm_scan.proof.logic import Bool, choose, conj, disj, equal, neg, pick

_ONE = z3.RealVal(1)


@dataclass(frozen=True, eq=False)
class Real:
    """A number.

    Attributes
    ----------
    top, bottom : z3.ArithRef
        Its value where it is finite.
    nan, up, down : bool or z3.BoolRef
        Whether it is NaN, infinity, minus infinity.
    """

    top: Any
    bottom: Any = _ONE
    nan: Bool = False
    up: Bool = False
    down: Bool = False

    @classmethod
    def const(cls, value: float) -> Real:
        """A constant; infinities and NaN are constants too."""
        if value != value or value in (float("inf"), -float("inf")):
            zero = z3.RealVal(0)
            return cls(zero, nan=value != value, up=value > 0, down=value < 0)
        exact = Fraction(value)
        return cls(z3.Q(exact.numerator, exact.denominator))

    @property
    def infinite(self) -> Bool:
        """The condition that it is one of the infinities."""
        return disj(self.up, self.down)

    @property
    def special(self) -> Bool:
        """The condition that it is no real number."""
        return disj(self.nan, self.up, self.down)

    @property
    def value(self) -> Any:
        """The real number as one term."""
        return self.top if self.bottom is _ONE else self.top / self.bottom

    def _sign(self) -> Any:
        """A term with the sign of the real number."""
        return self.top if self.bottom is _ONE else self.top * self.bottom

    def __neg__(self) -> Real:
        return Real(-self.top, self.bottom, self.nan, self.down, self.up)

    def __add__(self, other: Real) -> Real:
        nan = disj(self.nan, other.nan, conj(self.up, other.down), conj(self.down, other.up))
        up = conj(disj(self.up, other.up), neg(nan))
        down = conj(disj(self.down, other.down), neg(nan))
        if self.bottom.eq(other.bottom):
            return Real(self.top + other.top, self.bottom, nan, up, down)
        top = self.top * other.bottom + other.top * self.bottom
        return Real(top, _times(self.bottom, other.bottom), nan, up, down)

    def __sub__(self, other: Real) -> Real:
        return self + -other

    def __mul__(self, other: Real) -> Real:
        top, bottom = _times(self.top, other.top), _times(self.bottom, other.bottom)
        if self.special is False and other.special is False:
            return Real(top, bottom)
        lost = disj(conj(self.infinite, other._zero()), conj(self._zero(), other.infinite))
        nan = disj(self.nan, other.nan, lost)
        infinite = conj(disj(self.infinite, other.infinite), neg(nan))
        same = equal(self._negative(), other._negative())
        return Real(top, bottom, nan, conj(infinite, same), conj(infinite, neg(same)))

    def inverse(self) -> Real:
        """One over it; it is not zero."""
        zero = self.infinite
        return Real(
            pick(zero, z3.RealVal(0), self.bottom), pick(zero, _ONE, self.top), nan=self.nan
        )

    @property
    def nonzero(self) -> Bool:
        """The condition that it is not zero."""
        return neg(self._zero())

    def _zero(self) -> Bool:
        return conj(neg(self.special), self.top == 0)

    def _negative(self) -> Bool:
        return choose(self.infinite, self.down, self._sign() < 0)

    def less(self, other: Real) -> Bool:
        """``self < other``; never of NaN."""
        finite = conj(neg(self.infinite), neg(other.infinite), self._below(other))
        lower, upper = conj(self.down, neg(other.down)), conj(other.up, neg(self.up))
        return conj(neg(self.nan), neg(other.nan), disj(finite, lower, upper))

    def _below(self, other: Real) -> Bool:
        if self.bottom is _ONE and other.bottom is _ONE:
            return self.top < other.top
        return (self - other)._sign() < 0

    def equals(self, other: Real) -> Bool:
        """``self == other`` as a comparison of floats; never of NaN."""
        finite = conj(neg(self.infinite), neg(other.infinite), self._cross(other))
        ends = disj(conj(self.up, other.up), conj(self.down, other.down))
        return conj(neg(self.nan), neg(other.nan), disj(finite, ends))

    def _cross(self, other: Real) -> Bool:
        if self.bottom.eq(other.bottom):
            return self.top == other.top
        return _times(self.top, other.bottom) == _times(other.top, self.bottom)

    def same(self, other: Real) -> Bool:
        """The condition that both are the same number, NaN being the same as NaN."""
        return disj(conj(self.nan, other.nan), self.equals(other))

    @classmethod
    def pick(cls, test: Bool, yes: Real, no: Real) -> Real:
        """``yes`` where ``test``, else ``no``."""
        if isinstance(test, bool):
            return yes if test else no
        flags = (
            choose(test, a, b) for a, b in ((yes.nan, no.nan), (yes.up, no.up), (yes.down, no.down))
        )
        return cls(pick(test, yes.top, no.top), pick(test, yes.bottom, no.bottom), *flags)


def _times(a: Any, b: Any) -> Any:
    return b if a is _ONE else a if b is _ONE else a * b
