"""Steps taken apart: an affine map of the carry, and the max, min and their kin around it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.algebra.affine import coefficients
from tvm_scan.algebra.choices import as_choice
from tvm_scan.algebra.literal import plus, times


class Bound(ABC):
    """A function of one value that never falls, made of max, min and choices.

    Where one of its bounds is NaN it does what the target's own max and min do.
    """

    @abstractmethod
    def at(self, value: Any) -> Any:
        """The function at a value."""

    @abstractmethod
    def moved(self, gate: float, offset: Any) -> Bound:
        """``f`` with ``f(gate v + offset) == gate self(v) + offset`` for a gate that is not zero.

        Max and min commute with a map that rises, and change places under one that falls.
        """


class _Free(Bound):
    """No bound at all."""

    def at(self, value: Any) -> Any:
        return value

    def moved(self, gate: float, offset: Any) -> Bound:
        return self


_FALLING = {
    tirx.Max: tirx.Min,
    tirx.Min: tirx.Max,
    tirx.GT: tirx.LT,
    tirx.GE: tirx.LE,
    tirx.LT: tirx.GT,
    tirx.LE: tirx.GE,
}


@dataclass(frozen=True, eq=False)
class _Side(Bound):
    """``kind(inner, limit)``, or a choice of the larger or the smaller by a comparison."""

    inner: Bound
    limit: Any
    kind: Any
    #: Whether the value stands before its limit, and whether it is kept where a test holds.
    first: bool
    keeps: bool = True

    def at(self, value: Any) -> Any:
        inside = self.inner.at(value)
        pair = (inside, self.limit) if self.first else (self.limit, inside)
        bounded = self.kind(*pair)
        if self.kind in (tirx.Max, tirx.Min):
            return bounded
        return tirx.Select(bounded, *((inside, self.limit) if self.keeps else (self.limit, inside)))

    def moved(self, gate: float, offset: Any) -> Bound:
        kind = self.kind if gate > 0 else _FALLING[self.kind]
        limit = _mapped(self.limit, gate, offset)
        return _Side(self.inner.moved(gate, offset), limit, kind, self.first, self.keeps)


@dataclass(frozen=True, eq=False)
class _Either(Bound):
    """A choice, which the carry does not make, between two bounds."""

    condition: Any
    yes: Bound
    no: Bound

    def at(self, value: Any) -> Any:
        return tirx.op.if_then_else(self.condition, self.yes.at(value), self.no.at(value))

    def moved(self, gate: float, offset: Any) -> Bound:
        return _Either(self.condition, *(x.moved(gate, offset) for x in (self.yes, self.no)))


def _mapped(value: Any, gate: float, offset: Any) -> Any:
    """``gate value + offset``; None for the offset is zero."""
    scaled = value if gate == 1 else times(value, tirx.const(gate, tir.dtype_of(value)))
    return scaled if offset is None else plus(scaled, offset)


@dataclass(frozen=True, eq=False)
class BoundedMap:
    """``bound(gate h + offset)``; None stands for a gate of one and for an offset of zero."""

    gate: Any
    offset: Any
    bound: Bound

    @property
    def is_affine(self) -> bool:
        """Return whether the map has no bound."""
        return isinstance(self.bound, _Free)

    @property
    def known_gate(self) -> float | None:
        """The gate, if it is a number written out."""
        return float(self.gate.value) if isinstance(self.gate, tirx.FloatImm) else None


def bounded_map(e: Any, old: Var) -> BoundedMap | None:
    """A step as an affine map between bounds.

    Parameters
    ----------
    e : Expr
        The carry after the step.
    old : Var
        The carry before it.

    Returns
    -------
    BoundedMap or None
        None where the step is something else.
    """
    parts = coefficients(e, old)
    if isinstance(parts, tuple):
        return BoundedMap(*parts, _Free())
    if isinstance(e, tirx.Max | tirx.Min):
        for inner, limit, first in ((e.a, e.b, True), (e.b, e.a, False)):
            if not tir.contains_var(limit, [old]):
                return _bounded(inner, old, limit, type(e), first)
        return None
    choice = as_choice(e)
    if choice is not None:
        return _compared(*choice, old) or _chosen(*choice, old)
    return _around(e, old)


def _bounded(
    inner: Any, old: Var, limit: Any, kind: Any, first: bool, keeps: bool = True
) -> BoundedMap | None:
    inside = bounded_map(inner, old)
    if inside is None:
        return None
    bound = _Side(inside.bound, limit, kind, first, keeps)
    return BoundedMap(inside.gate, inside.offset, bound)


def _compared(cond: Any, yes: Any, no: Any, old: Var) -> BoundedMap | None:
    """``v > x ? v : x`` and its kin: a max or min, whatever NaN does in it."""
    if not isinstance(cond, tirx.GT | tirx.GE | tirx.LT | tirx.LE):
        return None
    for v, x, first in ((cond.a, cond.b, True), (cond.b, cond.a, False)):
        if not tir.contains_var(v, [old]) or tir.contains_var(x, [old]):
            continue
        for keeps, chosen, other in ((True, yes, no), (False, no, yes)):
            if tir.structurally_equal(chosen, v) and tir.structurally_equal(other, x):
                return _bounded(v, old, x, type(cond), first, keeps)
    return None


def _chosen(cond: Any, yes: Any, no: Any, old: Var) -> BoundedMap | None:
    """A choice that the carry does not make, between two steps."""
    if tir.contains_var(cond, [old]):
        return None
    left, right = (bounded_map(x, old) for x in (yes, no))
    if left is None or right is None:
        return None

    def choose(a: Any, b: Any, missing: float) -> Any:
        if a is None and b is None:
            return None
        dtype = tir.dtype_of(yes)
        a, b = (tirx.const(missing, dtype) if x is None else x for x in (a, b))
        return tirx.op.if_then_else(cond, a, b)

    gate, offset = choose(left.gate, right.gate, 1.0), choose(left.offset, right.offset, 0.0)
    return BoundedMap(gate, offset, _Either(cond, left.bound, right.bound))


def _around(e: Any, old: Var) -> BoundedMap | None:
    """An affine map, its gate a number written out, of what is itself bounded."""
    if not isinstance(e, tirx.Add | tirx.Sub | tirx.Mul | tirx.Div):
        return None
    inside = [x for x in (e.a, e.b) if tir.contains_var(x, [old])]
    if len(inside) != 1:
        return None
    inner = bounded_map(inside[0], old)
    value = Var("v", inside[0].ty)
    left = inside[0].same_as(e.a)
    outer = coefficients(type(e)(value, e.b) if left else type(e)(e.a, value), value)
    if inner is None or not isinstance(outer, tuple):
        return None
    gate, offset = outer
    known = 1.0 if gate is None else _number(gate)
    if known is None or known == 0 or known != known:
        return None
    return BoundedMap(
        _product(inner.gate, gate),
        _total(inner.offset, known, offset),
        inner.bound.moved(known, offset),
    )


def _number(gate: Any) -> float | None:
    """A number written out, or minus one, as which a difference has it."""
    if isinstance(gate, tirx.FloatImm):
        return float(gate.value)
    if isinstance(gate, tirx.Sub | tirx.Div):
        left, right = _number(gate.a), _number(gate.b)
        if left is None or right is None:
            return None
        if isinstance(gate, tirx.Sub):
            return left - right
        return left / right if right else None
    return None


def _product(inner: Any, outer: Any) -> Any:
    if inner is None or outer is None:
        return outer if inner is None else inner
    return times(inner, outer)


def _total(inner: Any, gate: float, offset: Any) -> Any:
    return offset if inner is None else _mapped(inner, gate, offset)
