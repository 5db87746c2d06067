"""Bits that move: shift registers and bit strings, ``h -> ((h << s) & a) ^ b``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.algebra.base import Algebra, Element, NotInFamily, System
from tvm_scan.algebra.choices import as_choice
from tvm_scan.algebra.literal import all_ones, bits_of, folded_bits, is_integer, zero
from tvm_scan.text import as_text

_COUNT = "int32"


@dataclass(frozen=True, eq=False)
class Shifted(Algebra):
    """``h' = ((h << s) & a) ^ b``, or with ``>>`` of an unsigned carry.

    Theorem. A shift that fills with zeros commutes with ``&``, ``|``, ``^`` and ``~`` of every
    bit: ``(x op y) << s == (x << s) op (y << s)``. So a step of bitwise operators and of shifts
    in one direction moves every bit of the carry by the same number of bits ``s`` in all, and
    then applies a function of one bit to it, which is affine over the field of two elements (as
    in ``Bitwise``): with ``f`` the step, ``b = f(0)`` and ``a = f(0) ^ f(~0)``. Two of them
    compose to ``s = s1 + s2``, ``a = (a1 << s2) & a2``, ``b = ((b1 << s2) & a2) ^ b2``.

    What a shift moves out of the carry's own width is lost in the element as it is in the loop,
    so the equality is exact at every width. A signed ``>>`` copies the sign and is not taken.
    """

    name: ClassVar[str] = "shifted bits"
    by: Any
    a: Any
    b: Any
    dtype: str
    left: bool

    @classmethod
    def prove(cls, system: System) -> Shifted | NotInFamily:
        """Check that all paths to the carry shift it alike, and evaluate the step at 0 and ~0."""
        step, old, dtype = system.only
        if not is_integer(dtype):
            return NotInFamily(step, "")
        path = _path(step, old, bits_of(dtype))
        if path is None or path.left is None or not path.bitwise:
            return NotInFamily(step, "")
        at_zero, at_ones = (
            folded_bits(tir.substitute(step, tir.VarMap([(old, value)])))
            for value in (zero(dtype), all_ones(dtype))
        )
        mask = folded_bits(tirx.bitwise_xor(at_zero, at_ones))
        return cls(tir.simplify(path.by), mask, at_zero, dtype, path.left)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Bits moved, mask and flips."""
        return (_COUNT, self.dtype, self.dtype)

    def _moved(self, value: Any, by: Any) -> Any:
        """``value`` moved by any number of bits; nothing is left beyond its width."""
        bits, run = bits_of(self.dtype), tirx.op.shift_left if self.left else tirx.op.shift_right
        known = tir.as_int(by)
        if known is not None:
            inside = tirx.const(known, self.dtype) if 0 <= known < bits else None
            return zero(self.dtype) if inside is None else run(value, inside)
        inside = tirx.Cast(self.dtype, tirx.Min(by, tirx.const(bits - 1, _COUNT)))
        return tirx.Select(by < bits, run(value, inside), zero(self.dtype))

    def lift(self) -> Element:
        """``(s, a, b)``."""
        return (self.by, self.a, self.b)

    def combine(self, earlier: Element, later: Element) -> Element:
        """``(s1 + s2, (a1 << s2) & a2, ((b1 << s2) & a2) ^ b2)``."""
        by = tirx.Min(earlier[0] + later[0], tirx.const(bits_of(self.dtype), _COUNT))
        mask, flips = (self._moved(part, later[0]) for part in earlier[1:])
        return (
            by,
            tirx.bitwise_and(mask, later[1]),
            tirx.bitwise_xor(tirx.bitwise_and(flips, later[1]), later[2]),
        )

    def identity(self) -> Element:
        """``(0, ~0, 0)``."""
        return (tirx.const(0, _COUNT), all_ones(self.dtype), zero(self.dtype))

    def apply(self, element: Element, carries: Element) -> Element:
        """``((h << s) & a) ^ b``."""
        moved = self._moved(carries[0], element[0])
        return (tirx.bitwise_xor(tirx.bitwise_and(moved, element[1]), element[2]),)

    def formulas(self) -> dict[str, str]:
        """Text for ``explain``."""
        to = "<<" if self.left else ">>"
        return {
            "step": f"h' = ((h {to} s) & a) ^ b",
            "element": "(s, a, b)",
            "combine": f"s = s1 + s2, a = (a1 {to} s2) & a2, b = ((b1 {to} s2) & a2) ^ b2",
            "identity": "(0, ~0, 0)",
            "apply": f"((h {to} s) & a) ^ b",
            "s": as_text(self.by),
            "a": as_text(self.a),
            "b": as_text(self.b),
        }


@dataclass(frozen=True, eq=False)
class _Path:
    """The bits by which the carry is shifted on the way to an expression, and in which direction.

    ``bitwise`` tells a path with a bitwise operator or a shift from one of products alone, which
    are affine.
    """

    by: Any
    left: bool | None
    bitwise: bool


def _path(e: Any, old: Var, bits: int) -> _Path | None:
    """The path from the carry to ``e``; None where there are different ones, or other steps."""
    if isinstance(e, Var):
        return _Path(tirx.const(0, _COUNT), None, False)
    if isinstance(e, tirx.LShift | tirx.RShift):
        return _shift(e, old, bits)
    if isinstance(e, tirx.BitwiseAnd | tirx.BitwiseOr | tirx.BitwiseXor):
        return _both(e.a, e.b, old, bits)
    if isinstance(e, tirx.BitwiseNot):
        return _both(e.a, e.a, old, bits)
    if isinstance(e, tirx.Mul):
        for factor, rest in ((e.a, e.b), (e.b, e.a)):
            power = tir.as_int(factor)
            if power is not None and power > 0 and power & (power - 1) == 0:
                return _further(rest, old, bits, tirx.const(power.bit_length() - 1, _COUNT))
        return None
    if isinstance(e, tirx.FloorMod):
        # The remainder of a floored division by a power of two is a mask.
        modulus = tir.as_int(e.b)
        alike = modulus is not None and modulus > 0 and modulus & (modulus - 1) == 0
        return _both(e.a, e.a, old, bits) if alike else None
    choice = as_choice(e)
    if choice is None or tir.contains_var(choice[0], [old]):
        return None
    return _chosen(*choice, old, bits)


def _shift(e: Any, old: Var, bits: int) -> _Path | None:
    left = isinstance(e, tirx.LShift)
    if tir.contains_var(e.b, [old]) or not (left or tir.dtype_of(e).startswith("uint")):
        return None
    by = tir.as_int(e.b)
    if by is not None and not 0 <= by < bits:
        return None
    path = _further(e.a, old, bits, tirx.Cast(_COUNT, e.b), left)
    return None if path is None else _Path(path.by, path.left, True)


def _further(e: Any, old: Var, bits: int, by: Any, left: bool = True) -> _Path | None:
    """The path to ``e``, and ``by`` bits more."""
    inner = _path(e, old, bits)
    if inner is None or inner.left is (not left):
        return None
    return _Path(inner.by + by, left, inner.bitwise)


def _both(left: Any, right: Any, old: Var, bits: int) -> _Path | None:
    """The path to a bitwise operator, the same through either operand that has the carry."""
    paths = [_path(x, old, bits) for x in (left, right) if tir.contains_var(x, [old])]
    first = paths[0]
    if first is None:
        return None
    for other in paths[1:]:
        if other is None or other.left is not first.left:
            return None
        if not tir.structurally_equal(tir.simplify(other.by), tir.simplify(first.by)):
            return None
    return _Path(first.by, first.left, True)


def _chosen(cond: Any, yes: Any, no: Any, old: Var, bits: int) -> _Path | None:
    """The path through a choice that the carry does not make: it shifts as the choice says."""
    paths = [_path(x, old, bits) if tir.contains_var(x, [old]) else None for x in (yes, no)]
    wanted = [tir.contains_var(x, [old]) for x in (yes, no)]
    known = [p for p in paths if p is not None]
    if len(known) != sum(wanted):
        return None
    directions = {p.left for p in known} - {None}
    if len(directions) > 1:
        return None
    by = [tirx.const(0, _COUNT) if p is None else p.by for p in paths]
    moved = tirx.op.if_then_else(cond, *by)
    bitwise = any(p.bitwise for p in known)
    return _Path(moved, next(iter(directions), None), bitwise)
