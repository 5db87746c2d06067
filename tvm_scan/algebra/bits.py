"""Bits: steps made of bitwise operators, and any step at all of a bool carry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.algebra.base import Algebra, Element, NotInFamily, System
from tvm_scan.algebra.literal import all_ones, folded_bits, is_integer, zero
from tvm_scan.text import as_text


@dataclass(frozen=True, eq=False)
class Bitwise(Algebra):
    """``h' = (h & a) ^ b`` on every bit by itself.

    Theorem. A function of one bit is affine over the field of two elements: ``f(h) = (f(0) ^
    f(1)) & h ^ f(0)``. A step made of ``&``, ``|``, ``^`` and ``~`` acts on each bit by itself,
    so ``a = f(0) ^ f(~0)`` and ``b = f(0)`` say all of it. This covers the semirings (or, and)
    and (xor, and).
    """

    name: ClassVar[str] = "bitwise affine"
    a: Any
    b: Any
    dtype: str

    @classmethod
    def prove(cls, system: System) -> Bitwise | NotInFamily:
        """Check that only bitwise operators lie between the carry and the step."""
        step, old, dtype = system.only
        if not is_integer(dtype) or not _is_bitwise(step, old):
            return NotInFamily(step, "")
        at_zero, at_ones = (
            folded_bits(tir.substitute(step, tir.VarMap([(old, value)])))
            for value in (zero(dtype), all_ones(dtype))
        )
        return cls(tirx.bitwise_xor(at_zero, at_ones), at_zero, dtype)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Mask and flips."""
        return (self.dtype, self.dtype)

    def lift(self) -> Element:
        """``(a, b)``."""
        return (self.a, self.b)

    def combine(self, earlier: Element, later: Element) -> Element:
        """``(a1 & a2, (b1 & a2) ^ b2)``."""
        return (
            tirx.bitwise_and(earlier[0], later[0]),
            tirx.bitwise_xor(tirx.bitwise_and(earlier[1], later[0]), later[1]),
        )

    def identity(self) -> Element:
        """``(~0, 0)``."""
        return (all_ones(self.dtype), zero(self.dtype))

    def apply(self, element: Element, carries: Element) -> Element:
        """``(h & a) ^ b``."""
        return (tirx.bitwise_xor(tirx.bitwise_and(carries[0], element[0]), element[1]),)

    def formulas(self) -> dict[str, str]:
        """Text for ``explain``."""
        return {
            "step": "h' = (h & a) ^ b",
            "element": "(a, b)",
            "combine": "(a1, b1) then (a2, b2) = (a1 & a2, (b1 & a2) ^ b2)",
            "identity": "(~0, 0)",
            "apply": "(h & a) ^ b",
            "a": as_text(self.a),
            "b": as_text(self.b),
        }


def _is_bitwise(e: Any, old: Var) -> bool:
    if isinstance(e, Var) or not tir.contains_var(e, [old]):
        return True
    if isinstance(e, tirx.BitwiseAnd | tirx.BitwiseOr | tirx.BitwiseXor):
        return _is_bitwise(e.a, old) and _is_bitwise(e.b, old)
    return isinstance(e, tirx.BitwiseNot) and _is_bitwise(e.a, old)


@dataclass(frozen=True, eq=False)
class Switch(Algebra):
    """Any step of one bool carry.

    Theorem. A function of a bool is its two values; ``g(f(h))`` chooses between g's by f's.
    """

    name: ClassVar[str] = "two states"
    when_false: Any
    when_true: Any

    @classmethod
    def prove(cls, system: System) -> Switch | NotInFamily:
        """Every step of a bool qualifies."""
        step, old, dtype = system.only
        if dtype != "bool":
            return NotInFamily(step, "")
        values = (
            tir.substitute(step, tir.VarMap([(old, tirx.const(value, "bool"))]))
            for value in (False, True)
        )
        return cls(*values)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The two values."""
        return ("bool", "bool")

    def lift(self) -> Element:
        """``(f(false), f(true))``."""
        return (self.when_false, self.when_true)

    def combine(self, earlier: Element, later: Element) -> Element:
        """``(g(f(false)), g(f(true)))``."""
        return tuple(tirx.Select(value, later[1], later[0]) for value in earlier)

    def identity(self) -> Element:
        """``(false, true)``."""
        return (tirx.const(False, "bool"), tirx.const(True, "bool"))

    def apply(self, element: Element, carries: Element) -> Element:
        """The value for the carry."""
        return (tirx.Select(carries[0], element[1], element[0]),)

    def formulas(self) -> dict[str, str]:
        """Text for ``explain``."""
        return {
            "step": "h' = f(h)",
            "element": "(f(false), f(true))",
            "combine": "f then g = (g(f(false)), g(f(true)))",
            "identity": "(false, true)",
            "apply": "f(h)",
            "f(false)": as_text(self.when_false),
            "f(true)": as_text(self.when_true),
        }
