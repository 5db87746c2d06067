"""Steps on integers as steps on numbers, where the loop's own arithmetic provably does not wrap."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.algebra.affine import coefficients
from tvm_scan.algebra.base import NotInFamily
from tvm_scan.algebra.choices import as_choice, as_extremum
from tvm_scan.algebra.literal import bits_of, is_integer
from tvm_scan.algebra.ranges import exact_range, invariant, range_of_dtype

_WIDE = "int64"
#: What a step may add: with it, no number of steps that fits in memory leaves 64 bits.
_LARGEST = 1 << 33

_WIDER = (
    "compute in a wider integer and bound there by what the carry holds: T.Cast({dtype!r}, "
    "T.min(T.max(T.Cast({wide!r}, h) + T.Cast({wide!r}, x), {low}), {high})); or carry an int32, "
    "where its values fit, and cast what is stored"
)

_FLOATS = "carry a float: then a bound may stand around any gate"


def as_numbers(
    step: Any, old: Var, dtype: str, starts: tuple[Any, ...] | None = None
) -> tuple[Any, Var] | NotInFamily:
    """A step of max, min, sums and differences over the integers, in 64 bits.

    Theorem. Let every operator of the step whose dtype wraps hold its exact value, for every
    carry in ``R``, let the carry start in ``R`` and the step take ``R`` into ``R``. Then the step
    is the same function of numbers on ``R``, and so is every composition of steps. That ``int32``
    and ``int64`` overflow does not count: TVM takes it for undefined.

    ``u - min(v, x)`` with ``u`` and ``v`` the carry and a shift is ``max(p, u - x)`` with the
    difference ``p`` of the shifts, which is how an unsigned carry is lowered. Where the sum after
    it may wrap, ``max(u - x, 0) + y`` of words is in no family: it is not closed (of 4 bits, 256
    steps make 19,856 functions two by two), and the bicyclic operator on words not associative.

    Parameters
    ----------
    step : Expr
        The carry after the step.
    old : Var
        The carry before it.
    dtype : str
        Its dtype, of at most 32 bits.
    starts : tuple of Expr, or None
        What the carry may be before the first step, and after steps that forget it; None for
        anything.

    Returns
    -------
    tuple of (Expr, Var) or NotInFamily
        The step in 64 bits, over a variable of 64 bits.
    """
    wide = Var(old.name, tir.prim_type(_WIDE))
    numbers = _Numbers(old, wide)
    number = numbers.of(step)
    if isinstance(number, NotInFamily):
        return number
    every = range_of_dtype(dtype)
    carry = every if starts is None else invariant(number, wide, every, starts, dtype)
    for exact, operator, narrowed in numbers.held:
        kind = tir.dtype_of(operator)
        if not narrowed and kind in ("int32", "int64"):
            continue
        (low, high), (least, most) = exact_range(exact, wide, carry), range_of_dtype(kind)
        if low < least or high > most:
            reason = f"arithmetic that may wrap in {kind} before it is bounded,"
            return NotInFamily(operator, reason, fix_of(dtype))
    return number, wide


class _Numbers:
    def __init__(self, old: Var, wide: Var) -> None:
        self.old, self.wide = old, wide
        #: Exact values, the operators that must hold them, and whether these are casts.
        self.held: list[tuple[Any, Any, bool]] = []

    def of(self, e: Any) -> Any:
        """``e`` in 64 bits, or why that is not proven."""
        if isinstance(e, Var) and e.same_as(self.old):
            return self.wide
        if not is_integer(tir.dtype_of(e)):
            return NotInFamily(e, "")
        if not tir.contains_var(e, [self.old]):
            return self._free(e)
        if isinstance(e, tirx.Cast):
            inner = self.of(e.value)
            return inner if isinstance(inner, NotInFamily) else self._hold(inner, e, narrowed=True)
        if isinstance(e, tirx.Add | tirx.Sub | tirx.Max | tirx.Min):
            return self._operator(type(e), e.a, e.b, e)
        if isinstance(e, tirx.Mul):
            return NotInFamily(
                e, "a gate on an integer under a bound, whose products wrap,", _FLOATS
            )
        choice = as_choice(e)
        if choice is None:
            return NotInFamily(e, "")
        cond, yes, no = choice
        if tir.contains_var(cond, [self.old]):
            kind = as_extremum(cond, yes, no)
            return NotInFamily(e, "") if kind is None else self._operator(kind, cond.a, cond.b, e)
        parts = [self.of(x) for x in (yes, no)]
        refused = next((x for x in parts if isinstance(x, NotInFamily)), None)
        return refused or tirx.op.if_then_else(cond, *parts)

    def _free(self, e: Any) -> Any:
        widened = e if tir.dtype_of(e) == _WIDE else tirx.Cast(_WIDE, e)
        low, high = exact_range(widened, self.wide, (0, 0))
        if low < -_LARGEST or high > _LARGEST:
            return NotInFamily(
                e, "a bound or a sum with a 64-bit integer, whose sums may overflow,"
            )
        return widened

    def _operator(self, kind: Any, left: Any, right: Any, e: Any) -> Any:
        parts = [self.of(x) for x in (left, right)]
        refused = next((x for x in parts if isinstance(x, NotInFamily)), None)
        if refused is not None:
            return refused
        both = all(tir.contains_var(x, [self.wide]) for x in parts)
        number = self._lowered(*parts) if both and kind is tirx.Sub else kind(*parts)
        return NotInFamily(e, "") if number is None else self._hold(number, e)

    def _lowered(self, u: Any, taken: Any) -> Any:
        """``u - min(v, x)``, or ``u - max(v, x)``, with the carry once."""
        if not isinstance(taken, tirx.Min | tirx.Max):
            return None
        for v, x in ((taken.a, taken.b), (taken.b, taken.a)):
            first, second = coefficients(u, self.wide), coefficients(v, self.wide)
            if tir.contains_var(x, [self.wide]):
                continue
            if isinstance(first, NotInFamily) or isinstance(second, NotInFamily):
                continue
            if first[0] is not None or second[0] is not None:
                continue
            zero = tirx.IntImm(_WIDE, 0)
            p, q = (zero if part[1] is None else part[1] for part in (first, second))
            other = tirx.Max if isinstance(taken, tirx.Min) else tirx.Min
            return other(self.wide + (p - x), p - q)
        return None

    def _hold(self, number: Any, e: Any, *, narrowed: bool = False) -> Any:
        """``number``, which the operator ``e`` of the loop must hold."""
        self.held.append((number, e, narrowed))
        return number


def fix_of(dtype: str) -> str:
    """The rewrite of a step whose arithmetic may wrap before it is bounded."""
    low, high = range_of_dtype(dtype)
    wide = "int32" if bits_of(dtype) < 32 else "int64"
    return _WIDER.format(dtype=dtype, wide=wide, low=low, high=high)
