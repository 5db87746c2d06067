"""Elements of an algebra as unknowns, and what holds of every element that steps make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import z3
from tvm import tirx
from tvm.ir import Var
from tvm.sym import Analyzer, ConstIntBound

from tvm_scan import tir
from tvm_scan.algebra.choices import map_choices
from tvm_scan.algebra.literal import bits_of, is_bool, is_float, is_integer
from tvm_scan.algebra.ranges import range_of_dtype
from tvm_scan.proof.atoms import unknown_value
from tvm_scan.proof.images import Image
from tvm_scan.proof.logic import Bool, conj, implies, neg
from tvm_scan.proof.reals import Real
from tvm_scan.proof.translate import Term


@dataclass(frozen=True)
class Fact:
    """Facts that hold of one part of every element.

    Attributes
    ----------
    low, high : int or None
        Bounds of an integer of an element over no steps; None where nothing is known.
    each : int
        How far either bound moves with each step.
    nan, up, down : bool
        Whether a float may be NaN, infinity, minus infinity.
    zero : bool
        Whether the image of a float under ``exp`` may be zero.
    """

    low: int | None = None
    high: int | None = None
    each: int = 0
    nan: bool = False
    up: bool = False
    down: bool = False
    zero: bool = False


@dataclass(frozen=True, eq=False)
class Unknowns:
    """An unknown element: its parts as variables of TensorIR and as terms, and what is assumed."""

    parts: tuple[Var, ...]
    terms: tuple[Term, ...]
    assumed: list[Bool]
    steps: Any


def unknown_element(
    name: str, dtypes: tuple[str, ...], facts: tuple[Fact, ...], arithmetic: Any, images: bool
) -> Unknowns:
    """An element of which the facts hold, over an unknown number of steps."""
    steps = z3.Int(f"steps of {name}")
    assumed: list[Bool] = [steps >= 0] if any(fact.each for fact in facts) else []
    parts, terms = [], []
    for i, (dtype, fact) in enumerate(zip(dtypes, facts, strict=True)):
        label = f"{name} {i}"  # as no input is named
        parts.append(tirx.Var(f"{name}{i}", dtype))
        value, within = unknown_value(label, dtype, arithmetic, images)
        assumed.append(within)
        if isinstance(value, Real):
            flags = {
                flag: z3.Bool(f"{label} is {word}") if getattr(fact, flag) else False
                for flag, word in (("nan", "nan"), ("up", "inf"), ("down", "-inf"))
            }
            value = replace(value, **flags)
            assumed.append(neg(conj(value.up, value.down)))
            assumed.append(implies(value.nan, neg(value.infinite)))
        terms.append(Term(value))
        assumed.append(holds_of(fact, value, dtype, steps, arithmetic, images))
    return Unknowns(tuple(parts), tuple(terms), assumed, steps)


def holds_of(fact: Fact, value: Any, dtype: str, steps: Any, arithmetic: Any, images: bool) -> Bool:
    """The fact as a condition on a part of an element over so many steps."""
    if is_bool(dtype):
        return True
    if is_float(dtype):
        if images:
            return neg(value.less(Image.const(0))) if fact.zero else Image.const(0).less(value)
        return conj(
            True if fact.nan else neg(value.nan),
            True if fact.up else neg(value.up),
            True if fact.down else neg(value.down),
        )
    if fact.low is None or fact.high is None:
        return True
    if fact.each:
        return z3.And(value >= fact.low - steps * fact.each, value <= fact.high + steps * fact.each)
    low, high = (arithmetic.const(bound, dtype) for bound in (fact.low, fact.high))
    return conj(neg(arithmetic.less(value, low, dtype)), neg(arithmetic.less(high, value, dtype)))


def candidates(
    elements: list[tuple[Any, ...]],
    terms: list[list[Term]],
    combine: Callable[[tuple[Any, ...], tuple[Any, ...]], tuple[Any, ...]],
    dtypes: tuple[str, ...],
    counted: bool,
    images: bool,
) -> list[list[Fact]]:
    """Facts of every part, from the strongest to the weakest, which says nothing.

    Parameters
    ----------
    elements : list of tuple of Expr
        The elements that are made of no other ones: the lifted one first, the identity last.
    terms : list of list of Term
        The same as terms.
    combine : callable
        The algebra's.
    dtypes : tuple of str
        Of the parts.
    counted : bool
        Whether bounds may move with the number of steps.
    images : bool
        Whether floats stand for their images under ``exp``.
    """
    integers = [i for i, dtype in enumerate(dtypes) if is_integer(dtype)]
    joined = {i: _joined([_bounds(e[i], dtypes[i]) for e in elements]) for i in integers}
    f, g = (tuple(tirx.Var(f"{n}{i}", d) for i, d in enumerate(dtypes)) for n in "fg")
    analyzer = Analyzer()
    for i in integers:
        for var in (f[i], g[i]):
            analyzer.update(var, ConstIntBound(*joined[i]))
    both = combine(f, g)
    lifted = [_bounds(elements[0][i], dtypes[i]) for i in integers if _wide(dtypes[i])]
    # How far one step can move a part: one of the numbers of a lifted element.
    moves = sorted({max(map(abs, pair)) for pair in lifted} - {0})
    out = []
    for i, dtype in enumerate(dtypes):
        if not is_integer(dtype):
            out.append(_without_bounds([t[i] for t in terms], dtype, images))
            continue
        grown = _joined([joined[i], _bounds(both[i], dtype, analyzer)])
        last = _bounds(elements[-1][i], dtype)
        facts = [Fact(*joined[i]), Fact(*grown)]
        # Where a composition compares with a constant, that is where its parts turn around or stop.
        ends = {max(n, last[1]) for c in _constants(both[i], dtype) for n in (c - 1, c)}
        facts = sorted({*facts, *(Fact(last[0], end) for end in ends)}, key=_size)
        if counted and _wide(dtype):
            facts += [Fact(*start, by) for by in moves for start in (last, joined[i])]
        out.append([*dict.fromkeys(facts), Fact()])
    return out


def _without_bounds(terms: list[Term], dtype: str, images: bool) -> list[Fact]:
    if is_bool(dtype):
        return [Fact()]
    if images:
        return [Fact(), Fact(zero=True)]
    seen = {
        flag: any(getattr(term.value, flag) is not False for term in terms)
        for flag in ("nan", "up", "down")
    }
    both = Fact(up=True, down=True)
    return list(dict.fromkeys((Fact(**seen), both, replace(both, nan=True))))


def _size(fact: Fact) -> tuple[int, int]:
    assert fact.low is not None
    assert fact.high is not None
    return fact.high - fact.low, fact.low


def _constants(e: Any, dtype: str) -> set[int]:
    """The constants of a dtype in an expression."""
    constants = tir.nodes(e, tirx.IntImm)
    return {int(node.value) for node in constants if tir.dtype_of(node) == dtype}


def _joined(bounds: list[tuple[int, int]]) -> tuple[int, int]:
    return min(low for low, _ in bounds), max(high for _, high in bounds)


def _bounds(e: Any, dtype: str, analyzer: Analyzer | None = None) -> tuple[int, int]:
    least, most = range_of_dtype(dtype)
    bound = (analyzer or Analyzer()).const_int_bound(_with_selects(e))
    return max(int(bound.min_value), least), min(int(bound.max_value), most)


def _with_selects(e: Any) -> Any:
    """``e`` with selects as its choices: the analyzer bounds these."""
    return map_choices(e, lambda _, *choice: tirx.Select(*choice))


def _wide(dtype: str) -> bool:
    """Return whether a dtype is one in which narrower carries are summed."""
    return is_integer(dtype) and bits_of(dtype) >= 32
