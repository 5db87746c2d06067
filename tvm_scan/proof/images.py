"""Images of floats under ``exp``: non-negative fractions, and choices between them.

``m + log1p(exp(v - m))`` with ``m`` the larger of ``u`` and ``v`` is ``m (1 + v / m)`` here:
factors cancel, and choices whose sides are the same polynomial are none, so that it becomes
``u + v``. Choices are decided in one order, as in a binary decision diagram.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import z3

from tvm_scan.proof.logic import Bool, choose, neg
from tvm_scan.proof.residues import monomials

_ONE = z3.RealVal(1)


class Image:
    """The image of a float: a ``Fraction``, or a ``Choice``.

    Products are the images of sums, quotients of differences; sums are those of exponentials.
    """

    #: An image is never NaN or infinite: it is zero, or the image of a finite number.
    nan = up = down = special = False

    @staticmethod
    def const(value: int) -> Image:
        """A number."""
        return Fraction(_ONE if value == 1 else z3.RealVal(value))

    @staticmethod
    def pick(test: Bool, yes: Image, no: Image) -> Image:
        """``yes`` where ``test``, else ``no``; one of them where they are the same."""
        if isinstance(test, bool):
            return yes if test else no
        first = _first(test, yes, no)
        if not first.eq(test):
            a, b = yes.under(first), no.under(first)
            return Image.pick(first, Image.pick(test, a[0], b[0]), Image.pick(test, a[1], b[1]))
        yes, no = yes.under(test)[0], no.under(test)[1]
        if isinstance(yes, Fraction) and isinstance(no, Fraction) and _is_no(test, yes, no):
            return no
        return Choice(test, yes, no)

    def under(self, test: Any) -> tuple[Image, Image]:
        """The images where ``test`` holds, and where it does not."""
        return self, self

    def each(self, other: Image, run: Callable[[Fraction, Fraction], Fraction]) -> Image:
        """``run`` of what is chosen of both."""
        if isinstance(self, Fraction) and isinstance(other, Fraction):
            return run(self, other)
        first = _first(None, self, other)
        a, b = self.under(first), other.under(first)
        return Image.pick(first, a[0].each(b[0], run), a[1].each(b[1], run))

    def test(self, other: Image, run: Callable[[Any, Any], Any]) -> Bool:
        """A comparison as one of polynomials: bottoms are positive."""
        if isinstance(self, Fraction) and isinstance(other, Fraction):
            flat = monomials(run(self.top * other.bottom, other.top * self.bottom))
            return True if z3.is_true(flat) else False if z3.is_false(flat) else flat
        first = _first(None, self, other)
        a, b = self.under(first), other.under(first)
        return choose(first, a[0].test(b[0], run), a[1].test(b[1], run))

    def __mul__(self, other: Image) -> Image:
        return self.each(other, _multiplied)

    def __truediv__(self, other: Image) -> Image:
        return self.each(other, lambda a, b: _multiplied(a, Fraction(b.bottom, b.top)))

    def __add__(self, other: Image) -> Image:
        return self.each(other, _added)

    def less(self, other: Image) -> Bool:
        """``self < other``."""
        return self.test(other, lambda a, b: a < b)

    def equals(self, other: Image) -> Bool:
        """``self == other``."""
        return self.test(other, _equation)

    same = equals

    @property
    def nonzero(self) -> Bool:
        """The condition that it is not zero."""
        return neg(self.equals(Image.const(0)))

    @property
    def value(self) -> Any:
        """The number as one term."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Fraction(Image):
    """``top / bottom``, not negative; ``bottom`` is positive where the image is defined."""

    top: Any
    bottom: Any = _ONE

    @property
    def value(self) -> Any:
        """The number as one term."""
        return self.top if self.bottom.eq(_ONE) else self.top / self.bottom


@dataclass(frozen=True, eq=False)
class Choice(Image):
    """``yes`` where ``condition``, else ``no``."""

    condition: Any
    yes: Image
    no: Image

    def under(self, test: Any) -> tuple[Image, Image]:
        """The images where ``test`` holds, and where it does not."""
        return (self.yes, self.no) if self.condition.eq(test) else (self, self)

    @property
    def value(self) -> Any:
        """The number as one term."""
        return z3.If(self.condition, self.yes.value, self.no.value)


def _first(test: Any, *images: Image) -> Any:
    """The condition to decide first: the same order everywhere, equations last."""
    tests = [image.condition for image in images if isinstance(image, Choice)]
    tests += [] if test is None else [test]
    return min(tests, key=lambda e: (_is_equation(e), e.get_id()))


def _is_equation(e: Any) -> bool:
    return bool(z3.is_eq(e) and z3.is_arith(e.arg(0)))


def _equation(a: Any, b: Any) -> Any:
    """``a == b``, the same term as ``b == a``."""
    left, right = sorted((monomials(a), monomials(b)), key=lambda e: int(e.get_id()))
    return left == right


def _is_no(test: Any, yes: Fraction, no: Fraction) -> bool:
    """Return whether a choice is ``no`` in either case, and as defined as it was."""
    if not (no.bottom.eq(_ONE) or no.bottom.eq(yes.bottom)):
        return False
    apart = yes.top * no.bottom - no.top * yes.bottom
    if _is_zero(apart):
        return True
    if not _is_equation(test):
        return False
    # Where the sides of the test are equal, so are these.
    tested = test.arg(0) - test.arg(1)
    return _is_zero(apart - tested) or _is_zero(apart + tested)


def _is_zero(e: Any) -> bool:
    flat = monomials(e)
    return bool(z3.is_rational_value(flat) and flat.as_fraction() == 0)


def _multiplied(a: Fraction, b: Fraction) -> Fraction:
    tops, bottoms = [a.top, b.top], [a.bottom, b.bottom]
    for i in range(2):
        if not bottoms[1 - i].eq(_ONE) and _is_zero(tops[i] - bottoms[1 - i]):
            tops[i] = bottoms[1 - i] = _ONE
    return Fraction(_times(*tops), _times(*bottoms))


def _times(a: Any, b: Any) -> Any:
    return b if a.eq(_ONE) else a if b.eq(_ONE) else a * b


def _added(a: Fraction, b: Fraction) -> Fraction:
    if a.bottom.eq(b.bottom):
        return Fraction(a.top + b.top, a.bottom)
    top = _times(a.top, b.bottom) + _times(b.top, a.bottom)
    return Fraction(top, _times(a.bottom, b.bottom))
