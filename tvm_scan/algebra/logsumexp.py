"""Affine steps over the semiring (logsumexp, +): ``h -> log(exp(h + a) + exp(b))``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tvm import tirx

from tvm_scan import tir
from tvm_scan.algebra.affine import coefficients
from tvm_scan.algebra.base import Algebra, Element, NotInFamily, System
from tvm_scan.algebra.literal import is_constant, is_float, smallest, zero
from tvm_scan.text import as_text


@dataclass(frozen=True, eq=False)
class LogSumExp(Algebra):
    """``h' = logaddexp(h + a, b)``, in any of the ways in which people write logaddexp.

    Theorem. ``exp`` carries (logsumexp, +) to the semiring (+, *) of the non-negative reals, in
    which the step is ``H -> exp(a) H + exp(b)``: affine, hence closed under composition.

    Minus infinity is the zero of the semiring. The stabilised forms ``m + log(..)`` give NaN for
    two of them where the scan gives minus infinity.
    """

    name: ClassVar[str] = "logsumexp affine"
    a: Any
    b: Any
    dtype: str

    @classmethod
    def prove(cls, system: System) -> LogSumExp | NotInFamily:
        """Match logaddexp, then ``h + a`` on one side of it."""
        step, old, dtype = system.only
        if not is_float(dtype):
            return NotInFamily(step, "")
        pair = _summands(step)
        if pair is None:
            return NotInFamily(step, "")
        for first, second in (pair, pair[::-1]):
            if tir.contains_var(second, [old]) or not tir.contains_var(first, [old]):
                continue
            parts = coefficients(first, old)
            if isinstance(parts, tuple) and parts[0] is None:
                return cls(zero(dtype) if parts[1] is None else parts[1], second, dtype)
        return NotInFamily(step, "a logsumexp in which the carry is not h + a")

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Both parts have the dtype of the carry."""
        return (self.dtype, self.dtype)

    def lift(self) -> Element:
        """``(a, b)``."""
        return (self.a, self.b)

    def combine(self, earlier: Element, later: Element) -> Element:
        """``(a1 + a2, logaddexp(b1 + a2, b2))``."""
        return (earlier[0] + later[0], logaddexp(earlier[1] + later[0], later[1], self.dtype))

    def identity(self) -> Element:
        """``(0, -inf)``."""
        return (zero(self.dtype), smallest(self.dtype))

    def apply(self, element: Element, carries: Element) -> Element:
        """``logaddexp(h + a, b)``."""
        return (logaddexp(carries[0] + element[0], element[1], self.dtype),)

    def formulas(self) -> dict[str, str]:
        """Text for ``explain``."""
        return {
            "step": "h' = logaddexp(h + a, b)",
            "element": "(a, b)",
            "combine": "(a1, b1) then (a2, b2) = (a1 + a2, logaddexp(b1 + a2, b2))",
            "identity": "(0, -inf)",
            "apply": "logaddexp(h + a, b)",
            "a": as_text(self.a),
            "b": as_text(self.b),
        }


def logaddexp(u: Any, v: Any, dtype: str) -> Any:
    """``log(exp(u) + exp(v))`` without overflow: ``m + log1p(exp(-|u - v|))``, ``m`` the larger.

    For ``m`` infinite the difference may be NaN; then the result is ``m`` itself.
    """
    larger = tirx.Select(u > v, u, v)
    smaller = tirx.Select(u > v, v, u)
    infinite = tirx.EQ(larger, smaller)  # also two equal infinities
    step = tirx.Select(infinite, zero(dtype), smaller - larger)
    return larger + tirx.log1p(tirx.exp(step))


def _summands(e: Any) -> tuple[Any, Any] | None:
    """``(u, v)`` with ``e == log(exp(u) + exp(v))``."""
    inner = _argument(e, "tirx.log")
    if inner is not None:
        return _exps(inner)
    if not isinstance(e, tirx.Add):
        return None
    for larger, rest in ((e.a, e.b), (e.b, e.a)):
        if not isinstance(larger, tirx.Max):
            continue
        u, v = larger.a, larger.b
        inner = _argument(rest, "tirx.log")
        if inner is not None and (pair := _exps(inner)) is not None:
            shifted = [_plus(x, larger) for x in pair]
            if _same_pair(shifted, (u, v)):
                return u, v
        if _is_log1p_of_distance(rest, u, v):
            return u, v
    return None


def _argument(e: Any, name: str) -> Any:
    return e.args[0] if tir.call_name(e) == name else None


def _exps(e: Any) -> tuple[Any, Any] | None:
    if not isinstance(e, tirx.Add):
        return None
    u, v = _argument(e.a, "tirx.exp"), _argument(e.b, "tirx.exp")
    return None if u is None or v is None else (u, v)


def _plus(x: Any, larger: Any) -> Any:
    """``x + larger`` where ``x`` is written ``y - larger``."""
    if isinstance(x, tirx.Sub) and tir.structurally_equal(x.b, larger):
        return x.a
    return None


def _same_pair(pair: list[Any], wanted: tuple[Any, Any]) -> bool:
    if any(x is None for x in pair):
        return False
    return any(
        tir.structurally_equal(pair[i], wanted[0])
        and tir.structurally_equal(pair[1 - i], wanted[1])
        for i in (0, 1)
    )


def _is_log1p_of_distance(e: Any, u: Any, v: Any) -> bool:
    """Return whether ``e`` is ``log1p(exp(-|u - v|))``, or ``log(1 + exp(..))``."""
    inner = _argument(e, "tirx.log1p")
    if inner is None:
        total = _argument(e, "tirx.log")
        if not isinstance(total, tirx.Add):
            return False
        inner = next(
            (y for x, y in ((total.a, total.b), (total.b, total.a)) if is_constant(x, 1)), None
        )
    distance = None if inner is None else _argument(inner, "tirx.exp")
    return distance is not None and _is_minus_distance(distance, u, v)


def _is_minus_distance(e: Any, u: Any, v: Any) -> bool:
    if isinstance(e, tirx.Sub) and is_constant(e.a, 0):
        size = e.b
    elif isinstance(e, tirx.Mul):
        size = next((y for x, y in ((e.a, e.b), (e.b, e.a)) if is_constant(x, -1)), None)
    elif isinstance(e, tirx.Sub) and isinstance(e.a, tirx.Min) and isinstance(e.b, tirx.Max):
        return _same_pair([e.a.a, e.a.b], (u, v)) and _same_pair([e.b.a, e.b.b], (u, v))
    else:
        return False
    difference = _argument(size, "tirx.fabs")
    return isinstance(difference, tirx.Sub) and _same_pair([difference.a, difference.b], (u, v))
