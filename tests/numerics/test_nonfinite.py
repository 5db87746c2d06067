"""NaN, infinity, denormals and overflowing gates: as in the sequential loop, and never earlier."""

from functools import cache

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.script import tirx as T

from tests.numerics.test_cpu import PLANS, TARGET, compiled
from tests.support.compiled import compile_cached
from tests.support.cuda_harness import CUDA_TARGET, run_cuda
from tests.support.library_runs import run_serial
from tests.support.nonfinite import check_nonfinite
from tests.support.recurrence_cases import SEED
from tvm_scan import ScanPlan, parallelize
from tvm_scan.library import LIBRARY

ROWS, LENGTH = 5, 77
SPECIAL = (np.nan, np.inf, -np.inf)
STEPS = (0, 1, 38, 75, 76)
"""The ends, and the middle of a chunk; plans below have chunks of 25, 9 and no steps."""


def function(name, rows=ROWS, length=LENGTH):
    return LIBRARY[name].factory(rows, length)


@cache
def compiled_loop(func):
    return compile_cached(func, target=TARGET)


def loop_of(func, inputs):
    """The loop as it was written."""
    return run_serial(compiled_loop(func), func, inputs, outputs_of(func, inputs))


def outputs_of(func, inputs):
    shapes = {p.name: [int(e) for e in p.ty.shape] for p in func.params if p.name not in inputs}
    return {name: np.zeros(shape, "float32") for name, shape in shapes.items()}


def check_same_nonfinite(want, got, **allowed):
    """The same finite elements, close; the others are NaN in both, or the same infinity."""
    finite = np.isfinite(want)
    check_nonfinite(want, got, **allowed)
    # 2 roundings of a step and as many for a combination: (2 * 77 + 2 * 128) 2^-24 < 3e-5 of the
    # sum of the magnitudes, which stays below 100.
    np.testing.assert_allclose(got[finite], want[finite], rtol=0, atol=3e-3)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("name", ["cumsum", "cumprod", "linear_recurrence", "ema"])
def test_values_enter_at_their_step(name, plan):
    """One bad input value per run: nothing before its step, everything as the loop after it."""
    func = function(name)
    executable = compiled(func, plan)
    rng = np.random.default_rng(SEED)
    entry = LIBRARY[name]
    inputs = entry.example_inputs(rng, ROWS, LENGTH)
    output = entry.output_names[0]
    for value in SPECIAL:
        for step in STEPS:
            bad = {key: array.copy() for key, array in inputs.items()}
            bad["X"][1:4, step] = value
            want = loop_of(func, bad)[output]
            assert np.isfinite(want[:, :step]).all() and not np.isfinite(want[1:4, step]).any()
            check_same_nonfinite(want, run_serial(executable, func, bad, {output: want})[output])


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_gates_that_are_not_finite(plan):
    """Infinite and NaN gates on states that are not zero.

    A chunk that an infinite gate is in has an infinite gate and an infinite offset: behind it both
    may cancel to NaN, where the loop's state is infinite.
    """
    func = function("linear_recurrence")
    executable = compiled(func, plan)
    rng = np.random.default_rng(SEED)
    inputs = LIBRARY["linear_recurrence"].example_inputs(rng, ROWS, LENGTH)
    for value in SPECIAL:
        for step in STEPS[1:]:
            bad = {key: array.copy() for key, array in inputs.items()}
            bad["A"][2, step] = value
            want = loop_of(func, bad)["H"]
            got = run_serial(executable, func, bad, {"H": want})["H"]
            check_same_nonfinite(want, got, nan_for_infinity=np.isinf(value))


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_values_cancelled_by_a_later_zero_gate(plan):
    """``0 * inf`` is NaN in the loop: a zero gate does not hide what came before it."""
    func = function("linear_recurrence")
    executable = compiled(func, plan)
    rng = np.random.default_rng(SEED)
    inputs = LIBRARY["linear_recurrence"].example_inputs(rng, ROWS, LENGTH)
    inputs["X"][:, 10] = np.inf
    inputs["A"][:, [9, 30, 60]] = 0
    want = loop_of(func, inputs)["H"]
    assert np.isnan(want[:, 30:]).all()
    check_same_nonfinite(want, run_serial(executable, func, inputs, {"H": want})["H"])


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("gate", [1e30, -1e30])
def test_zero_stays_zero_under_gates_whose_product_overflows(plan, gate):
    func = function("linear_recurrence")
    executable = compiled(func, plan)
    gates = np.full((ROWS, LENGTH), gate, "float32")
    values = np.zeros_like(gates)
    values[:, 70] = 1.0
    want = loop_of(func, {"A": gates, "X": values})["H"]
    assert (want[:, :70] == 0).all() and np.isinf(want[:, 75]).all()
    got = run_serial(executable, func, {"A": gates, "X": values}, {"H": want})["H"]
    np.testing.assert_array_equal(got, want)
    # The same as a product: a zero at the first step.
    func = function("cumprod")
    gates[:, 0] = 0
    got = run_serial(compiled(func, plan), func, {"X": gates}, {"Y": gates})["Y"]
    np.testing.assert_array_equal(got, np.zeros_like(gates))


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_gates_that_underflow_forget(plan):
    """A product of gates below the smallest number is zero: so is the loop's state."""
    func = function("linear_recurrence")
    gates = np.full((ROWS, LENGTH), 1e-30, "float32")
    values = np.ones_like(gates)
    want = loop_of(func, {"A": gates, "X": values})["H"]
    got = run_serial(compiled(func, plan), func, {"A": gates, "X": values}, {"H": want})["H"]
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_denormals_are_kept(plan):
    """Sums of denormals are exact, so nothing may flush them to zero."""
    tiny = np.float32(2.0**-149)
    rng = np.random.default_rng(SEED)
    values = rng.integers(-9, 10, (ROWS, LENGTH)).astype("float32") * tiny
    func = function("cumsum")
    want = np.cumsum(values.astype(np.float64), axis=1)
    assert np.abs(want).max() < 2.0**-126 and (want != 0).mean() > 0.9
    got = run_serial(compiled(func, plan), func, {"X": values}, {"Y": values})["Y"]
    np.testing.assert_array_equal(got, want)


DELAY = ScanPlan.parse("cpu/three_phase(chunks=8, lane_block=4)")


@pytest.mark.parametrize("plan", [DELAY, *PLANS.values()], ids=["chunks", *PLANS])
def test_a_step_that_does_not_read_the_carry_forgets_it(plan):
    """What is not finite is in the initial state, or ends a chunk: one step later it is gone."""

    @T.prim_func(s_tir=True)
    def delay(
        X: T.Buffer((ROWS, LENGTH), "float32"),
        S: T.Buffer((ROWS,), "float32"),
        Y: T.Buffer((ROWS, LENGTH), "float32"),
    ):
        for b in range(ROWS):
            for t in range(LENGTH):
                Y[b, t] = S[b]
                S[b] = X[b, t]

    rng = np.random.default_rng(SEED)
    x = rng.standard_normal((ROWS, LENGTH)).astype("float32")
    s = np.float32([1, np.nan, np.inf, -np.inf, 2])
    x[0, 9::10] = np.nan  # the ends of chunks
    x[4, 9::10] = np.inf
    run = compiled(delay, plan)
    tensors = [tvm.runtime.tensor(a) for a in (x, s, np.zeros_like(x))]
    run(*tensors)
    want = np.concatenate([s[:, None], x[:, :-1]], 1)
    np.testing.assert_array_equal(tensors[2].numpy(), want)
    np.testing.assert_array_equal(tensors[1].numpy(), x[:, -1])


@cache
def extremum(op, carry_first, rows=ROWS, length=LENGTH):
    """Running maximum or minimum with the carry as the first or as the second operand."""
    combine = {"max": T.max, "min": T.min}[op]
    identity = tirx.const(-np.inf if op == "max" else np.inf, "float32")

    def step(before, x):
        return combine(before, x) if carry_first else combine(x, before)

    @T.prim_func(s_tir=True)
    def extreme(X: T.Buffer((rows, length), "float32"), Y: T.Buffer((rows, length), "float32")):
        for r, t in T.grid(rows, length):
            with T.sblock("scan"):
                vr = T.axis.spatial(rows, r)
                vt = T.axis.scan(length, t)
                Y[vr, vt] = step(T.if_then_else(vt > 0, Y[vr, vt - 1], identity), X[vr, vt])

    return extreme


def with_nans(rng, share, rows=ROWS, length=LENGTH):
    values = rng.standard_normal((rows, length)).astype("float32")
    values[rng.random((rows, length)) < share] = np.nan
    values[rng.random((rows, length)) < share / 2] = np.inf
    values[rng.random((rows, length)) < share / 2] = -np.inf
    return values


@pytest.mark.parametrize("carry_first", [True, False], ids=["carry first", "input first"])
@pytest.mark.parametrize("op", ["max", "min"])
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_extrema_with_nan_on_the_cpu(plan, op, carry_first):
    """Exactly the loop on the same target, in both orders of the operands, rare NaN and many."""
    func = extremum(op, carry_first)
    executable = compiled(func, plan)
    rng = np.random.default_rng(SEED)
    for share in (0.01, 0.1, 0.5, 1.0):
        x = with_nans(rng, share)
        want = loop_of(func, {"X": x})["Y"]
        got = run_serial(executable, func, {"X": x}, {"Y": want})["Y"]
        np.testing.assert_array_equal(got, want)


def test_the_check_tells_nan_from_infinity():
    """And one sign of infinity from the other."""
    want = np.float32([1, np.inf, -np.inf, np.nan])
    check_nonfinite(want, want)
    for at, wrong in ((1, np.nan), (1, -np.inf), (2, np.inf), (3, np.inf), (0, np.nan), (3, 0)):
        got = want.copy()
        got[at] = wrong
        with pytest.raises(AssertionError, match=r"not equal|assert"):
            check_nonfinite(want, got)
        if not (at == 1 and np.isnan(wrong)):
            with pytest.raises(AssertionError, match=r"not equal|assert"):
                check_nonfinite(want, got, nan_for_infinity=True)
    check_nonfinite(want, np.float32([1, np.nan, -np.inf, np.nan]), nan_for_infinity=True)


CUDA_TREES = {
    "tiles": ScanPlan.of("cuda", "serial_tiles", threads_per_block=32, items_per_thread=1),
    "phases": ScanPlan.of("cuda", "three_phase", threads_per_block=32, items_per_thread=1),
}
CUDA_LOOP = ScanPlan.of("cuda", "sequential", threads_per_block=32)


@pytest.mark.parametrize("carry_first", [True, False], ids=["carry first", "input first"])
@pytest.mark.parametrize("op", ["max", "min"])
def test_extrema_with_nan_on_cuda(op, carry_first):
    """Exactly the loop on the same target, whose maximum ignores NaN."""
    func = extremum(op, carry_first)
    rng = np.random.default_rng(SEED)
    for share in (0.1, 1.0):
        x = with_nans(rng, share)
        args = [x, np.full_like(x, 77)]
        want = run_cuda(parallelize(func, CUDA_TARGET, CUDA_LOOP), args)[1]
        for plan in CUDA_TREES.values():
            got = run_cuda(parallelize(func, CUDA_TARGET, plan), args)[1]
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("plan", CUDA_TREES.values(), ids=CUDA_TREES)
@pytest.mark.parametrize("name", ["cumsum", "linear_recurrence"])
def test_values_enter_at_their_step_on_cuda(name, plan):
    func = function(name)
    scheduled = parallelize(func, CUDA_TARGET, plan)
    inputs = LIBRARY[name].example_inputs(np.random.default_rng(SEED), ROWS, LENGTH)
    for value, step in zip(SPECIAL, (0, 38, 76), strict=True):
        bad = {key: array.copy() for key, array in inputs.items()}
        bad["X"][1:4, step] = value
        output = LIBRARY[name].output_names[0]
        want = loop_of(func, bad)[output]
        got = run_cuda(scheduled, [*bad.values(), np.full_like(want, 77)])[-1]
        check_same_nonfinite(want, got)
