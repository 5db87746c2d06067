"""The laws of every algebra, on exact arithmetic, by splitting at every point.

The expressions that an algebra builds are evaluated by a small interpreter over Python numbers:
integers and fractions are exact, and floats follow IEEE with either target's max and min.
"""

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import tirx

from tests.laws.interpreter import TARGETS, evaluate, same
from tests.support.tiers import longer
from tvm_scan.algebra import FAMILIES, Affine, Reduce, classify
from tvm_scan.algebra.affine import coefficients
from tvm_scan.algebra.base import Algebra, NotInFamily, System


class Exact:
    """An algebra over numbers: its own expressions, evaluated."""

    def __init__(self, algebra, inputs, target="llvm"):
        self.algebra, self.inputs, self.target = algebra, inputs, target
        self.types = algebra.dtypes

    def _number(self, expr, **values):
        return evaluate(expr, values, self.target)

    def _symbols(self, name):
        return [tirx.Var(f"{name}{i}", t) for i, t in enumerate(self.types)]

    def lift(self, step):
        return tuple(evaluate(e, step, self.target) for e in self.algebra.lift())

    def combine(self, f, g, which="combine"):
        left, right = self._symbols("f"), self._symbols("g")
        values = {f"f{i}": v for i, v in enumerate(f)} | {f"g{i}": v for i, v in enumerate(g)}
        made = getattr(self.algebra, which)(tuple(left), tuple(right))
        return tuple(evaluate(e, values, self.target) for e in made)

    def identity(self):
        return tuple(evaluate(e, {}, self.target) for e in self.algebra.identity())

    def apply(self, f, h):
        symbols, carry = self._symbols("f"), tirx.Var("h", self.algebra.dtype)
        values = {f"f{i}": v for i, v in enumerate(f)} | {"h": h}
        return evaluate(self.algebra.apply(tuple(symbols), (carry,))[0], values, self.target)


def reduce(exact, elements):
    out = exact.identity()
    for element in elements:
        out = exact.combine(out, element)
    return out


def check_laws(exact, steps, start, sequential):
    """Action, associativity and identities, splitting ``steps`` at every point."""
    lifted = [exact.lift(step) for step in steps]
    states = [start]
    for step in steps:
        states.append(sequential(states[-1], step))
    for i, j in itertools.combinations(range(len(steps) + 1), 2):
        assert same(exact.apply(reduce(exact, lifted[i:j]), states[i]), states[j])
    whole = reduce(exact, lifted)
    for i in range(len(steps) + 1):
        left, right = reduce(exact, lifted[:i]), reduce(exact, lifted[i:])
        joined = exact.combine(left, right)
        assert all(same(a, b) for a, b in zip(joined, whole, strict=True)), i
        assert same(exact.apply(right, exact.apply(left, start)), states[-1])
    extended = exact.identity()
    for element in lifted:
        extended = exact.combine(extended, element, "extend")
    assert same(exact.apply(extended, start), states[-1])


def variable(name, dtype):
    return tirx.Var(name, dtype)


INTS = st.integers(-50, 50)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(INTS, INTS), max_size=7), INTS)
def test_affine_on_integers(pairs, start):
    algebra = Affine(variable("a", "int64"), variable("b", "int64"), "int64")
    steps = [{"a": a, "b": b} for a, b in pairs]
    check_laws(Exact(algebra, "ab"), steps, start, lambda h, s: s["a"] * h + s["b"])


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.fractions(-3, 3), st.fractions(-3, 3)), max_size=6), st.fractions(-3, 3)
)
def test_affine_on_rationals(pairs, start):
    algebra = Affine(variable("a", "float64"), variable("b", "float64"), "float64")
    steps = [{"a": a, "b": b} for a, b in pairs]
    check_laws(Exact(algebra, "ab"), steps, start, lambda h, s: s["a"] * h + s["b"])


OPERATORS = {
    "add": lambda h, x: h + x,
    "mul": lambda h, x: h * x,
    "max": max,
    "min": min,
    "and": lambda h, x: h & x,
    "or": lambda h, x: h | x,
    "xor": lambda h, x: h ^ x,
}


@pytest.mark.parametrize("op", OPERATORS)
@settings(max_examples=30, deadline=None)
@given(values=st.lists(INTS, max_size=7), start=INTS)
def test_reductions_on_integers(op, values, start):
    algebra = Reduce(op, variable("x", "int64"), "int64")
    steps = [{"x": x} for x in values]
    check_laws(Exact(algebra, "x"), steps, start, lambda h, s: OPERATORS[op](h, s["x"]))


NAN = float("nan")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("carry_first", [True, False])
@pytest.mark.parametrize("op", ["max", "min"])
def test_float_max_and_min_with_nan_follow_the_targets_own_loop(op, carry_first, target):
    run = TARGETS[target][op == "min"]
    algebra = Reduce(op, variable("x", "float64"), "float64", carry_first)
    exact = Exact(algebra, "x", target)

    def sequential(h, step):
        return run(h, step["x"]) if carry_first else run(step["x"], h)

    for values in itertools.product([NAN, 1.0, 5.0, -2.0], repeat=longer([3], [4])[0]):
        for start in (0.0, 3.0):
            steps = [{"x": x} for x in values]
            lifted = [exact.lift(s) for s in steps]
            state = start
            for i, step in enumerate(steps):
                state = sequential(state, step)
                for cut in range(i + 2):
                    first, second = reduce(exact, lifted[:cut]), reduce(exact, lifted[cut : i + 1])
                    got = exact.apply(exact.combine(first, second), start)
                    assert same(float(got), float(state)), (values, start, i, cut)


@pytest.mark.parametrize(
    "algebra",
    [
        Affine(variable("a", "float64"), variable("b", "float64"), "float64"),
        *(Reduce(op, variable("x", "float64"), "float64") for op in ("add", "mul", "max", "min")),
    ],
    ids=str,
)
def test_constant_on_the_neutral_carry_gives_the_value(algebra):
    value = variable("v", "float64")
    (made,) = algebra.apply(algebra.constant((value,)), algebra.neutral())
    for number in (Fraction(7, 3), Fraction(0), Fraction(-5)):
        assert evaluate(made, {"v": number}) == number


def test_coefficients_are_exact_and_symbolic():
    h, a, x = (variable(n, "float32") for n in "hax")
    assert coefficients(h, h) == (None, None)
    gate, offset = coefficients((h * a - x) * a + h, h)
    values = {"a": Fraction(3), "x": Fraction(5)}
    assert evaluate(gate, values) == 10
    assert evaluate(offset, values) == -15


def test_no_family_takes_a_product_of_carries():
    h = variable("h", "float32")
    for family in FAMILIES:
        assert isinstance(family.prove(System((h * h,), (h,), ("float32",))), NotInFamily)
    assert isinstance(classify(System((h + 1.0,), (h,), ("float32",))), Algebra)


def test_overflowed_gates_keep_a_zero_state():
    algebra = Affine(variable("a", "float64"), variable("b", "float64"), "float64")
    exact = Exact(algebra, "ab")
    assert exact.apply((float("inf"), 0), 0) == 0
    assert exact.apply((float("inf"), 2), 1) == float("inf")
    assert math.isnan(exact.apply((NAN, 0), 0))


@pytest.mark.parametrize(
    ("test", "flipped", "op"),
    [
        (lambda x, h: x > h, False, "max"),
        (lambda x, h: x >= h, True, "max"),
        (lambda x, h: h > x, False, "min"),
        (lambda x, h: x <= h, True, "min"),
    ],
)
def test_a_maximum_in_which_nan_wins_is_found_and_obeys_the_laws(test, flipped, op):
    h, x = variable("h", "float64"), variable("x", "float64")
    either = (test(x, h), tirx.isnan(x))
    step = tirx.Select(tirx.Or(*(either if flipped else either[::-1])), x, h)
    algebra = classify(System((step,), (h,), ("float64",)))
    assert isinstance(algebra, Reduce)
    assert (algebra.op, algebra.flagged) == (op, False)

    def sequential(h, at):
        return at["x"] if math.isnan(at["x"]) or test(at["x"], h) else h

    for values in itertools.product([NAN, math.inf, -math.inf, 1.0], repeat=3):
        for start in (0.0, NAN, -math.inf):
            check_laws(Exact(algebra, "x"), [{"x": v} for v in values], start, sequential)


def test_near_misses_of_it_are_refused():
    h, x, y = (variable(n, "float64") for n in "hxy")
    for step in (
        tirx.Select(tirx.Or(tirx.isnan(y), x > h), x, h),  # another value's NaN
        tirx.Select(tirx.Or(tirx.isnan(x), y > h), x, h),  # another value compared
        tirx.Select(tirx.Or(tirx.isnan(x), h > x), h, x),  # a NaN is passed over
        tirx.Select(tirx.Or(tirx.isnan(h), x > h), x, h),  # the carry's NaN is passed over
        tirx.Select(tirx.And(tirx.isnan(x), x > h), x, h),
    ):
        assert isinstance(classify(System((step,), (h,), ("float64",))), NotInFamily), step


SPECIAL = (0.0, -0.0, 1.0, -2.5, math.inf, -math.inf, math.nan)


@pytest.mark.parametrize(
    "algebra",
    [
        Affine(tirx.Var("a", "float32"), tirx.Var("x", "float32"), "float32"),
        Reduce("mul", tirx.Var("x", "float32"), "float32"),
    ],
    ids=lambda algebra: algebra.name,
)
def test_cheaper_formulas_see_what_they_damage(algebra):
    """Elements that meet, and a carry: what is intact is what the careful formulas make."""
    plain, count, damaged = algebra.plainly(), len(algebra.dtypes), 0

    def named(letter, values):
        symbols = tuple(tirx.Var(f"{letter}{i}", "float32") for i in range(len(values)))
        return symbols, {s.name: value for s, value in zip(symbols, values, strict=True)}

    for first in itertools.product(SPECIAL, repeat=count):
        f, values = named("f", first)
        for other in [*itertools.product(SPECIAL, repeat=count), *((x,) for x in SPECIAL)]:
            g, more = named("g", other)
            for which in ("combine", "apply"):
                if len(g) != (count if which == "combine" else 1):
                    continue
                fast, exact = (
                    tuple(evaluate(part, values | more) for part in getattr(formulas, which)(f, g))
                    for formulas in (plain, algebra)
                )
                r, results = named("r", fast)
                alike = all(same(a, b) for a, b in zip(fast, exact, strict=True))
                assert alike or not evaluate(plain.intact(r), results), (which, first, other)
                damaged += not alike
    assert damaged, "expected an infinity that meets zero"


@pytest.mark.parametrize("op", ["max", "min"])
def test_what_every_step_says_is_what_all_of_them_say(op):
    """``each`` of the steps is ``exact`` of what they are together."""
    algebra = Reduce(op, tirx.Var("x", "float32"), "float32")
    plain = algebra.plainly()
    flags = list(itertools.product((0, 1), repeat=2))
    for first, second in flags:
        steps = [
            (tirx.const(n + 1.0, "float32"), tirx.const(f, "int32"))
            for n, f in enumerate((first, second))
        ]
        each = all(evaluate(plain.each(step), {}) for step in steps)
        assert each == bool(evaluate(plain.exact(plain.combine(*steps)), {}))
