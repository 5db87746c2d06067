"""Scalar affine steps ``h -> a h + b``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.algebra.base import (
    KEEP,
    Element,
    Forgetting,
    NotInFamily,
    Plain,
    System,
)
from tvm_scan.algebra.choices import as_choice
from tvm_scan.algebra.literal import (
    bits_of,
    is_float,
    minus,
    one,
    plus,
    times,
    wrapped,
    zero,
    zero_keeping_product,
)
from tvm_scan.text import as_text

_SMALLEST_NORMAL = {"float32": 2.0**-126, "float64": 2.0**-1022}

#: What no family has of a carry, but for a modulus and a table.
_NEVER = (tirx.FloorDiv, tirx.Div, tirx.Mod)

_BOUND = (
    "write a bound as T.max or T.min; a step that branches on its state in another way keeps its "
    "loop, whose lanes run in parallel"
)

_BITS = (
    "shift in one direction on all paths from the carry, an unsigned one where it is to the right, "
    "and combine with &, |, ^ and ~"
)
_ONE_BOUND = "keep the carry on one side of a bound: T.max(a*h + b, x) with a, b and x free of it"
#: What is taken in place of an operator that is not.
_REWRITES: dict[Any, str] = {
    tirx.Max: _ONE_BOUND,
    tirx.Min: _ONE_BOUND,
    tirx.FloorMod: "take one remainder by one constant: (a*h + b) % m with a and b free of h",
    **dict.fromkeys((tirx.BitwiseAnd, tirx.BitwiseOr, tirx.BitwiseXor, tirx.BitwiseNot), _BITS),
    **dict.fromkeys((tirx.LShift, tirx.RShift), _BITS),
}
_DIFFERENCES: dict[Any, str] = {
    tirx.Min: "write h - T.min(h, x) as T.max(h - x, 0), and add what else there is outside of it",
    tirx.Max: "write h - T.max(h, x) as T.min(h - x, 0), and add what else there is outside of it",
}
_SIGNED = "carry a signed integer of that width, or one that is wider, and cast what is stored"


@dataclass(frozen=True, eq=False)
class Affine(Forgetting):
    """``h' = a h + b`` over the reals, or over the integers modulo ``2^n``.

    Theorem. Affine maps compose to affine maps: ``a2 (a1 h + b1) + b2 = (a2 a1) h + (a2 b1 +
    b2)``. In a ring (integers with wrap-around) the equality is exact; for floats it holds up to
    rounding, as does any re-association.

    Attributes
    ----------
    a, b : Expr
        The coefficients, free of the carry.
    dtype : str
        Of the carry.
    forgets : bool
        Whether the step does not read the carry at all. Its gate of zero is then no factor:
        ``0 * NaN`` is NaN, and the step is not.
    """

    name: ClassVar[str] = "affine"
    a: Any
    b: Any
    dtype: str
    forgets: bool = False

    @classmethod
    def prove(cls, system: System) -> Affine | NotInFamily:
        """Extract ``a`` and ``b`` exactly; see ``coefficients``."""
        step, old, dtype = system.only
        if dtype == "bool":
            return NotInFamily(step, "affine steps need numbers, found bool")
        parts = coefficients(step, old)
        if isinstance(parts, NotInFamily):
            return parts
        a, b = parts
        forgets = is_float(dtype) and not tir.contains_var(step, [old])
        return cls(one(dtype) if a is None else a, zero(dtype) if b is None else b, dtype, forgets)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Both parts have the dtype of the carry."""
        return (self.dtype, self.dtype)

    def lift(self) -> Element:
        """``(a, b)``."""
        return (self.a, self.b)

    def constant(self, values: Element) -> Element:
        """``(0, value)``."""
        return (zero(self.dtype), values[0])

    def combine(self, earlier: Element, later: Element) -> Element:
        """``(a2 a1, a2 b1 + b2)``."""
        offset = zero_keeping_product(later[0], earlier[1], self.dtype) + later[1]
        return (later[0] * earlier[0], self._read(later, offset))

    def extend(self, earlier: Element, step: Element) -> Element:
        """Combine; a single step's gate is the input itself and cannot have overflowed."""
        if self.forgets:
            return step
        return (step[0] * earlier[0], step[0] * earlier[1] + step[1])

    def _read(self, element: Element, value: Any) -> Any:
        """``value``, in which an element reads the carry, unless its steps read none."""
        if not self.forgets:
            return value
        return tirx.Select(tirx.EQ(element[0], zero(self.dtype)), element[1], value)

    def flush(self, element: Element) -> Element:
        """A denormal product of gates is zero: what it leaves out is below the smallest float."""
        if self.dtype not in _SMALLEST_NORMAL:
            return element
        gate, offset = element
        least = tirx.const(_SMALLEST_NORMAL[self.dtype], self.dtype)
        small = tirx.And(gate < least, gate > zero(self.dtype) - least)
        return (tirx.Select(small, zero(self.dtype), gate), offset)

    def plainly(self) -> Plain | None:
        """The formulas as they stand, exact as long as no product of gates overflows.

        An infinite gate stays infinite, or becomes NaN, in every later product. So if the gate
        of the result is finite, all gates that went into it were, and finite gates keep zero. An
        infinite gate that meets zero makes NaN of the offset or the carry, which stays NaN in
        whatever it goes into: one that is no NaN is exact.
        """
        if not is_float(self.dtype) or self.forgets:
            return None
        largest = tirx.max_value(self.dtype)

        def combine(earlier: Element, later: Element) -> Element:
            return (later[0] * earlier[0], later[0] * earlier[1] + later[1])

        def apply(element: Element, carries: Element) -> Element:
            return (element[0] * carries[0] + element[1],)

        def finite(element: Element) -> Any:
            return tirx.And(element[0] <= largest, element[0] >= zero(self.dtype) - largest)

        def intact(values: Element) -> Any:
            return tirx.Not(tirx.isnan(values[-1]))

        return Plain(combine, apply, self.identity(), finite, intact=intact)

    def identity(self) -> Element:
        """``(1, 0)``."""
        return (one(self.dtype), zero(self.dtype))

    def apply(self, element: Element, carries: Element) -> Element:
        """``a h + b``."""
        applied = zero_keeping_product(element[0], carries[0], self.dtype) + element[1]
        return (self._read(element, applied),)

    def neutral(self) -> Element:
        """Zero: ``0 * 0 + value == value``."""
        return (zero(self.dtype),)

    def formulas(self) -> dict[str, str]:
        """Text for ``explain``."""
        return {
            "step": "h' = a h + b",
            "element": "(a, b)",
            "combine": "(a1, b1) then (a2, b2) = (a2 a1, a2 b1 + b2)",
            "identity": "(1, 0)",
            "apply": "a h + b",
            "a": as_text(self.a),
            "b": as_text(self.b),
        }


Parts = tuple[Any, Any]


def coefficients(step: Any, old: Var) -> Parts | NotInFamily:
    """``(a, b)`` with ``step == a old + b`` as polynomials; None stands for 1 and for 0.

    Theorem. By induction over the expression: sums, differences and negation of affine maps
    are affine; so is the product of an affine map with a factor that is free of ``old``, the
    quotient by such a divisor (over the reals), and a choice between affine maps on a condition
    that is free of ``old``. Nothing else is taken: in particular no product of two maps of
    ``old``, no call of ``old``, no integer division, no cast that changes the value.

    Parameters
    ----------
    step : Expr
        The carry after the step.
    old : Var
        The carry before it.

    Returns
    -------
    tuple of (Expr or None) or NotInFamily
        ``a`` is None for exactly one, ``b`` is None for exactly zero.
    """
    parts = _parts(step, old)
    if isinstance(parts, NotInFamily):
        return parts
    a, b = parts
    gate = None if a is _ONE else _number(a, tir.dtype_of(step))
    return gate, None if b is _ZERO else b


class _Unit:
    """Symbolic 0 and 1, so that no rounding or ``0 * inf`` enters by the extraction."""


_ZERO, _ONE = _Unit(), _Unit()


def _number(value: Any, dtype: str) -> Any:
    return zero(dtype) if value is _ZERO else one(dtype) if value is _ONE else value


def _parts(e: Any, old: Var) -> tuple[Any, Any] | NotInFamily:
    if isinstance(e, Var) and e.same_as(old):
        return _ONE, _ZERO
    if not tir.contains_var(e, [old]):
        return _ZERO, e
    if isinstance(e, tirx.Sub) and tir.dtype_of(e) in ("uint32", "uint64"):
        return _unsigned_difference(e, old)
    if isinstance(e, tirx.Add | tirx.Sub):
        return _sum(e, old)
    if isinstance(e, tirx.Mul):
        for factor, rest in ((e.a, e.b), (e.b, e.a)):
            if not tir.contains_var(factor, [old]):
                return _scaled(_parts(rest, old), lambda v, f=factor: times(v, f), factor)
        return NotInFamily(e, "the carry is multiplied by a value that depends on it", KEEP)
    if isinstance(e, tirx.Div) and is_float(tir.dtype_of(e)):
        if not tir.contains_var(e.b, [old]):
            unit = one(tir.dtype_of(e)) / e.b
            return _scaled(_parts(e.a, old), lambda v: v / e.b, unit)
        return NotInFamily(e, "the step divides by a value that depends on the carry", KEEP)
    if (choice := as_choice(e)) is not None:
        return _choice(e, *choice, old)
    name = tir.call_name(e)
    if name == "tirx.fma":
        return _parts(e.args[0] * e.args[1] + e.args[2], old)
    if isinstance(e, tirx.Cast) and tir.dtype_of(e) == tir.dtype_of(e.value):
        return _parts(e.value, old)
    if isinstance(e, tirx.LShift):
        by, dtype = tir.as_int(e.b), tir.dtype_of(e)
        if by is not None and 0 <= by < bits_of(dtype):
            unit = wrapped(1 << by, dtype)
            return _scaled(_parts(e.a, old), lambda v: times(v, unit), unit)
    what = name or type(e).__name__
    fix = KEEP if name or isinstance(e, _NEVER) else _REWRITES.get(type(e), "")
    return NotInFamily(e, f"{what} of the carry is not affine in it", fix)


def _scaled(parts: Any, scale: Any, unit: Any) -> tuple[Any, Any] | NotInFamily:
    if isinstance(parts, NotInFamily):
        return parts
    a, b = (unit if x is _ONE else x if x is _ZERO else scale(x) for x in parts)
    return a, b


def _sum(e: Any, old: Var) -> tuple[Any, Any] | NotInFamily:
    left, right = _parts(e.a, old), _parts(e.b, old)
    if isinstance(left, NotInFamily):
        return left
    negative = isinstance(e, tirx.Sub)
    if isinstance(right, NotInFamily):
        # Of floats no maximum: an infinite or NaN h or x makes NaN of the difference.
        extremum = negative and left[0] is _ONE and isinstance(e.b, tirx.Min | tirx.Max)
        return replace(right, fix=_DIFFERENCES[type(e.b)]) if extremum else right
    dtype = tir.dtype_of(e)
    a, b = (_plus(x, y, negative, dtype) for x, y in zip(left, right, strict=True))
    return a, b


def _unsigned_difference(e: Any, old: Var) -> tuple[Any, Any] | NotInFamily:
    """``h + x - y`` with ``y <= x``; the offset of others is negative, undefined for TVM."""
    left = _parts(e.a, old)
    free = not tir.contains_var(e.b, [old])
    if isinstance(left, tuple) and left[1] is not _ZERO and free and _is_at_most(e.b, left[1]):
        return left[0], left[1] - e.b
    return NotInFamily(e, "an unsigned subtraction", _SIGNED)


def _is_at_most(y: Any, x: Any) -> bool:
    """Return whether ``y <= x`` by form: ``y`` is ``x``, or a minimum of it and others."""
    if isinstance(y, tirx.Min):
        return _is_at_most(y.a, x) or _is_at_most(y.b, x)
    return tir.structurally_equal(y, x)


def _plus(left: Any, right: Any, negative: bool, dtype: str) -> Any:
    if right is _ZERO:
        return left
    value = _number(right, dtype)
    if left is _ZERO:
        return minus(zero(dtype), value) if negative else right
    first = _number(left, dtype)
    return minus(first, value) if negative else plus(first, value)


def _choice(e: Any, cond: Any, yes: Any, no: Any, old: Var) -> tuple[Any, Any] | NotInFamily:
    if tir.contains_var(cond, [old]):
        return NotInFamily(e, "the step chooses by a condition on the carry", _BOUND)
    left, right = _parts(yes, old), _parts(no, old)
    if isinstance(left, NotInFamily):
        return left
    if isinstance(right, NotInFamily):
        return right
    dtype = tir.dtype_of(e)

    def chosen(a: Any, b: Any) -> Any:
        if a is b and isinstance(a, _Unit):
            return a
        return tirx.op.if_then_else(cond, _number(a, dtype), _number(b, dtype))

    return chosen(left[0], right[0]), chosen(left[1], right[1])
