"""Steps that add and bound: ``h -> min(max(h + a, lo), hi)``; one bound alone is (max, +)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tvm import tirx
from tvm.ir import Call, Var

from tvm_scan import tir
from tvm_scan.algebra.base import Algebra, Element, NotInFamily, System
from tvm_scan.algebra.choices import as_choice
from tvm_scan.algebra.exact import as_numbers
from tvm_scan.algebra.literal import is_float, largest, smallest, zero
from tvm_scan.text import as_text

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

    Integers up to 32 bits are combined in 64 bits, where no sum of gates overflows. The loop bounds
    at every step: of 32 bits its overflow is undefined, and of 8 and 16 bits, where it would wrap,
    a loop is taken that provably does not.

    Where NaN occurs, max and min differ by target and by the order of their operands, and the
    step may become a constant. So floating-point elements are found by running the target's own
    step on minus infinity, infinity and NaN: the bounds as they act, and the value ``n`` that a
    NaN carry leads to. A shift of NaN marks a constant (the bound).
    """

    name: ClassVar[str] = "clamp"
    shift: Any
    low: Any
    high: Any
    dtype: str
    step: Any
    old: Var

    @classmethod
    def prove(cls, system: System) -> Clamp | NotInFamily:
        """Follow sums, max and min outwards from the carry."""
        step, old, dtype = system.only
        bound = None if dtype == "bool" else _a_bound(step, old)
        if bound is None:
            return NotInFamily(step, "")
        if dtype in ("int64", "uint64"):
            reason = "bounds on a 64-bit integer, whose unbounded sums may overflow,"
            return NotInFamily(bound, reason, "carry an int32, if the bounds fit")
        if is_float(dtype):
            parts = _parts(step, old, dtype)
        else:
            numbers = as_numbers(step, old, dtype, system.start)
            if isinstance(numbers, NotInFamily):
                return numbers
            parts = _parts(*numbers, "int64")
        if parts is None or (parts.low is None and parts.high is None):
            return NotInFamily(step, "")
        return cls(parts.shift, parts.low, parts.high, dtype, step, old)

    @property
    def _float(self) -> bool:
        return is_float(self.dtype)

    @property
    def _wide(self) -> str:
        return self.dtype if self._float else "int64"

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Shift, the bounds that there are, and for floats the value after a NaN."""
        bounds = (self.low is not None) + (self.high is not None)
        return (self._wide,) * (1 + bounds + self._float)

    @property
    def reuses_parts(self) -> bool:
        """A composition of floats runs the later map three times, each part of it a step."""
        return self._float

    def _split(self, element: Element) -> tuple[Any, list[Any], Any]:
        """Shift, bounds, value after a NaN."""
        if self._float:
            return element[0], list(element[1:-1]), element[-1]
        return element[0], list(element[1:]), None

    def _join(self, shift: Any, low: Any, high: Any, after_nan: Any) -> Element:
        bounds = [b for b, there in ((low, self.low), (high, self.high)) if there is not None]
        return (shift, *bounds, after_nan) if self._float else (shift, *bounds)

    def _run(self, element: Element, h: Any) -> Any:
        """The element applied to a carry of the wide dtype.

        The comparisons are false for NaN: a NaN shift gives the bound, and so does a NaN bound.
        """
        shift, bounds, after_nan = self._split(element)
        value = h + shift
        if not self._float:
            value = value if self.low is None else tirx.Max(value, bounds.pop(0))
            return value if self.high is None else tirx.Min(value, bounds.pop(0))
        if self.low is not None:
            bound = bounds.pop(0)
            value = tirx.Select(value > bound, value, bound)
        if self.high is not None:
            bound = bounds.pop(0)
            value = tirx.Select(value < bound, value, bound)
        return tirx.Select(tirx.isnan(h), after_nan, value)

    def lift(self) -> Element:
        """``(a, lo, hi)``; of floats as the target's own step shows them."""
        if not self._float:
            return self._join(self.shift, self.low, self.high, None)

        def at(value: Any) -> Any:
            return tir.substitute(self.step, tir.VarMap([(self.old, value)]))

        low, high = at(smallest(self.dtype)), at(largest(self.dtype))
        nan = tirx.const(float("nan"), self.dtype)
        seen = [b for b, there in ((low, self.low), (high, self.high)) if there is not None]
        constant = tirx.isnan(seen[0])
        for bound in seen[1:]:
            constant = tirx.Or(constant, tirx.isnan(bound))
        shift = tirx.Select(constant, nan, self.shift)
        if len(seen) == 2:
            low, high = tirx.Select(constant, nan, low), tirx.Select(constant, nan, high)
        return self._join(shift, low, high, at(nan))

    def combine(self, earlier: Element, later: Element) -> Element:
        """``(a1 + a2, g(lo1), g(hi1))``."""
        shift, bounds, after_nan = self._split(earlier)
        moved = [self._run(later, bound) for bound in bounds]
        if not self._float:
            return (shift + later[0], *moved)
        return (shift + later[0], *moved, self._run(later, after_nan))

    def identity(self) -> Element:
        """``(0, -inf, inf)``; NaN stays NaN."""
        nan = tirx.const(float("nan"), self.dtype) if self._float else None
        return self._join(zero(self._wide), *_ends(self._wide), nan)

    def apply(self, element: Element, carries: Element) -> Element:
        """``min(max(h + a, lo), hi)``."""
        (h,) = carries
        value = self._run(element, h if self._float else tirx.Cast(self._wide, h))
        return (value if self._float else tirx.Cast(self.dtype, value),)

    def formulas(self) -> dict[str, str]:
        """Text for ``explain``."""
        low = "max(h + a, lo)" if self.low is not None else "h + a"
        step = f"min({low}, hi)" if self.high is not None else low
        names = [n for n, there in (("lo", self.low), ("hi", self.high)) if there is not None]
        ends = {"lo": "-inf", "hi": "inf"}
        shown = {"a": self.shift, "lo": self.low, "hi": self.high}
        return {
            "step": f"h' = {step}",
            "element": f"({', '.join(['a', *names])})" + ", and the value after NaN" * self._float,
            "combine": f"f1 then f2 = ({', '.join(['a1 + a2', *(f'f2({n}1)' for n in names)])})",
            "identity": f"({', '.join(['0', *(ends[n] for n in names)])})",
            "apply": step,
            **{name: as_text(value) for name, value in shown.items() if value is not None},
        }


def _ends(wide: str) -> tuple[Any, Any]:
    """Bounds that bound nothing."""
    if is_float(wide):
        return smallest(wide), largest(wide)
    return tirx.const(-_FAR, wide), tirx.const(_FAR, wide)


def _a_bound(step: Any, old: Var) -> Any:
    """A max, min or choice of the carry in the step, if there is one."""
    for e in tir.nodes(step, tirx.Max, tirx.Min, tirx.Select, Call):
        if tir.contains_var(e, [old]) and (isinstance(e, tirx.Max | tirx.Min) or as_choice(e)):
            return e
    return None


def _parts(e: Any, old: Var, wide: str) -> _Parts | None:
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
        parts = _parts(inner, old, wide)
        if parts is None:
            return None
        if isinstance(e, tirx.Add | tirx.Sub):
            return _shifted(parts, other, isinstance(e, tirx.Sub))
        return _bounded(parts, other, isinstance(e, tirx.Max))
    return _chosen(e, old, wide)


def _shifted(parts: _Parts, by: Any, down: bool) -> _Parts:
    def move(value: Any) -> Any:
        if value is None:
            return None
        return value - by if down else value + by

    return _Parts(move(parts.shift), move(parts.low), move(parts.high))


def _bounded(parts: _Parts, by: Any, from_below: bool) -> _Parts:
    kind = tirx.Max if from_below else tirx.Min
    low, high = (None if end is None else kind(end, by) for end in (parts.low, parts.high))
    if from_below:
        return _Parts(parts.shift, by if low is None else low, high)
    return _Parts(parts.shift, low, by if high is None else high)


def _chosen(e: Any, old: Var, wide: str) -> _Parts | None:
    """A choice, free of the carry, between two steps with the same kinds of bounds."""
    choice = as_choice(e)
    if choice is None or tir.contains_var(choice[0], [old]):
        return None
    cond, yes, no = choice
    if not (tir.contains_var(yes, [old]) and tir.contains_var(no, [old])):
        return None
    left, right = _parts(yes, old, wide), _parts(no, old, wide)
    if left is None or right is None:
        return None

    def choose(a: Any, b: Any, missing: Any) -> Any:
        if a is None and b is None:
            return None
        a, b = (missing if x is None else x for x in (a, b))
        return tirx.op.if_then_else(cond, a, b)

    low, high = _ends(wide)
    return _Parts(
        choose(left.shift, right.shift, zero(wide)),
        choose(left.low, right.low, low),
        choose(left.high, right.high, high),
    )
