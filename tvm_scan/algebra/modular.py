"""Affine steps modulo a constant: ``h -> (a h + b) mod m``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.algebra.base import Algebra, Element, NotInFamily, System

__all__ = ["Modular"]

_WIDE = "int64"
#: Residues below this one have products and sums that int64 holds.
_LARGEST = 1 << 31


@dataclass(frozen=True, eq=False)
class Modular(Algebra):
    """``h' = (a h + b) mod m`` with a constant ``m`` up to 2^31: generators, rolling hashes.

    Theorem. Affine maps over the ring of residues compose to affine maps, exactly. The remainder
    of a floored division, like ``& (2^k - 1)``, is the residue itself for either sign, and is a
    ring homomorphism; so every intermediate value may be reduced, and 64 bits hold all of them.
    (The loop computes in its own dtype. Where that overflows, TVM's code for it is undefined.)

    No steps at all leave even a carry outside of ``0 .. m - 1`` as it is, which no residue can
    say: the gate of the identity is ``m``, a value that no step's gate has.
    """

    name: ClassVar[str] = "modular affine"
    a: Any
    b: Any
    modulus: int
    dtype: str

    @classmethod
    def prove(cls, system: System) -> Modular | NotInFamily:
        """The remainder of sums and products in which the carry is a factor once at most."""
        step, old, dtype = system.only
        inside = _remainder_of(step)
        if inside is None or not dtype.startswith(("int", "uint")):
            return NotInFamily(step, "")
        value, modulus = inside
        if not tir.contains_var(value, [old]):
            return NotInFamily(step, "")
        if modulus > _LARGEST:
            return NotInFamily(step, "a modulus above 2^31, whose products 64 bits do not hold,")
        found = _parts(value, old, modulus)
        if found is None:
            return NotInFamily(step, "")
        a, b = found
        return cls(tir.simplify(a), tir.simplify(b), modulus, dtype)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Gate and offset, in 64 bits."""
        return (_WIDE, _WIDE)

    def lift(self) -> Element:
        """``(a mod m, b mod m)``."""
        return (self.a, self.b)

    def _step(self, element: Element, value: Any) -> Any:
        return _reduced(element[0] * value + element[1], self.modulus)

    def _nothing(self, element: Element) -> Any:
        return tirx.EQ(element[0], tirx.const(self.modulus, _WIDE))

    def combine(self, earlier: Element, later: Element) -> Element:
        """``(a2 a1, a2 b1 + b2) mod m``; the identity is left out."""
        gate = _reduced(later[0] * earlier[0], self.modulus)
        offset = self._step(later, earlier[1])
        first, second = self._nothing(earlier), self._nothing(later)
        return (
            tirx.Select(first, later[0], tirx.Select(second, earlier[0], gate)),
            tirx.Select(first, later[1], tirx.Select(second, earlier[1], offset)),
        )

    def identity(self) -> Element:
        """``(m, 0)``."""
        return (tirx.const(self.modulus, _WIDE), tirx.const(0, _WIDE))

    def apply(self, element: Element, carries: Element) -> Element:
        """``(a h + b) mod m``."""
        carry = tirx.Cast(_WIDE, carries[0])
        value = self._step(element, _reduced(carry, self.modulus))
        return (tirx.Cast(self.dtype, tirx.Select(self._nothing(element), carry, value)),)

    def formulas(self) -> dict[str, str]:
        """Text for ``explain``."""
        return {
            "step": "h' = (a h + b) mod m",
            "element": "(a mod m, b mod m)",
            "combine": "(a1, b1) then (a2, b2) = (a2 a1, a2 b1 + b2) mod m",
            "identity": "(m, 0), which leaves the other one",
            "apply": "(a h + b) mod m",
            "a": str(self.a),
            "b": str(self.b),
            "m": str(self.modulus),
        }


def _remainder_of(e: Any) -> tuple[Any, int] | None:
    """Dividend and modulus of a remainder; None where it is something else."""
    if isinstance(e, tirx.FloorMod):
        modulus = tir.as_int(e.b)
        return None if modulus is None or modulus < 1 else (e.a, modulus)
    if isinstance(e, tirx.BitwiseAnd):
        for value, mask in ((e.a, e.b), (e.b, e.a)):
            bits = tir.as_int(mask)
            if bits is not None and bits >= 0 and bits & (bits + 1) == 0:
                return value, bits + 1
    return None


def _reduced(value: Any, modulus: int) -> Any:
    """The residue. A mask where one does it: a division by a constant costs a product."""
    if modulus & (modulus - 1) == 0:
        return tirx.bitwise_and(value, tirx.const(modulus - 1, _WIDE))
    return tirx.FloorMod(value, tirx.const(modulus, _WIDE))


def _parts(e: Any, old: Var, modulus: int) -> tuple[Any, Any] | None:
    """Residues ``(a, b)`` with ``e == a old + b``; None where that is not proven."""
    if isinstance(e, Var) and e.same_as(old):
        return _reduced(tirx.const(1, _WIDE), modulus), tirx.const(0, _WIDE)
    if not tir.contains_var(e, [old]):
        return tirx.const(0, _WIDE), _reduced(tirx.Cast(_WIDE, e), modulus)
    if isinstance(e, tirx.Cast) and tir.dtype_of(e) in (_WIDE, tir.dtype_of(e.value)):
        return _parts(e.value, old, modulus)
    inner = _remainder_of(e)
    if inner is not None and inner[1] % modulus == 0:
        return _parts(inner[0], old, modulus)
    if isinstance(e, tirx.Sub) and tir.dtype_of(e).startswith("uint"):
        return None
    if isinstance(e, tirx.Add | tirx.Sub):
        left, right = _parts(e.a, old, modulus), _parts(e.b, old, modulus)
        if left is None or right is None:
            return None
        sign = -1 if isinstance(e, tirx.Sub) else 1
        a, b = (
            _reduced(x + y * tirx.const(sign, _WIDE), modulus)
            for x, y in zip(left, right, strict=True)
        )
        return a, b
    if isinstance(e, tirx.Mul):
        for factor, rest in ((e.a, e.b), (e.b, e.a)):
            if tir.contains_var(factor, [old]):
                continue
            found = _parts(rest, old, modulus)
            if found is None:
                return None
            scale = _reduced(tirx.Cast(_WIDE, factor), modulus)
            return _reduced(found[0] * scale, modulus), _reduced(found[1] * scale, modulus)
    return None
