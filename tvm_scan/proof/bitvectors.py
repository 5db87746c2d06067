"""Integers as machines have them: words of the loop's own width, which wrap around."""

from __future__ import annotations

from typing import Any

import z3

from tvm_scan.algebra.literal import bits_of, is_signed
from tvm_scan.algebra.ranges import range_of_dtype
from tvm_scan.proof.logic import Bool, conj

_INDEX = 64


class BitVectors:
    """Arithmetic modulo ``2^n``. Every operation returns a value and a condition.

    The condition of sums and products of 32 and 64 bits is that they do not overflow: TVM's LLVM
    code marks them so (``nsw``, ``nuw``). Narrower ones are defined to wrap.
    """

    name = "bit-vectors"
    guesses = False

    def variable(self, name: str, dtype: str) -> Any:
        """An unknown number."""
        return z3.BitVec(name, bits_of(dtype))

    def within(self, value: Any, dtype: str) -> Bool:
        """Nothing: every word is a number of its dtype."""
        return True

    def const(self, value: int, dtype: str) -> Any:
        """A number."""
        return z3.BitVecVal(value, bits_of(dtype))

    def add(self, a: Any, b: Any, dtype: str) -> tuple[Any, Bool]:
        """``a + b``."""
        if bits_of(dtype) < 32:
            return a + b, True
        signed = is_signed(dtype)
        ok = z3.BVAddNoOverflow(a, b, signed)
        return a + b, conj(ok, z3.BVAddNoUnderflow(a, b)) if signed else ok

    def sub(self, a: Any, b: Any, dtype: str) -> tuple[Any, Bool]:
        """``a - b``."""
        if bits_of(dtype) < 32:
            return a - b, True
        signed = is_signed(dtype)
        ok = z3.BVSubNoUnderflow(a, b, signed)
        return a - b, conj(ok, z3.BVSubNoOverflow(a, b)) if signed else ok

    def mul(self, a: Any, b: Any, dtype: str) -> tuple[Any, Bool]:
        """``a * b``."""
        if bits_of(dtype) < 32:
            return a * b, True
        # By the product in twice the width: z3's own predicate mixes up widths (5.4).
        wide = z3.SignExt if is_signed(dtype) else z3.ZeroExt
        by = bits_of(dtype)
        return a * b, wide(by, a) * wide(by, b) == wide(by, a * b)

    def divide(self, a: Any, b: Any, dtype: str, floor: bool) -> tuple[Any, Any, Bool]:
        """Quotient, remainder, and the condition that there are any."""
        ok = b != 0
        if not is_signed(dtype):
            return z3.UDiv(a, b), z3.URem(a, b), ok
        lowest = self.const(range_of_dtype(dtype)[0], dtype)
        ok = conj(ok, z3.Or(a != lowest, b != self.const(-1, dtype)))
        quotient, rest = a / b, z3.SRem(a, b)
        if not floor:
            return quotient, rest, ok
        down = z3.And(rest != 0, (rest < 0) != (b < 0))
        return z3.If(down, quotient - 1, quotient), z3.If(down, rest + b, rest), ok

    def bitwise(self, word: str, a: Any, b: Any, dtype: str) -> Any:
        """``and``, ``or`` or ``xor``."""
        return a & b if word == "and" else a | b if word == "or" else a ^ b

    def invert(self, a: Any, dtype: str) -> Any:
        """``~a``."""
        return ~a

    def shift(self, a: Any, b: Any, dtype: str, left: bool) -> tuple[Any, Bool]:
        """``a << b`` or ``a >> b``; shifts beyond the width are undefined."""
        ok = z3.ULT(b, self.const(bits_of(dtype), dtype))
        if left:
            return a << b, ok
        return (a >> b if is_signed(dtype) else z3.LShR(a, b)), ok

    def less(self, a: Any, b: Any, dtype: str) -> Bool:
        """``a < b``."""
        return a < b if is_signed(dtype) else z3.ULT(a, b)

    def cast(self, a: Any, source: str, dtype: str) -> tuple[Any, Bool]:
        """``a`` in another width, and the condition that it is the same number."""
        have, want = bits_of(source), bits_of(dtype)
        if want > have:
            wide = z3.SignExt if is_signed(source) else z3.ZeroExt
            changes = is_signed(source) and not is_signed(dtype)
            return wide(want - have, a), (a >= 0 if changes else True)
        value = a if want == have else z3.Extract(want - 1, 0, a)
        if want == have and is_signed(source) != is_signed(dtype):
            return value, a >= 0
        if want == have:
            return value, True
        back = (z3.SignExt if is_signed(dtype) else z3.ZeroExt)(have - want, value)
        same = back == a
        return value, conj(same, value >= 0) if is_signed(dtype) > is_signed(source) else same

    def as_index(self, a: Any, dtype: str) -> Any:
        """The number as what indexes a table."""
        return self.cast(a, dtype, f"int{_INDEX}")[0]

    def index_inside(self, a: Any, dtype: str, extent: int) -> Bool:
        """``0 <= a < extent``."""
        wide = self.as_index(a, dtype)
        return z3.And(wide >= 0, wide < extent)

    def sort(self, dtype: str) -> Any:
        """Sort of the numbers of a dtype."""
        return z3.BitVecSort(bits_of(dtype))

    def read(self, value: Any, dtype: str) -> int:
        """A number of a model as Python's."""
        return int(value.as_signed_long() if is_signed(dtype) else value.as_long())
