"""Steps taken apart: affine maps of the carry, each followed by max, min and their kin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.algebra.affine import coefficients
from tvm_scan.algebra.choices import as_choice

__all__ = ["Layer", "layers_of"]

Bound = Callable[[Any], Any]


@dataclass(frozen=True, eq=False)
class Layer:
    """``bound(gate h + offset)``; None stands for a gate of one and for an offset of zero.

    ``bound`` is made of max and min with values that are free of the carry, and of choices that
    the carry does not make: as a function of its argument it never falls, and where one of those
    values is NaN it does what the target's own max and min do.
    """

    gate: Any
    offset: Any
    bound: Bound
    is_affine: bool = False

    @property
    def known_gate(self) -> float | None:
        """The gate, if it is a number written out."""
        return float(self.gate.value) if isinstance(self.gate, tirx.FloatImm) else None


def layers_of(e: Any, old: Var) -> list[Layer] | None:
    """The layers of a step, the one next to the carry first.

    Parameters
    ----------
    e : Expr
        The carry after the step.
    old : Var
        The carry before it.

    Returns
    -------
    list of Layer or None
        None where the step is no composition of affine maps and bounds.
    """
    found = coefficients(e, old)
    if isinstance(found, tuple):
        return [Layer(*found, _same, is_affine=True)]
    bounded = _bound_of(e, old)
    if bounded is not None:
        inner, outer = bounded
        layers = layers_of(inner, old)
        return None if layers is None else [*layers[:-1], _bounded(layers[-1], outer)]
    choice = as_choice(e)
    if choice is not None:
        return _chosen(*choice, old)
    return _moved(e, old)


def _same(value: Any) -> Any:
    return value


def _bounded(layer: Layer, outer: Bound) -> Layer:
    return Layer(layer.gate, layer.offset, lambda v: outer(layer.bound(v)))


def _bound_of(e: Any, old: Var) -> tuple[Any, Bound] | None:
    """``(inner, outer)`` with ``e == outer(inner)``, the outer one a max, a min or their like."""
    if isinstance(e, tirx.Max | tirx.Min):
        kind = type(e)
        if not tir.contains_var(e.b, [old]):
            return e.a, lambda v: kind(v, e.b)
        if not tir.contains_var(e.a, [old]):
            return e.b, lambda v: kind(e.a, v)
        return None
    return _compared(e, old)


_TESTS = (tirx.GT, tirx.GE, tirx.LT, tirx.LE)


def _compared(e: Any, old: Var) -> tuple[Any, Bound] | None:
    """``v > x ? v : x`` and its kin: a max or min whatever NaN does in it."""
    choice = as_choice(e)
    if choice is None or not isinstance(choice[0], _TESTS):
        return None
    cond, yes, no = choice
    test = type(cond)
    for v, x in ((cond.a, cond.b), (cond.b, cond.a)):
        if not tir.contains_var(v, [old]) or tir.contains_var(x, [old]):
            continue
        first = v.same_as(cond.a)
        for when, other in ((yes, no), (no, yes)):
            if not (tir.structurally_equal(when, v) and tir.structurally_equal(other, x)):
                continue
            keeps = when.same_as(yes)

            def choose(u: Any, x: Any = x, first: bool = first, keeps: bool = keeps) -> Any:
                made = test(u, x) if first else test(x, u)
                return tirx.Select(made, u, x) if keeps else tirx.Select(made, x, u)

            return v, choose
    return None


def _chosen(cond: Any, yes: Any, no: Any, old: Var) -> list[Layer] | None:
    """A choice that the carry does not make, between two steps of one layer each."""
    if tir.contains_var(cond, [old]):
        return None
    pair = [layers_of(x, old) for x in (yes, no)]
    if any(layers is None or len(layers) != 1 for layers in pair):
        return None
    left, right = (layers[0] for layers in pair if layers is not None)

    def choose(a: Any, b: Any, missing: float) -> Any:
        if a is None and b is None:
            return None
        dtype = tir.dtype_of(yes)
        a, b = (tirx.const(missing, dtype) if x is None else x for x in (a, b))
        return tirx.op.if_then_else(cond, a, b)

    return [
        Layer(
            choose(left.gate, right.gate, 1.0),
            choose(left.offset, right.offset, 0.0),
            lambda v: tirx.op.if_then_else(cond, left.bound(v), right.bound(v)),
        )
    ]


def _moved(e: Any, old: Var) -> list[Layer] | None:
    """An affine map of what is itself bounded: one layer more."""
    if not isinstance(e, tirx.Add | tirx.Sub | tirx.Mul | tirx.Div):
        return None
    inside = [x for x in (e.a, e.b) if tir.contains_var(x, [old])]
    if len(inside) != 1:
        return None
    layers = layers_of(inside[0], old)
    value = tirx.Var("v", tir.dtype_of(inside[0]))
    left = inside[0].same_as(e.a)
    outer = type(e)(value, e.b) if left else type(e)(e.a, value)
    found = coefficients(outer, value)
    if layers is None or not isinstance(found, tuple):
        return None
    return [*layers, Layer(*found, _same, is_affine=True)]
