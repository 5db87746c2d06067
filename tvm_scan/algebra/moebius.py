"""Linear fractional steps ``h -> (p h + q) / (r h + s)``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.algebra.base import Algebra, Element, NotInFamily, System
from tvm_scan.algebra.choices import as_choice
from tvm_scan.algebra.literal import is_constant, is_float, one, zero
from tvm_scan.text import as_text

Fraction = tuple[Any, Any, Any, Any]


@dataclass(frozen=True, eq=False)
class Moebius(Algebra):
    """``h' = (p h + q) / (r h + s)``: continued fractions, tridiagonal sweeps, Riccati steps.

    Theorem. Linear fractional maps compose like their matrices ``[[p, q], [r, s]]``, which mean
    the same map up to a factor; each product is divided by its largest entry, so that it neither
    overflows nor vanishes. A map through a pole is composed exactly, where the loop divides by
    zero: there the loop gives infinity or NaN and the scan may be finite.
    """

    name: ClassVar[str] = "linear fractional"
    entries: Fraction
    dtype: str

    @classmethod
    def prove(cls, system: System) -> Moebius | NotInFamily:
        """Follow the step outwards from the carry as a fraction of affine maps."""
        step, old, dtype = system.only
        if not is_float(dtype):
            return NotInFamily(step, "")
        fraction = _fraction(step, old, dtype)
        if fraction is None or (is_constant(fraction[2], 0) and is_constant(fraction[3], 1)):
            return NotInFamily(step, "")
        return cls(fraction, dtype)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The matrix by rows."""
        return (self.dtype,) * 4

    def lift(self) -> Element:
        """``(p, q, r, s)``."""
        return self.entries

    def combine(self, earlier: Element, later: Element) -> Element:
        """The product of the matrices, its largest entry scaled to one."""
        (p1, q1, r1, s1), (p2, q2, r2, s2) = earlier, later
        product = (
            p2 * p1 + q2 * r1,
            p2 * q1 + q2 * s1,
            r2 * p1 + s2 * r1,
            r2 * q1 + s2 * s1,
        )
        size = zero(self.dtype)
        for entry in product:
            size = tirx.Max(size, tirx.abs(entry))
        # All zero (a constant 0/0) and NaN stay as they are.
        scale = tirx.Select(size > zero(self.dtype), one(self.dtype) / size, one(self.dtype))
        return tuple(entry * scale for entry in product)

    def identity(self) -> Element:
        """The unit matrix."""
        unit, nothing = one(self.dtype), zero(self.dtype)
        return (unit, nothing, nothing, unit)

    def apply(self, element: Element, carries: Element) -> Element:
        """``(p h + q) / (r h + s)``."""
        p, q, r, s = element
        (h,) = carries
        return ((p * h + q) / (r * h + s),)

    def formulas(self) -> dict[str, str]:
        """Text for ``explain``."""
        return {
            "step": "h' = (p h + q) / (r h + s)",
            "element": "M = [[p, q], [r, s]] up to a factor",
            "combine": "M1 then M2 = M2 M1 / max |entry|",
            "identity": "[[1, 0], [0, 1]]",
            "apply": "(p h + q) / (r h + s)",
            **{name: as_text(value) for name, value in zip("pqrs", self.entries, strict=True)},
        }


def _fraction(e: Any, old: Var, dtype: str) -> Fraction | None:
    """``(p, q, r, s)`` with ``e == (p h + q) / (r h + s)``."""
    unit, nothing = one(dtype), zero(dtype)
    if isinstance(e, Var) and e.same_as(old):
        return unit, nothing, nothing, unit
    if not tir.contains_var(e, [old]):
        return nothing, e, nothing, unit
    if isinstance(e, tirx.Add | tirx.Sub | tirx.Mul | tirx.Div):
        left, right = _fraction(e.a, old, dtype), _fraction(e.b, old, dtype)
        if left is None or right is None:
            return None
        if isinstance(e, tirx.Add | tirx.Sub):
            return _sum(left, right, isinstance(e, tirx.Sub))
        if isinstance(e, tirx.Div):
            right = (right[2], right[3], right[0], right[1])
        return _product(left, right)
    choice = as_choice(e)
    if choice is not None and not tir.contains_var(choice[0], [old]):
        yes, no = _fraction(choice[1], old, dtype), _fraction(choice[2], old, dtype)
        if yes is None or no is None:
            return None
        pairs = zip(yes, no, strict=True)
        return tuple(tirx.op.if_then_else(choice[0], a, b) for a, b in pairs)
    return None


def _times(a: Any, b: Any) -> Any:
    """Product in which zeros and ones that are written out vanish."""
    for x, y in ((a, b), (b, a)):
        if is_constant(x, 0):
            return x
        if is_constant(x, 1):
            return y
    return a * b


def _plus(a: Any, b: Any, negative: bool = False) -> Any:
    if is_constant(b, 0):
        return a
    if is_constant(a, 0) and not negative:
        return b
    return a - b if negative else a + b


def _sum(left: Fraction, right: Fraction, negative: bool) -> Fraction | None:
    """The sum of two fractions over the product of their denominators."""
    (p1, q1, r1, s1), (p2, q2, r2, s2) = left, right
    first, second = _linear(p1, q1, r2, s2), _linear(p2, q2, r1, s1)
    below = _linear(r1, s1, r2, s2)
    if first is None or second is None or below is None:
        return None
    above = [_plus(a, b, negative) for a, b in zip(first, second, strict=True)]
    return (above[0], above[1], *below)


def _product(left: Fraction, right: Fraction) -> Fraction | None:
    """``(p1 h + q1)(p2 h + q2) / (r1 h + s1)(r2 h + s2)``."""
    (p1, q1, r1, s1), (p2, q2, r2, s2) = left, right
    above = _linear(p1, q1, p2, q2)
    below = _linear(r1, s1, r2, s2)
    return None if above is None or below is None else (*above, *below)


def _linear(p1: Any, q1: Any, p2: Any, q2: Any) -> tuple[Any, Any] | None:
    """``(p1 h + q1)(p2 h + q2)`` as ``p h + q``, where no square of the carry appears."""
    if is_constant(p1, 0):
        return _times(q1, p2), _times(q1, q2)
    if is_constant(p2, 0):
        return _times(p1, q2), _times(q1, q2)
    return None
