"""Ranges of integer expressions, and whether their arithmetic stays in its dtype.

Theorem (invariant). If the carry starts in ``R`` and a step takes ``R`` into ``R``, it is in ``R``
before every step. If no operator over the carry wraps for a carry in ``R``, the loop computes what
exact integers do, so that a family of exact integers says what the loop does.

Signed integers of 32 and 64 bits count as never wrapping: TVM's own code for the loop is undefined
where they do.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.algebra.choices import as_choice
from tvm_scan.algebra.literal import bits_of, is_float

Range = tuple[int, int]


def range_of_dtype(dtype: str) -> Range:
    """Least and greatest integer of a dtype."""
    if dtype == "bool" or dtype.startswith("uint"):
        return 0, (1 << bits_of(dtype)) - 1
    return -(1 << (bits_of(dtype) - 1)), (1 << (bits_of(dtype) - 1)) - 1


def may_wrap(step: Any, old: Var, starts: tuple[Any, ...] | None, modulus: int = 0) -> Any:
    """An operator over the carry that may leave its dtype; None where none does.

    Parameters
    ----------
    step : Expr
        The carry after the step.
    old : Var
        The carry before it.
    starts : tuple of Expr, or None
        What the carry may be before the first step, and after steps that forget it; None for
        anything.
    modulus : int
        Of the remainder that the step is: wrapping by multiples of it changes nothing.
    """
    dtype = tir.dtype_of(old)
    anything = range_of_dtype(dtype)
    carry = anything if starts is None else invariant(step, old, anything, starts, dtype)
    checked = _Ranges(old, carry, modulus)
    checked.of(step)
    return checked.wrapping


def invariant(step: Any, old: Var, every: Range, starts: tuple[Any, ...], dtype: str) -> Range:
    """A range that ``starts`` lie in and that ``step`` does not leave, if nothing wraps.

    Parameters
    ----------
    step : Expr
        The carry after the step.
    old : Var
        The carry before it.
    every : tuple of int
        The range of the carry's dtype.
    starts : tuple of Expr
        What the carry may be before the first step, and after steps that forget it.
    dtype : str
        Of the carry.
    """
    exact = _Ranges(old, every, None)
    low, high = _hull([exact.of(step), *(exact.of(tirx.Cast(dtype, s)) for s in starts)])
    return max(low, every[0]), min(high, every[1])


def exact_range(e: Any, old: Var, carry: Range) -> Range:
    """Range of an expression over a carry in ``carry``, nothing over which wraps."""
    return _Ranges(old, carry, None).of(e)


def _hull(ranges: list[Range]) -> Range:
    return min(low for low, _ in ranges), max(high for _, high in ranges)


class _Ranges:
    """Ranges of expressions over a carry in ``carry``.

    Without a modulus nothing over the carry wraps.
    """

    def __init__(self, old: Var, carry: Range, modulus: int | None) -> None:
        self.old, self.carry, self.modulus = old, carry, modulus
        self.wrapping: Any = None

    def of(self, e: Any) -> Range:
        """Range of an integer expression."""
        if isinstance(e, Var) and e.same_as(self.old):
            return self.carry
        dtype = tir.dtype_of(e)
        if is_float(dtype):
            return range_of_dtype("int64")
        exact, every = self._found(e), range_of_dtype(dtype)
        if exact is None:
            return every
        if every[0] <= exact[0] and exact[1] <= every[1]:
            return exact
        return self._wrapped(e, exact, every)

    def _wrapped(self, e: Any, exact: Range, every: Range) -> Range:
        """Range of an operator whose exact results do not fit."""
        dtype = tir.dtype_of(e)
        defined = isinstance(e, tirx.Cast) or dtype.startswith("uint") or bits_of(dtype) < 32
        if not tir.contains_var(e, [self.old]):
            return every
        if self.modulus is None:
            return exact
        if not defined:
            return max(exact[0], every[0]), min(exact[1], every[1])
        if not self.modulus or (1 << bits_of(dtype)) % self.modulus:
            self.wrapping = e if self.wrapping is None else self.wrapping
        return every

    def _found(self, e: Any) -> Range | None:
        """Range of the exact result; None for anything."""
        if isinstance(e, tirx.IntImm):
            return int(e.value), int(e.value)
        if (choice := as_choice(e)) is not None:
            return _hull([self.of(choice[1]), self.of(choice[2])])
        if isinstance(e, tirx.Cast):
            return None if is_float(tir.dtype_of(e.value)) else self.of(e.value)
        if not hasattr(e, "b"):
            return None
        (a, b), (c, d) = self.of(e.a), self.of(e.b)
        if isinstance(e, tirx.Add):
            return a + c, b + d
        if isinstance(e, tirx.Sub):
            return a - d, b - c
        if isinstance(e, tirx.Mul):
            ends = (a * c, a * d, b * c, b * d)
            return min(ends), max(ends)
        if isinstance(e, tirx.Max):
            return max(a, c), max(b, d)
        if isinstance(e, tirx.Min):
            return min(a, c), min(b, d)
        if isinstance(e, tirx.FloorMod) and c == d > 0:
            return (a, b) if a >= 0 and b < c else (0, c - 1)
        if isinstance(e, tirx.FloorDiv) and c == d > 0:
            return a // c, b // c
        if isinstance(e, tirx.BitwiseAnd) and (c >= 0 or a >= 0):
            return 0, min(high for low, high in ((a, b), (c, d)) if low >= 0)
        if isinstance(e, tirx.LShift) and c == d >= 0:
            return a << c, b << c
        if isinstance(e, tirx.RShift) and c == d >= 0:
            return a >> c, b >> c
        return None
