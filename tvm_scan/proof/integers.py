"""Integers as people have them, with the ranges of machine words as conditions."""

from __future__ import annotations

from typing import Any

import z3

from tvm_scan.algebra.literal import bits_of, is_signed
from tvm_scan.algebra.ranges import range_of_dtype
from tvm_scan.proof.logic import Bool, pick
from tvm_scan.proof.residues import remainder
from tvm_scan.proof.untranslatable import UntranslatableError


class ExactIntegers:
    """Unbounded arithmetic, in which sums and products are reduced to their range.

    Parameters
    ----------
    wrapping : bool
        Whether signed sums and products of 32 and 64 bits are, too; else they are exact, and do
        not leave their range. Narrower and unsigned ones wrap around in either case.
    """

    def __init__(self, wrapping: bool = False) -> None:
        self.wrapping = wrapping
        #: Whether a function stands for bits of which no more is known: a guess at what they are.
        self.guesses = False

    name = "integers"

    def variable(self, name: str, dtype: str) -> Any:
        """An unknown number."""
        return z3.Int(name)

    def within(self, value: Any, dtype: str) -> Bool:
        """The range of the dtype."""
        low, high = range_of_dtype(dtype)
        if z3.is_int_value(value):
            return low <= value.as_long() <= high
        return z3.And(value >= low, value <= high)

    def const(self, value: int, dtype: str) -> Any:
        """A number."""
        return z3.IntVal(self._number(value, dtype))

    @staticmethod
    def _number(value: int, dtype: str) -> int:
        low, high = range_of_dtype(dtype)
        return (value - low) % (high - low + 1) + low

    def _wrapped(self, value: Any, dtype: str) -> Any:
        low, high = range_of_dtype(dtype)
        return remainder(value - low, high - low + 1) + low if low else remainder(value, high + 1)

    def _result(self, value: Any, dtype: str) -> tuple[Any, Bool]:
        fits = self.within(value, dtype) if bits_of(dtype) >= 32 else True
        if self.wrapping or fits is True or not is_signed(dtype):
            return self._wrapped(value, dtype), fits
        return value, fits

    def add(self, a: Any, b: Any, dtype: str) -> tuple[Any, Bool]:
        """``a + b``."""
        return self._result(a + b, dtype)

    def sub(self, a: Any, b: Any, dtype: str) -> tuple[Any, Bool]:
        """``a - b``."""
        return self._result(a - b, dtype)

    def mul(self, a: Any, b: Any, dtype: str) -> tuple[Any, Bool]:
        """``a * b``."""
        return self._result(a * b, dtype)

    def divide(self, a: Any, b: Any, dtype: str, floor: bool) -> tuple[Any, Any, Bool]:
        """Quotient and remainder by a constant."""
        by = z3.simplify(b)
        if not z3.is_int_value(by) or by.as_long() == 0 or (by.as_long() < 0 and not floor):
            raise UntranslatableError("a division by what is not a constant")
        modulus = by.as_long()
        if modulus < 0:
            return (-a) / -modulus, -remainder(-a, -modulus), True
        if floor or not is_signed(dtype):
            return a / modulus, remainder(a, modulus), True
        quotient = z3.If(a >= 0, a / modulus, -((-a) / modulus))
        return quotient, z3.If(a >= 0, remainder(a, modulus), -remainder(-a, modulus)), True

    def bitwise(self, word: str, a: Any, b: Any, dtype: str) -> Any:
        """``a & (2^k - 1)`` and bits of flags; of other numbers a function that is not known."""
        for value, mask in ((a, z3.simplify(b)), (b, z3.simplify(a))):
            if word == "and" and z3.is_int_value(mask):
                number = mask.as_long()
                if number >= 0 and number & (number + 1) == 0:
                    return remainder(value, number + 1)
        flags = z3.And(a >= 0, a <= 1, b >= 0, b <= 1)
        bit = {"and": a * b, "or": z3.If(a == 0, b, a), "xor": z3.If(a == b, 0, 1)}[word]
        self.guesses = True
        other = z3.Function(f"bitwise {word}", z3.IntSort(), z3.IntSort(), z3.IntSort())
        return z3.If(flags, bit, other(a, b))

    def invert(self, a: Any, dtype: str) -> Any:
        """``~a = -1 - a``; of unsigned integers the largest one less ``a``."""
        return (-1 if is_signed(dtype) else range_of_dtype(dtype)[1]) - a

    def shift(self, a: Any, b: Any, dtype: str, left: bool) -> tuple[Any, Bool]:
        """``a * 2^b`` that wraps, or ``a / 2^b`` rounded down, by a constant."""
        by = z3.simplify(b)
        if not z3.is_int_value(by) or not 0 <= by.as_long() < bits_of(dtype):
            raise UntranslatableError("a shift by what is not a constant within the width")
        factor = 1 << by.as_long()
        return (self._wrapped(a * factor, dtype) if left else a / factor), True

    def less(self, a: Any, b: Any, dtype: str) -> Bool:
        """``a < b``."""
        return a < b

    def cast(self, a: Any, source: str, dtype: str) -> tuple[Any, Bool]:
        """``a`` in another width, and the condition that it is the same number."""
        (low, high), (least, most) = range_of_dtype(source), range_of_dtype(dtype)
        if least <= low and high <= most:
            return a, True
        fits = z3.And(a >= least, a <= most)
        # Not the remainder alone: where the number fits, it stands as it is.
        return pick(fits, a, self._wrapped(a, dtype)), fits

    def as_index(self, a: Any, dtype: str) -> Any:
        """The number as what indexes a table."""
        return a

    def index_inside(self, a: Any, dtype: str, extent: int) -> Bool:
        """``0 <= a < extent``."""
        return z3.And(a >= 0, a < extent)

    def sort(self, dtype: str) -> Any:
        """Sort of the numbers of a dtype."""
        return z3.IntSort()

    def read(self, value: Any, dtype: str) -> int:
        """A number of a model as Python's."""
        return int(value.as_long())
