"""NaN, infinity and large gates in steps between bounds, beside the loop on the same target."""

from functools import cache

import numpy as np
import pytest
import tvm
from tvm.script import from_source
from tvm.script import tirx as T

from tests.numerics.test_cpu import TARGET
from tests.support.compiled import compile_cached
from tests.support.library_runs import run_serial
from tests.support.recurrence_cases import SEED
from tvm_scan import extract, parallelize

ROWS, LENGTH = 400, 40
PLANS = ("cpu/three_phase(chunks=5)", "cpu/lanes(time_vector=8)")
SPECIAL = (np.nan, np.inf, -np.inf)
STEPS = {
    "bounded affine": "T.min(T.max(A[b, t] * S[b] + X[b, t], T.float32(-3)), T.float32(4))",
    "swapped": "T.max(T.float32(-3), T.min(T.float32(4), A[b, t] * S[b] + X[b, t]))",
    "varying": "T.min(T.max(A[b, t] * S[b], X[b, t] - T.float32(3)), X[b, t] + T.float32(4))",
    "chosen": "T.if_then_else(A[b, t] * S[b] > X[b, t], A[b, t] * S[b], X[b, t])",
    "clamp": "T.min(T.max(S[b], T.float32(-3)), A[b, t] * X[b, t])",
}
ONE_SIDED = ("chosen",)


@cache
def loop(name):
    text = f"""
@T.prim_func(s_tir=True)
def main(
    A: T.Buffer(({ROWS}, {LENGTH}), "float32"),
    X: T.Buffer(({ROWS}, {LENGTH}), "float32"),
    H: T.Buffer(({ROWS},), "float32"),
    Y: T.Buffer(({ROWS}, {LENGTH}), "float32"),
):
    for b in range({ROWS}):
        S = T.sblock_alloc_buffer(({ROWS},), "float32")
        S[b] = H[b]
        for t in range({LENGTH}):
            S[b] = {STEPS[name]}
            Y[b, t] = S[b]
"""
    return from_source(text, {"T": T})


@cache
def compiled(name, plan):
    func = loop(name)
    return compile_cached(func if plan is None else parallelize(func, TARGET, plan), target=TARGET)


def both(name, plan, inputs):
    func, outputs = loop(name), {"Y": inputs["X"]}
    want = run_serial(compiled(name, None), func, inputs, outputs)["Y"]
    return want, run_serial(compiled(name, plan), func, inputs, outputs)["Y"]


def random_inputs():
    rng = np.random.default_rng(SEED)
    shape = ROWS, LENGTH
    return rng, {
        "A": rng.choice(np.float32([0.5, 1, -0.5, 1.5, -1]), shape),
        "X": rng.choice(np.float32([-2, -1, -0.5, 0, 0.5, 1, 2]), shape),
        "H": rng.choice(np.float32([-1, 0, 1, 2]), ROWS),
    }


def with_special(rng, array, values):
    """One special value in every row, at any step."""
    array = array.copy()
    at = rng.integers(0, LENGTH, ROWS)
    array[np.arange(ROWS), at] = rng.choice(np.float32(values), ROWS)
    return array


def test_the_steps_are_of_the_families_that_the_tests_are_about():
    names = {name: extract(loop(name)).algebras[0].name for name in STEPS}
    assert names == {n: "clamp" if n == "clamp" else "bounded affine" for n in STEPS}


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", STEPS)
def test_nonfinite_values_are_as_in_the_loop(name, plan):
    """In the state before time, in what is added, in a bound; NaN in a gate, too."""
    rng, inputs = random_inputs()
    ends = (np.inf, np.nan) if name in ONE_SIDED else SPECIAL
    for which, values in (("A", (np.nan,)), ("X", ends)):
        bad = {**inputs, which: with_special(rng, inputs[which], values)}
        want, got = both(name, plan, bad)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    bad = {**inputs, "H": rng.choice(np.float32(SPECIAL), ROWS)}
    want, got = both(name, plan, bad)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("plan", PLANS)
def test_gates_whose_product_is_a_number_lose_no_small_state(plan):
    """A gate of 2^125 on a state of zero, or after a reset: what is added stays what it is."""
    _, inputs = random_inputs()
    gates = np.ones((ROWS, LENGTH), "float32")
    gates[:, 10], gates[:, 11] = 0, 2.0**125
    inputs = {**inputs, "A": gates, "X": np.abs(inputs["X"]) / 64}
    inputs["X"][:, 10] = 0
    want, got = both("bounded affine", plan, inputs)
    assert (want[:, 12:] < 1).all()
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("plan", PLANS)
def test_behind_what_differs_the_state_lies_between_its_bounds(plan):
    """Infinite gates, and zero gates on infinite states, of which docs/numerics.md tells."""
    rng, inputs = random_inputs()
    inputs["A"] = with_special(rng, inputs["A"], (np.inf, -np.inf, 0))
    inputs["H"] = rng.choice(np.float32([np.inf, -np.inf, 0]), ROWS)
    want, got = both("bounded affine", plan, inputs)
    assert ((got >= -3) & (got <= 4)).all()
    assert (got != want).any(), "docs/numerics.md says more than is so"


@pytest.mark.parametrize("name", ["clamp", "bounded affine"])
def test_wgsl_has_no_word_for_nan(name):
    """TVM writes it as ``nanf``; the bits of one come from a register, as those of infinity do."""
    target = tvm.target.Target("webgpu", host="llvm")
    built = tvm.compile(parallelize(loop(name), target), target=target)
    texts = [module.inspect_source() for module in built.mod.imports]
    assert any("bitcast<f32>" in text for text in texts)
    assert not any("nanf" in text for text in texts)
