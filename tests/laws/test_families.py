"""Every family, from the step expression on: what is proven of it is what it does, exactly.

The step is interpreted as it stands, one time after another; the algebra that was proven from it
is interpreted on the same numbers, elements and split at every point.
"""

import itertools
import math
import random
from fractions import Fraction

import numpy as np
import pytest
from tvm import tirx

from tests.laws.interpreter import TARGETS, evaluate, same
from tests.support.tiers import longer, paired
from tvm_scan.algebra import FAMILIES, Declared, LateSegmented, classify
from tvm_scan.algebra.base import NotInFamily, System

NAN, INF = math.nan, math.inf


def var(name, dtype):
    return tirx.Var(name, dtype)


class Case:
    """A joint step over named inputs, and how to draw them."""

    def __init__(self, family, steps, draw, start, dtypes=("float64",), tolerance=0, declared=()):
        self.family, self.draw, self.start = family, draw, start
        self.dtypes, self.tolerance = dtypes, tolerance
        self.olds = tuple(var(f"h{i}", d) for i, d in enumerate(dtypes))
        self.steps = tuple(steps(*self.olds))
        self.system = System(self.steps, self.olds, tuple(dtypes), tuple(declared))


F, I = "float64", "int32"
a, b, x, y, lo, hi = (var(n, F) for n in ("a", "b", "x", "y", "lo", "hi"))
k, m, n = (var(v, I) for v in "kmn")
p, q = var("p", "bool"), var("q", "bool")
TABLE = tirx.decl_buffer((5, 3), I, "table")
FLAT = tirx.decl_buffer((15,), I, "flat")
byte, nibble = var("byte", "uint8"), var("nibble", "int8")
X0 = tirx.decl_buffer((1,), I, "X0")
X1 = tirx.decl_buffer((1,), I, "X1")


def choose(cond, yes, no):
    return tirx.op.if_then_else(cond, yes, no)


def fractions(rng, names):
    return {v: Fraction(rng.randint(-6, 6), rng.randint(1, 4)) for v in names}


def positive(rng, names):
    return {v: Fraction(rng.randint(1, 9), rng.randint(1, 4)) for v in names}


def integers(rng, names):
    return {v: rng.randint(-40, 40) for v in names}


def floats(rng, names):
    return {v: rng.choice([NAN, INF, -INF, 0.0, 1.5, -2.0, 3.0]) for v in names}


def with_nan(rng, names):
    """No infinite shift: the sum of two is NaN where the loop, which bounds between, is not."""
    return {v: rng.choice([NAN, 0.0, 1.5, -2.0, 3.0]) for v in names}


def small(rng, names):
    return {v: rng.uniform(-3, 3) for v in names}


def flagged(inner):
    def draw(rng, names):
        return {**inner(rng, [v for v in names if v != "k"]), "k": rng.randint(0, 3)}

    return draw


def bounded(inner):
    """Gates of either sign and zero; of floats also those that have no number for a product."""

    def draw(rng, names):
        return {**inner(rng, names), "a": rng.choice([0, 1, -1, 2, -3, Fraction(1, 4)])}

    return draw


def growing(rng, names):
    """Gates whose products leave the range of the dtype while the bounds hold the state."""
    gate = 2.0 ** rng.choice([-600, -90, 1, 70, 600, 900])
    return {**small(rng, names), "a": gate * rng.choice([1, -1]), "lo": -3.5, "hi": 5.25}


def bytes_and_bits(rng, names):
    return {
        "k": rng.randint(0, 9),
        "p": rng.random() < 0.5,
        "byte": rng.randint(0, 255),
        "nibble": rng.randint(-128, 127),
    }


def flat_row(rng, _):
    return {"m": rng.randint(0, 2), "flat": [(7 * c + 2) % 5 for c in range(15)]}


def table_row(rng, _):
    return {
        "m": rng.randint(0, 2),
        "table": [[(s * 3 + c + 1) % 5 for c in range(3)] for s in range(5)],
    }


def stack_row(rng, _):
    return {"X0": [rng.randint(0, 5)], "X1": [rng.randint(0, 5)]}


def bicyclic(h0, h1):
    u, v = tirx.BufferLoad(X0, [0]), tirx.BufferLoad(X1, [0])
    met = tirx.Min(h1, u)
    return (h0 + u - met, h1 + v - met)


def max_of(h):
    return tirx.Max(h, x)


CASES = {
    "add": Case("reduce", lambda h: (h + x,), fractions, (Fraction(1),)),
    "max": Case("reduce", lambda h: (max_of(h),), floats, (0.5,)),
    "chosen max": Case("reduce", lambda h: (choose(x > h, x, h),), floats, (0.5,)),
    "chosen max, keeping": Case("reduce", lambda h: (choose(h >= x, h, x),), floats, (0.5,)),
    "chosen min": Case("reduce", lambda h: (choose(h < x, h, x),), floats, (0.5,)),
    "affine": Case("affine", lambda h: (a * h + b,), fractions, (Fraction(2),)),
    "affine, spread out": Case(
        "affine", lambda h: ((h - x) * a + h / y - b,), positive, (Fraction(2),)
    ),
    "modular": Case("modular affine", lambda h: ((h * k + m) % 21,), integers, (100,), (I,)),
    "modular, nested": Case(
        "modular affine", lambda h: ((h * k % 21 - m) % 21 * n % 7,), integers, (-100,), (I,)
    ),
    "modular, by a mask": Case(
        "modular affine", lambda h: (tirx.bitwise_and(m - h * 5, 31),), integers, (77,), (I,)
    ),
    "clamp": Case(
        "clamp", lambda h: (tirx.Min(tirx.Max(h + a, lo), hi),), fractions, (Fraction(1),)
    ),
    "clamp, integers": Case("clamp", lambda h: (tirx.Max(h - k, 0) + m,), integers, (3,), (I,)),
    "clamp, NaN": Case("clamp", lambda h: (tirx.Min(tirx.Max(h + a, lo), hi),), with_nan, (0.5,)),
    "clamp from above first, NaN": Case(
        "clamp", lambda h: (tirx.Max(tirx.Min(h + a, hi), lo),), with_nan, (0.5,)
    ),
    "clamp, sides mixed, NaN": Case(
        "clamp", lambda h: (tirx.Max(lo, tirx.Min(h + a, hi)),), with_nan, (0.5,)
    ),
    "shift after the bound, NaN": Case(
        "clamp", lambda h: (tirx.Max(h - a, lo) + x,), with_nan, (0.5,)
    ),
    "bounds of a choice, NaN": Case(
        "clamp",
        lambda h: (choose(k > 1, tirx.Max(h + a, lo), tirx.Min(tirx.Max(h, x), hi)),),
        flagged(with_nan),
        (0.5,),
    ),
    "max plus, NaN": Case("clamp", lambda h: (tirx.Max(h + a, x),), with_nan, (0.5,)),
    "max plus, carry second, NaN": Case("clamp", lambda h: (tirx.Max(x, h + a),), with_nan, (0.5,)),
    "min plus, NaN": Case("clamp", lambda h: (tirx.Min(h + a, x),), with_nan, (0.5,)),
    "max plus": Case("clamp", lambda h: (tirx.Max(h + a, x),), fractions, (Fraction(1),)),
    "min plus, integers": Case("clamp", lambda h: (tirx.Min(m, h + k),), integers, (3,), (I,)),
    "bounded affine": Case(
        "bounded affine",
        lambda h: (tirx.Min(tirx.Max(a * h + b, lo), hi),),
        bounded(fractions),
        (Fraction(1),),
    ),
    "bounded affine, NaN": Case(
        "bounded affine",
        lambda h: (tirx.Min(tirx.Max(a * h + b, lo), hi),),
        bounded(with_nan),
        (0.5,),
    ),
    "bounded affine, carry second, NaN": Case(
        "bounded affine",
        lambda h: (tirx.Max(x, tirx.Min(hi, b - a * h)),),
        bounded(with_nan),
        (0.5,),
    ),
    "peak hold": Case("bounded affine", lambda h: (tirx.Max(h * 0.75, x),), fractions, (1,)),
    "peak hold, infinity and NaN": Case(
        "bounded affine", lambda h: (tirx.Max(h * 0.75, x),), floats, (0.5,)
    ),
    "falling, infinity and NaN": Case(
        "bounded affine", lambda h: (tirx.Min(x, h * -0.5),), floats, (0.5,)
    ),
    "rectified by a choice, NaN": Case(
        "bounded affine",
        lambda h: (choose(a * h + b > 0.0, a * h + b, tirx.const(0.0, F)),),
        bounded(with_nan),
        (0.5,),
    ),
    "bounds in layers": Case(
        "bounded affine",
        lambda h: (tirx.Max(x - tirx.Min(h * a, hi) * 2.0, lo) / 4.0,),
        bounded(fractions),
        (Fraction(1),),
    ),
    "bounds in layers, NaN": Case(
        "bounded affine",
        lambda h: (tirx.Max(tirx.Min(h * a + x, hi) * 2.0 + b, lo),),
        bounded(with_nan),
        (0.5,),
    ),
    "bounds of a choice with gates": Case(
        "bounded affine",
        lambda h: (choose(k > 1, tirx.Max(h * a, lo), tirx.Min(b - h, hi)),),
        flagged(bounded(fractions)),
        (Fraction(1),),
    ),
    "gates without limit": Case(
        "bounded affine",
        lambda h: (tirx.Min(tirx.Max(a * h + b, lo), hi),),
        growing,
        (0.7,),
        tolerance=1e-12,
    ),
    "a byte shifted in": Case(
        "shifted bits",
        lambda h: (tirx.bitwise_or(tirx.op.shift_left(h, tirx.const(3, "uint8")), byte),),
        bytes_and_bits,
        (77,),
        ("uint8",),
    ),
    "signed bits shifted out": Case(
        "shifted bits",
        lambda h: (
            tirx.bitwise_xor(
                tirx.bitwise_not(tirx.op.shift_left(h, tirx.const(1, "int8"))),
                tirx.bitwise_and(nibble, tirx.op.shift_left(h, tirx.const(1, "int8"))),
            ),
        ),
        bytes_and_bits,
        (-77,),
        ("int8",),
    ),
    "shifts to the right": Case(
        "shifted bits",
        lambda h: (tirx.bitwise_or(tirx.op.shift_right(h, tirx.const(1, "uint8")), byte),),
        bytes_and_bits,
        (77,),
        ("uint8",),
    ),
    "shifts by an input": Case(
        "shifted bits",
        lambda h: (
            choose(p, tirx.op.shift_left(h, tirx.bitwise_and(byte, tirx.const(7, "uint8"))), h),
        ),
        bytes_and_bits,
        (77,),
        ("uint8",),
    ),
    "flat table": Case(
        "finite automaton", lambda h: (tirx.BufferLoad(FLAT, [h * 3 + m]),), flat_row, (2,), (I,)
    ),
    "lag two": Case("interleaved", lambda h, g: (max_of(g), h), floats, (0.5, -1.5), (F, F)),
    "lag three": Case(
        "interleaved",
        lambda h, g, f: (tirx.Min(tirx.Max(f + a, lo), hi), h, g),
        fractions,
        (Fraction(1), Fraction(2), Fraction(5)),
        (F, F, F),
    ),
    "lag two with resets": Case(
        "interleaved",
        lambda h, g: (choose(k > 2, y, max_of(g)), h),
        flagged(floats),
        (1, 2),
        (F, F),
    ),
    "low bits of wider sums": Case(
        "affine",
        lambda h: (
            tirx.Cast("int8", tirx.Cast(I, h) * k - tirx.Cast(I, nibble) * tirx.const(300, I)),
        ),
        bytes_and_bits,
        (-77,),
        ("int8",),
    ),
    "masks": Case(
        "bitwise affine",
        lambda h: (tirx.bitwise_or(tirx.bitwise_and(h, k), tirx.bitwise_xor(m, n)),),
        integers,
        (5,),
        (I,),
    ),
    "switch": Case(
        "two states",
        lambda h: (tirx.Select(h, p, tirx.Not(q)),),
        lambda rng, names: {v: rng.random() < 0.5 for v in names},
        (True,),
        ("bool",),
    ),
    "automaton": Case(
        "finite automaton", lambda h: (tirx.BufferLoad(TABLE, [h, m]),), table_row, (2,), (I,)
    ),
    "linear fractional": Case(
        "linear fractional", lambda h: (a + x / (h + b),), positive, (Fraction(1),)
    ),
    "second order": Case(
        "matrix affine", lambda h, g: (a * h - b * g + x, h), fractions, (Fraction(1),) * 2, (F, F)
    ),
    "matrix of three": Case(
        "matrix affine",
        lambda h, g, f: (a * g + x, h - b * f, y * h + g + f),
        fractions,
        (Fraction(1),) * 3,
        (F, F, F),
    ),
    "complex": Case(
        "complex affine",
        lambda h, g: (a * h - b * g + x, b * h + a * g + y),
        fractions,
        (Fraction(1),) * 2,
        (F, F),
    ),
    "logsumexp": Case(
        "logsumexp affine",
        lambda h: (
            tirx.Max(h + a, x)
            + tirx.log(tirx.exp(h + a - tirx.Max(h + a, x)) + tirx.exp(x - tirx.Max(h + a, x))),
        ),
        small,
        (0.5,),
        tolerance=1e-12,
    ),
    "reset": Case(
        "segmented", lambda h: (choose(k > 2, x, a * h + b),), flagged(fractions), (Fraction(2),)
    ),
    "reset, non-finite": Case(
        "segmented", lambda h: (choose(k > 2, y, h + x),), flagged(floats), (0.5,)
    ),
    "reset of a bound": Case(
        "segmented",
        lambda h: (choose(k > 2, m, tirx.Max(h + m, n)),),
        lambda rng, names: {**integers(rng, names), "k": rng.randint(0, 3)},
        (3,),
        (I,),
    ),
    "declared": Case(
        "declared associative", bicyclic, stack_row, (2, 3), (I, I), declared=("X0", "X1")
    ),
}
NAMES = ["a", "b", "x", "y", "lo", "hi", "k", "m", "n", "p", "q"]


class Interpreted:
    """A proven algebra over numbers."""

    def __init__(self, case, target):
        self.algebra = classify(case.system)
        assert not isinstance(self.algebra, NotInFamily), self.algebra.reason
        self.case, self.target = case, target

    def _run(self, made, values):
        return tuple(evaluate(e, values, self.target) for e in made)

    def _named(self, name, numbers):
        parts = [var(f"{name}{i}_", d) for i, d in enumerate(self.algebra.dtypes)]
        return tuple(parts), {v.name: number for v, number in zip(parts, numbers, strict=True)}

    def lift(self, step):
        return self._run(self.algebra.lift(), step)

    def identity(self):
        return self._run(self.algebra.identity(), {})

    def combine(self, f, g, which="combine"):
        (left, one), (right, two) = self._named("f", f), self._named("g", g)
        return self._run(getattr(self.algebra, which)(left, right), {**one, **two})

    def apply(self, f, h):
        parts, values = self._named("f", f)
        carries = [var(f"c{i}_", d) for i, d in enumerate(self.case.dtypes)]
        values |= {v.name: number for v, number in zip(carries, h, strict=True)}
        return self._run(self.algebra.apply(parts, tuple(carries)), values)

    def step(self, h, inputs):
        olds = {v.name: number for v, number in zip(self.case.olds, h, strict=True)}
        return self._run(self.case.steps, {**inputs, **olds})


def elements_from(algebra, elements):
    """For every start, the elements from there on: none of them, one, two, ..."""
    starts = range(len(elements) + 1)
    return [
        list(itertools.accumulate(elements[i:], algebra.combine, initial=algebra.identity()))
        for i in starts
    ]


def agree(case, got, want):
    if case.tolerance:
        return np.allclose([float(v) for v in got], [float(v) for v in want], rtol=case.tolerance)
    return all(same(g, w) for g, w in zip(got, want, strict=True))


@pytest.mark.parametrize(("name", "target"), paired(list(CASES), list(TARGETS)), ids=str)
def test_laws(name, target):
    case = CASES[name]
    algebra = Interpreted(case, target)
    assert algebra.algebra.name == case.family
    rng = random.Random(name)
    for _ in range(longer(6, 24)):
        inputs = [case.draw(rng, NAMES) for _ in range(5)]
        states = [case.start]
        for step in inputs:
            states.append(algebra.step(states[-1], step))
        lifted = [algebra.lift(step) for step in inputs]
        elements = elements_from(algebra, lifted)
        for i, j in itertools.combinations(range(len(inputs) + 1), 2):
            made = algebra.apply(elements[i][j - i], states[i])
            assert agree(case, made, states[j]), (i, j, inputs[i:j], states[i])
        for cut in range(len(inputs) + 1):
            joined = algebra.combine(elements[0][cut], elements[cut][-1])
            assert agree(case, algebra.apply(joined, case.start), states[-1]), (cut, inputs)
        extended = algebra.identity()
        for element in lifted:
            extended = algebra.combine(extended, element, "extend")
        assert agree(case, algebra.apply(extended, case.start), states[-1]), inputs


def test_every_family_has_a_law_test():
    tested = {classify(case.system).__class__ for case in CASES.values()}
    assert tested | {LateSegmented} == set(FAMILIES)
    assert Declared in tested


h, g = var("h", F), var("g", F)
j = var("j", I)
u = var("u", "uint32")
u1, u31 = tirx.const(1, "uint32"), tirx.const(31, "uint32")
short = var("short", "int16")
MANY = tirx.decl_buffer((52,), I, "many")
w, x64 = var("w", "int64"), var("x64", "int64")
NEAR_MISSES = {
    "square": ((h * h + x,), (h,), (F,)),
    "moving bound": ((tirx.Min(tirx.Max(h + a, lo), h * 2.0),), (h,), (F,)),
    "condition on the carry": ((choose(h > x, a * h, b),), (h,), (F,)),
    "almost a max": ((choose(x > h, y, h),), (h,), (F,)),
    "unsigned subtraction": ((u - tirx.const(1, "uint32"),), (u,), ("uint32",)),
    "bound on 64 bits": ((tirx.Max(w + x64, x64),), (w,), ("int64",)),
    "logsumexp with a gate": ((tirx.log(tirx.exp(a * h) + tirx.exp(x)),), (h,), (F,)),
    "quotient of squares": ((x / (h * h + b),), (h,), (F,)),
    "product of carries": ((h * g, g + x), (h, g), (F, F)),
    "sum and product": ((h + g, h * a + g * g), (h, g), (F, F)),
    "shifted bits": ((tirx.bitwise_xor(tirx.op.shift_right(j, m), k),), (j,), (I,)),
    "table at an expression": ((tirx.BufferLoad(TABLE, [j + 1, m]),), (j,), (I,)),
    "table in two dimensions": ((tirx.BufferLoad(TABLE, [j, j]),), (j,), (I,)),
    "gate on an integer under a bound": ((tirx.Max(j * k, m),), (j,), (I,)),
    "gate of unknown sign around a bound": ((tirx.Max(h, x) * a,), (h,), (F,)),
    "two slopes": ((tirx.Max(h, h * 0.1) + x,), (h,), (F,)),
    "bounds of two kinds of the carry": ((tirx.Max(h, x) + tirx.Min(h, y),), (h,), (F,)),
    "maximum of neighbours": ((tirx.Max(h, g), h), (h, g), (F, F)),
    "signed shift to the right": ((tirx.op.shift_right(j, m),), (j,), (I,)),
    "shifts in both directions": (
        (tirx.bitwise_or(tirx.op.shift_left(u, u1), tirx.op.shift_right(u, u31)),),
        (u,),
        ("uint32",),
    ),
    "shifted and not": (
        (tirx.bitwise_xor(tirx.op.shift_left(u, u1), u),),
        (u,),
        ("uint32",),
    ),
    "shift by the carry": ((tirx.op.shift_left(j, j),), (j,), (I,)),
    "table of many rows": ((tirx.BufferLoad(MANY, [j * 3 + m]),), (j,), (I,)),
    "table read backwards": ((tirx.BufferLoad(FLAT, [14 - j * 3 - m]),), (j,), (I,)),
    "table at a product": ((tirx.BufferLoad(FLAT, [j * m]),), (j,), (I,)),
    "high bits of a wider sum": (
        (tirx.Cast("int8", tirx.floordiv(tirx.Cast(I, nibble) + k, 2)),),
        (nibble,),
        ("int8",),
    ),
    "narrowed on the way": (
        (tirx.Cast("int16", tirx.Cast(I, tirx.Cast("int8", short)) + k),),
        (short,),
        ("int16",),
    ),
    "integer quotient": ((tirx.floordiv(j, 2) + m,), (j,), (I,)),
    "rounded": ((tirx.Cast(F, tirx.Cast(I, h)) + x,), (h,), (F,)),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses(name):
    steps, olds, dtypes = NEAR_MISSES[name]
    found = classify(System(steps, olds, dtypes))
    assert isinstance(found, NotInFamily), found
    assert found.reason
