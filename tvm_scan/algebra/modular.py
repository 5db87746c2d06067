"""Affine steps modulo a constant: ``h -> (a h + b) mod m``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.algebra.base import Algebra, Element, NotInFamily, System
from tvm_scan.algebra.literal import is_float, is_integer
from tvm_scan.algebra.ranges import may_wrap, range_of_dtype
from tvm_scan.text import as_text

_WIDE = "int64"
#: Residues below this one have products and sums that int64 holds.
_LARGEST = 1 << 31


@dataclass(frozen=True, eq=False)
class Modular(Algebra):
    """``h' = (a h + b) mod m`` with a constant ``m`` up to 2^31: generators, rolling hashes.

    Theorem. Affine maps over the ring of residues compose to affine maps, exactly. The remainder
    of a floored division, like ``& (2^k - 1)``, is the residue itself for either sign, and is a
    ring homomorphism; so every intermediate value may be reduced, and 64 bits hold all of them.

    The loop computes in its own dtype, where unsigned and narrow integers wrap before the
    remainder. It is taken where they provably do not, or where they wrap by a multiple of ``m``,
    which a power of two is. Signed integers of 32 and 64 bits are undefined where they overflow.

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
        inside = _remainder_of(_uncast(step, dtype))
        if inside is None or not is_integer(dtype):
            return NotInFamily(step, "")
        value, modulus = inside
        if not tir.contains_var(value, [old]):
            return NotInFamily(step, "")
        if modulus > _LARGEST:
            return NotInFamily(step, "a modulus above 2^31, whose products 64 bits do not hold,")
        parts = _parts(value, old, modulus)
        if parts is None:
            return NotInFamily(step, "")
        wrapping = may_wrap(step, old, system.start, modulus)
        if wrapping is not None:
            kind = tir.dtype_of(wrapping)
            return NotInFamily(
                wrapping, f"arithmetic that may wrap in {kind} before its remainder by {modulus},"
            )
        a, b = (tir.simplify(part) for part in parts)
        return cls(a, b, modulus, dtype)

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
        value = tirx.Cast(self.dtype, self._step(element, _residue(carries[0], self.modulus)))
        return (tirx.Select(self._nothing(element), carries[0], value),)

    def formulas(self) -> dict[str, str]:
        """Text for ``explain``."""
        return {
            "step": "h' = (a h + b) mod m",
            "element": "(a mod m, b mod m)",
            "combine": "(a1, b1) then (a2, b2) = (a2 a1, a2 b1 + b2) mod m",
            "identity": "(m, 0), which leaves the other one",
            "apply": "(a h + b) mod m",
            "a": as_text(self.a),
            "b": as_text(self.b),
            "m": str(self.modulus),
        }


def _uncast(e: Any, dtype: str) -> Any:
    """A remainder without the cast to the dtype of the carry, which holds all residues."""
    inside = _remainder_of(e.value) if isinstance(e, tirx.Cast) else None
    return e if inside is None or inside[1] - 1 > range_of_dtype(dtype)[1] else e.value


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
    dtype = tir.dtype_of(value)
    if modulus & (modulus - 1) == 0:
        return tirx.bitwise_and(value, tirx.const(modulus - 1, dtype))
    return tirx.FloorMod(value, tirx.const(modulus, dtype))


def _residue(value: Any, modulus: int) -> Any:
    """The residue in 64 bits of an integer of any dtype, half of which 64 signed bits may lack."""
    if tir.dtype_of(value) == "uint64":
        return tirx.Cast(_WIDE, _reduced(value, modulus))
    return _reduced(tirx.Cast(_WIDE, value), modulus)


def _parts(e: Any, old: Var, modulus: int) -> tuple[Any, Any] | None:
    """Residues ``(a, b)`` with ``e == a old + b``; None where that is not proven."""
    if isinstance(e, Var) and e.same_as(old):
        return _reduced(tirx.const(1, _WIDE), modulus), tirx.const(0, _WIDE)
    if not tir.contains_var(e, [old]):
        return tirx.const(0, _WIDE), _residue(e, modulus)
    if isinstance(e, tirx.Cast) and not is_float(tir.dtype_of(e.value)):
        # One that wraps does so by a power of two: see ``may_wrap``.
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
            parts = _parts(rest, old, modulus)
            if parts is None:
                return None
            scale = _residue(factor, modulus)
            return _reduced(parts[0] * scale, modulus), _reduced(parts[1] * scale, modulus)
    return None
