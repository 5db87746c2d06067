"""Affine steps between bounds: ``h -> min(max(a h + b, lo), hi)`` with a gate of any sign."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, ClassVar

from tvm import tirx

from tvm_scan.algebra.base import Element, Forgetting, NotInFamily, System
from tvm_scan.algebra.bounds import BoundedMap, bounded_map
from tvm_scan.algebra.literal import largest, one, smallest, zero
from tvm_scan.text import as_text

#: ``(limit, step)``: where gate or offset of an element exceeds ``2^limit``, ``2^step`` of it goes
#: into the common factor. Products of two stay finite, and the factor does while the gate does.
_SCALES = {"float32": (63, 65), "float64": (511, 513)}


@dataclass(frozen=True, eq=False)
class BoundedAffine(Forgetting):
    """``h' = min(max(a h + b, lo), hi)`` over the reals, one bound or several, any gate.

    Theorem. Let ``F(h) = clip(a h + b)`` with ``clip`` to ``[lo, hi]``. An affine map takes an
    interval to an interval and a clip to the clip to that interval: ``a2 clip(v) + b2`` is
    ``a2 v + b2`` clipped to ``[a2 lo + b2, a2 hi + b2]``, the ends swapped where ``a2 < 0``. A
    clip of a clip is one. So ``F2(F1(h))`` is ``a2 a1 h + a2 b1 + b2`` clipped between ``F2(lo1)``
    and ``F2(hi1)``. No sign of the gate is needed: the ends are ordered by it. One bound alone
    has an infinite other end. Floats only: integers wrap, and then products are not monotone.

    Between bounds a state stays small while the products of gates grow without limit. So an
    element holds ``a >= 0`` and ``b`` without a common factor ``p``, a power of two with the sign
    of the gate: ``v = (a h + b) p``. Once ``p`` is infinite only the side of the threshold
    ``-b / a`` is known, and both bounds are.

    NaN and infinity are as in the loop: ``lo`` and ``hi`` are what the target's own step makes of
    an affine value of minus infinity and infinity, and ``n``, kept beside them, what it makes of
    NaN. A step whose affine value does not depend on the carry (a gate of zero, an infinite or
    NaN offset, a NaN gate) is a constant, ``lo == hi``. Two exceptions: an infinite gate counts
    as the largest number, and a gate of zero forgets an infinite carry, where the loop's product
    is NaN.
    """

    name: ClassVar[str] = "bounded affine"
    step: BoundedMap
    dtype: str

    @classmethod
    def prove(cls, system: System) -> BoundedAffine | NotInFamily:
        """Take the step apart into an affine map and what bounds it."""
        step, old, dtype = system.only
        if dtype not in _SCALES:
            return NotInFamily(step, "")
        bounded = bounded_map(step, old)
        if bounded is None or bounded.is_affine:
            return NotInFamily(step, "")
        return cls(bounded, dtype)

    @property
    def reuses_parts(self) -> bool:
        """A composition runs the later map three times."""
        return True

    @property
    def dtypes(self) -> tuple[str, ...]:
        """``(a, b, p, lo, hi, n)``."""
        return (self.dtype,) * 6

    def _const(self, value: float) -> Any:
        return tirx.const(value, self.dtype)

    def _power(self, exponent: int) -> Any:
        return self._const(2.0**exponent)

    def _size(self, value: Any) -> Any:
        return tirx.Max(value, zero(self.dtype) - value)

    def _is_infinite(self, value: Any) -> Any:
        top = tirx.max_value(self.dtype)
        return tirx.Or(value > top, value < zero(self.dtype) - top)

    def _run(self, element: Element, h: Any) -> Any:
        """``F(h)``. Comparisons are false for NaN: an affine value of NaN is the lower bound."""
        a, b, p, low, high, after_nan = element
        inside = a * h + b
        grown = inside * tirx.Select(tirx.EQ(inside, zero(self.dtype)), one(self.dtype), p)
        value = tirx.Select(self._is_infinite(h), h * p, grown)
        clipped = tirx.Select(value > low, tirx.Select(value < high, value, high), low)
        return tirx.Select(tirx.isnan(h), after_nan, clipped)

    def _scaled(self, a: Any, b: Any, p: Any) -> tuple[Any, Any, Any]:
        """``(a, b, p)`` of the same map, scaled so that products of them do not overflow."""
        limit, step = _SCALES[self.dtype]
        size = tirx.Max(a, self._size(b))
        large = size > self._power(limit)
        small = tirx.And(size < self._power(limit - step), p * p > one(self.dtype))
        down, up = self._power(-step), self._power(step)
        factor = tirx.Select(large, down, tirx.Select(small, up, one(self.dtype)))
        inverse = tirx.Select(large, up, tirx.Select(small, down, one(self.dtype)))
        return a * factor, b * factor, p * inverse

    def lift(self) -> Element:
        """``(a, b, p, lo, hi, n)``: the bounds as the step's own at the ends of the line."""
        run = self.step.bound.at
        low, high = (run(end(self.dtype)) for end in (smallest, largest))
        constant, value = self._constant_part()
        if constant is not None:
            # Bounds that meet decide alone, whatever gate and offset are.
            fixed = run(value)
            low, high = (tirx.Select(constant, fixed, end) for end in (low, high))
        return (*self._map(), low, high, run(self._const(float("nan"))))

    def _map(self) -> tuple[Any, Any, Any]:
        """``a``, ``b`` and ``p`` of the step."""
        unit, nothing = one(self.dtype), zero(self.dtype)
        gate = self.step.gate
        offset = nothing if self.step.offset is None else self.step.offset
        if gate is None:
            return unit, offset, unit
        known, (limit, step) = self.step.known_gate, _SCALES[self.dtype]
        if known is not None and abs(known) <= 2.0**limit:
            reflected = nothing - offset if known < 0 else offset
            return self._const(abs(known)), reflected, self._const(-1.0 if known < 0 else 1.0)
        falls, size = gate < nothing, self._size(gate)
        reflected = tirx.Select(falls, nothing - offset, offset)
        large, down, up = size > self._power(limit), self._power(-step), self._power(step)
        finite = tirx.Min(size, tirx.max_value(self.dtype))
        return (
            tirx.Select(large, finite * down, size),
            tirx.Select(large, reflected * down, reflected),
            tirx.Select(
                falls,
                tirx.Select(large, nothing - up, nothing - unit),
                tirx.Select(large, up, unit),
            ),
        )

    def _constant_part(self) -> tuple[Any, Any]:
        """The condition under which the affine value is free of the carry, and that value."""
        conditions, value, gate = [], zero(self.dtype), self.step.gate
        if self.step.offset is not None:
            value = self.step.offset
            # Not the opposite of being finite: TVM turns comparisons around, which NaN ends.
            conditions += [tirx.isnan(value), self._is_infinite(value)]
        known = self.step.known_gate
        if gate is not None and (known is None or known == 0 or known != known):
            conditions += [tirx.EQ(gate, zero(self.dtype)), tirx.isnan(gate)]
            value = tirx.Select(tirx.isnan(gate), gate, value)
        return functools.reduce(tirx.Or, conditions) if conditions else None, value

    def combine(self, earlier: Element, later: Element) -> Element:
        """``a2 (a1 h + b1) + b2`` between ``F2(lo1)`` and ``F2(hi1)``."""
        a1, b1, p1, low, high, after_nan = earlier
        a2, b2, p2, *_ = later
        falling = p2 < zero(self.dtype)
        return (
            *self._scaled(a2 * a1, a2 * b1 + b2 / p1, p2 * p1),
            self._run(later, tirx.Select(falling, high, low)),
            self._run(later, tirx.Select(falling, low, high)),
            self._run(later, after_nan),
        )

    def flush(self, element: Element) -> Element:
        """A denormal gate is zero: the sign and the bounds say what infinity becomes."""
        least = self._const(2.0**-126 if self.dtype == "float32" else 2.0**-1022)
        gate = tirx.Select(element[0] < least, zero(self.dtype), element[0])
        return (gate, *element[1:])

    def identity(self) -> Element:
        """``(1, 0, 1, -inf, inf)``; NaN stays NaN."""
        unit = one(self.dtype)
        ends = smallest(self.dtype), largest(self.dtype)
        return (unit, zero(self.dtype), unit, *ends, self._const(float("nan")))

    def apply(self, element: Element, carries: Element) -> Element:
        """``min(max((a h + b) p, lo), hi)``."""
        return (self._run(element, carries[0]),)

    def constant(self, values: Element) -> Element:
        """Both bounds and what NaN becomes are the value."""
        nothing = zero(self.dtype)
        return (nothing, nothing, one(self.dtype), values[0], values[0], values[0])

    def neutral(self) -> Element:
        """Any number: the bounds of a constant meet."""
        return (zero(self.dtype),)

    def formulas(self) -> dict[str, str]:
        """Text for ``explain``."""
        shown = {"a": self.step.gate, "b": self.step.offset}
        return {
            "step": "h' = min(max(a h + b, lo), hi)",
            "element": "(a, b, scale, lo, hi), and the value after NaN",
            "combine": "F1 then F2 = (a2 a1, a2 b1 + b2, F2(lo1), F2(hi1)), ends in order",
            "identity": "(1, 0, 1, -inf, inf)",
            "apply": "min(max(a h + b, lo), hi)",
            **{name: as_text(value) for name, value in shown.items() if value is not None},
            "bounds of v": as_text(self.step.bound.at(tirx.Var("v", self.dtype))),
        }
