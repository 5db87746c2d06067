"""Steps that add and bound: ``h -> min(max(h + a, lo), hi)``; one bound alone is (max, +)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.algebra.base import Algebra, Element, NotInFamily, System
from tvm_scan.algebra.choices import as_choice
from tvm_scan.algebra.literal import is_float, largest, smallest, zero

__all__ = ["Clamp"]

#: Bounds of an element of integers over no steps: no sum of gates reaches them.
_FAR = 1 << 61


@dataclass(frozen=True, eq=False)
class _Parts:
    """``h + shift``, then at least ``low``, then at most ``high``; None where unbounded."""

    shift: Any
    low: Any
    high: Any


@dataclass(frozen=True, eq=False)
class Clamp(Algebra):
    """``h' = min(max(h + a, lo), hi)``, or with one of the bounds only.

    With ``lo`` alone this is an affine map over the semiring (max, +), with ``hi`` alone over
    (min, +): alignment scores, queues, the rectified linear step ``max(h + a, 0)``.

    Theorem. Let ``f`` be of this form and ``g(h) = min(max(h + a2, lo2), hi2)``. Both are
    monotone, so ``g(f(h)) = min(max(h + a1 + a2, g(lo1)), g(hi1))``: adding a constant, max and
    min commute with monotone maps, and ``lo > hi`` gives the constant ``hi`` on both sides.

    Integers up to 32 bits are combined in 64 bits, where no sum of gates overflows; the loop,
    which bounds at every step, would not overflow either. Floating-point bounds are probed with
    the target's own max and min (``f(-inf)``, ``f(inf)``), so that a NaN bound does what it does
    in the loop.
    """

    name: ClassVar[str] = "clamp"
    shift: Any
    low: Any
    high: Any
    dtype: str
    carry_first: bool = True

    @classmethod
    def prove(cls, system: System) -> Clamp | NotInFamily:
        """Follow sums, max and min outwards from the carry."""
        step, old, dtype = system.only
        if dtype.startswith(("uint", "bool")):
            return NotInFamily(step, "")
        if dtype == "int64":
            if _looks_bounded(step):
                return NotInFamily(
                    step, "bounds on a 64-bit integer, whose unbounded sums may overflow,"
                )
            return NotInFamily(step, "")
        sides: set[bool] = set()
        found = _parts(step, old, "int64" if not is_float(dtype) else dtype, sides)
        if found is None or (found.low is None and found.high is None):
            return NotInFamily(step, "")
        if is_float(dtype) and len(sides) > 1:
            return NotInFamily(
                step, "max and min with the carry on both sides, which differ on NaN,"
            )
        return cls(found.shift, found.low, found.high, dtype, sides != {False})

    @property
    def _wide(self) -> str:
        return self.dtype if is_float(self.dtype) else "int64"

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Shift, and the bounds that there are."""
        return (self._wide,) * (1 + (self.low is not None) + (self.high is not None))

    def _max(self, h: Any, bound: Any) -> Any:
        return tirx.Max(h, bound) if self.carry_first else tirx.Max(bound, h)

    def _min(self, h: Any, bound: Any) -> Any:
        return tirx.Min(h, bound) if self.carry_first else tirx.Min(bound, h)

    def _bounded(self, element: Element, h: Any) -> Any:
        bounds = list(element[1:])
        if self.low is not None:
            h = self._max(h, bounds.pop(0))
        return self._min(h, bounds.pop(0)) if self.high is not None else h

    def _run(self, element: Element, h: Any) -> Any:
        return self._bounded(element, h + element[0])

    def _element(self, shift: Any, low: Any, high: Any) -> Element:
        bounds = [b for b, there in ((low, self.low), (high, self.high)) if there is not None]
        return (shift, *bounds)

    def lift(self) -> Element:
        """``(a, lo, hi)``, the bounds as the target's max and min see them."""
        element = self._element(self.shift, self.low, self.high)
        if not is_float(self.dtype):
            return element
        low, high = (self._run(element, end(self.dtype)) for end in (smallest, largest))
        shift = self.shift
        if self.low is None or self.high is None:
            # A bound that is NaN to the target hides the carry; one bound alone cannot say so.
            bound = low if self.high is None else high
            shift = tirx.Select(tirx.isnan(bound), bound, shift)
        return self._element(shift, low, high)

    def combine(self, earlier: Element, later: Element) -> Element:
        """``(a1 + a2, g(lo1), g(hi1))``."""
        return (earlier[0] + later[0], *(self._run(later, bound) for bound in earlier[1:]))

    def identity(self) -> Element:
        """``(0, -inf, inf)``."""
        return self._element(zero(self._wide), self._lowest(), self._highest())

    def apply(self, element: Element, carries: Element) -> Element:
        """``min(max(h + a, lo), hi)``."""
        value = self._run(element, self._widen(carries[0]))
        return (value if self._wide == self.dtype else tirx.Cast(self.dtype, value),)

    def _widen(self, value: Any) -> Any:
        return value if tir.dtype_of(value) == self._wide else tirx.Cast(self._wide, value)

    def _lowest(self) -> Any:
        return smallest(self.dtype) if is_float(self.dtype) else tirx.const(-_FAR, "int64")

    def _highest(self) -> Any:
        return largest(self.dtype) if is_float(self.dtype) else tirx.const(_FAR, "int64")

    def formulas(self) -> dict[str, str]:
        """Text for ``explain``."""
        low = "max(h + a, lo)" if self.low is not None else "h + a"
        step = f"min({low}, hi)" if self.high is not None else low
        names = ", ".join(self._element("a", "lo", "hi"))
        bounds = ", ".join(f"f2({n}1)" for n in self._element("a", "lo", "hi")[1:])
        shown = {"a": self.shift, "lo": self.low, "hi": self.high}
        return {
            "step": f"h' = {step}",
            "element": f"({names})",
            "combine": f"f1 then f2 = (a1 + a2, {bounds})",
            "identity": f"({', '.join(self._element('0', '-inf', 'inf'))})",
            "apply": step,
            **{name: str(value) for name, value in shown.items() if value is not None},
        }


def _looks_bounded(step: Any) -> bool:
    return isinstance(step, tirx.Max | tirx.Min)


def _parts(e: Any, old: Var, wide: str, sides: set[bool]) -> _Parts | None:
    """``e`` as shift and bounds; None where it is something else."""

    def free(value: Any) -> Any:
        return value if tir.dtype_of(value) == wide else tirx.Cast(wide, value)

    if isinstance(e, Var) and e.same_as(old):
        return _Parts(zero(wide), None, None)
    if isinstance(e, tirx.Add | tirx.Sub | tirx.Max | tirx.Min):
        in_left, in_right = (tir.contains_var(x, [old]) for x in (e.a, e.b))
        if in_left == in_right:
            return None
        if isinstance(e, tirx.Sub) and in_right:
            return None
        inner, other = (e.a, free(e.b)) if in_left else (e.b, free(e.a))
        found = _parts(inner, old, wide, sides)
        if found is None:
            return None
        if isinstance(e, tirx.Add | tirx.Sub):
            return _shifted(found, other, isinstance(e, tirx.Sub))
        sides.add(in_left)
        return _bounded(found, other, isinstance(e, tirx.Max))
    return _chosen(e, old, wide, sides)


def _shifted(parts: _Parts, by: Any, down: bool) -> _Parts:
    def move(value: Any) -> Any:
        if value is None:
            return None
        return value - by if down else value + by

    return _Parts(move(parts.shift), move(parts.low), move(parts.high))


def _bounded(parts: _Parts, by: Any, from_below: bool) -> _Parts:
    if from_below:
        low = by if parts.low is None else tirx.Max(parts.low, by)
        high = None if parts.high is None else tirx.Max(parts.high, by)
        return _Parts(parts.shift, low, high)
    high = by if parts.high is None else tirx.Min(parts.high, by)
    low = None if parts.low is None else tirx.Min(parts.low, by)
    return _Parts(parts.shift, low, high)


def _chosen(e: Any, old: Var, wide: str, sides: set[bool]) -> _Parts | None:
    """A choice, free of the carry, between two steps with the same kinds of bounds."""
    found = as_choice(e)
    if found is None or tir.contains_var(found[0], [old]):
        return None
    cond, yes, no = found
    if not (tir.contains_var(yes, [old]) and tir.contains_var(no, [old])):
        return None
    left, right = _parts(yes, old, wide, sides), _parts(no, old, wide, sides)
    if left is None or right is None:
        return None

    def choose(a: Any, b: Any, missing: Any) -> Any:
        if a is None and b is None:
            return None
        a, b = (missing if x is None else x for x in (a, b))
        return tirx.op.if_then_else(cond, a, b)

    low = smallest(wide) if is_float(wide) else tirx.const(-_FAR, "int64")
    high = largest(wide) if is_float(wide) else tirx.const(_FAR, "int64")
    return _Parts(
        choose(left.shift, right.shift, zero(wide)),
        choose(left.low, right.low, low),
        choose(left.high, right.high, high),
    )
