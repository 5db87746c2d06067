"""Gates with exponents in equal steps: found at run time, and within the error of the others."""

import re

import numpy as np
import pytest
from tvm.script import tirx as T

from tests.support.cuda_harness import (
    CUDA_TARGET,
    check_nvcc,
    compile_cuda,
    emit_cuda,
    run_cuda,
)
from tests.support.library_runs import error_bound
from tests.support.selective_walks import CHANNELS, PLANS, STATES, inputs
from tvm_scan import extract, library, parallelize
from tvm_scan.library import LIBRARY
from tvm_scan.schedules.gpu.walk import progressions

PLANS = {**PLANS, "in chunks": PLANS["two threads"].with_(chunks=2)}
LENGTH = 66
STEPS = -np.arange(1, STATES + 1, dtype="float32")


@pytest.fixture(scope="module", params=PLANS)
def both(request):
    """What a plan makes of inputs, and what it does without the other way."""
    func = library.selective_scan(1, CHANNELS, LENGTH, STATES)

    def kernel(least):
        before, progressions.LEAST_STATES = progressions.LEAST_STATES, least
        try:
            scheduled = parallelize(func, CUDA_TARGET, PLANS[request.param])
            return scheduled, compile_cuda(scheduled)
        finally:
            progressions.LEAST_STATES = before

    kernels = [kernel(least) for least in (progressions.LEAST_STATES, STATES + 1)]
    sources = [emit_cuda(scheduled) for scheduled, _ in kernels]
    assert ["scan_all(" in source for source in sources] == [True, False]

    def run(arrays):
        args = [*arrays.values(), np.full((1, CHANNELS, LENGTH), 77, "float32")]
        results = [
            run_cuda(scheduled, args, seeds=(0, 2), executable=executable)[-1]
            for scheduled, executable in kernels
        ]
        return results[0], results[1]

    return run


@pytest.mark.parametrize(
    "exponents",
    [STEPS, -np.exp(np.log(-STEPS)), 0.03 * STEPS, STEPS - 5.5, -STEPS / 300],
    ids=["1 to N", "by a logarithm", "slow", "from 6.5 on", "growing"],
)
def test_exponents_in_equal_steps(both, exponents):
    """Powers are taken, and are within the bound of the loop's own rounding."""
    arrays = inputs(exponents, LENGTH)
    got, plain = both(arrays)
    want = LIBRARY["selective_scan"].expected(arrays)["out"]
    bound = error_bound("selective_scan", arrays, {}, LENGTH)["out"]
    assert (got != plain).any(), "expected other roundings by the other way"
    assert (np.abs(got - want) <= bound).all()
    assert (np.abs(plain - want) <= bound).all()


@pytest.mark.parametrize(
    "exponents",
    [
        -np.geomspace(1, 20, STATES),
        np.full(STATES, -1.0),
        STEPS[::-1],
        STEPS + 1,
        STEPS - 0.5 + (np.arange(STATES) == 11) * 1e-4,
        np.where(np.arange(STATES) == 3, -np.inf, STEPS),
    ],
    ids=["geometric", "all alike", "falling", "from zero", "one off", "infinite"],
)
def test_other_exponents_are_taken_as_they_are(both, exponents):
    """Bit for bit what they give without the other way."""
    got, plain = both(inputs(exponents, LENGTH))
    assert got.tobytes() == plain.tobytes()


def test_a_warp_decides_for_all_its_lanes(both):
    """One lane's exponents are not in steps: its warp does as if none were, the others do not.

    A warp has at least 16 lanes here.
    """
    arrays = inputs(STEPS, LENGTH)
    arrays["A"][40, 5] *= 1.001
    got, plain = both(arrays)
    differ = (got != plain).any(axis=(0, 2))
    assert differ[:32].any() and not differ[32:48].any()
    arrays["A"][::16, 15] = np.nan
    got, plain = both(arrays)
    assert got.tobytes() == plain.tobytes()


def test_threads_of_a_lane_have_one_step():
    """The owner of a step sends its product with the step, which the exponents of all must have."""
    func, plan = library.selective_scan(1, CHANNELS, LENGTH, STATES), PLANS["two threads"]
    arrays = inputs(np.where(STEPS < -STATES // 2, 2 * STEPS, STEPS), LENGTH)
    args = [*arrays.values(), np.full((1, CHANNELS, LENGTH), 77, "float32")]
    scheduled = parallelize(func, CUDA_TARGET, plan)
    assert re.search(r"mine0_ptr\[0\] = \(\w+_kept_ptr\[0\] \* A_step_ptr", emit_cuda(scheduled))
    got = run_cuda(scheduled, args)[-1]
    want = LIBRARY["selective_scan"].expected(arrays)["out"]
    bound = error_bound("selective_scan", arrays, {}, LENGTH)["out"]
    assert (np.abs(got - want) <= bound).all()


def decay(lanes, states, varies):
    """A user's own loop: a sum over exponential windows of several rates."""

    @T.prim_func(s_tir=True)
    def func(
        X: T.Buffer((lanes, 64), "float32"),
        W: T.Buffer((lanes, 64), "float32"),
        V: T.Buffer((states, 64), "float32"),
        rate: T.Buffer((lanes, states), "float32"),
        Y: T.Buffer((lanes, 64), "float32"),
    ):
        for i in range(lanes):
            h = T.sblock_alloc_buffer((states,), "float32")
            y = T.sblock_alloc_buffer((1,), "float32")
            for n in range(states):
                h[n] = T.float32(0)
            for t in range(64):
                y[0] = T.float32(0)
                for n in range(states):
                    if varies:
                        h[n] = h[n] * T.exp(rate[i, n] * V[n, t]) + X[i, t]
                    else:
                        h[n] = h[n] * T.exp(rate[i, n] * (W[i, t] * T.float32(0.5))) + X[i, t]
                    y[0] = y[0] + h[n]
                Y[i, t] = y[0]

    return func


def test_a_loop_of_a_user():
    """Exponents in equal steps are the loop's, not the selective scan's."""
    func = decay(64, 16, varies=False)
    extract(func)
    rng = np.random.default_rng(1)
    x, w = rng.normal(size=(2, 64, 64)).astype("float32")
    w, v = np.abs(w), np.ones((16, 64), "float32")
    rates = np.broadcast_to(0.1 * STEPS, (64, 16)).astype("float32").copy()
    scheduled = parallelize(func, CUDA_TARGET, PLANS["two threads"])
    assert "scan_all(" in emit_cuda(scheduled)
    got = run_cuda(scheduled, [x, w, v, rates, np.zeros_like(x)], seeds=(0,))[-1]
    h, want = np.zeros((64, 16)), np.empty((64, 64))
    for t in range(64):
        gates = np.exp(rates.astype("float64") * (w[:, t, None] * 0.5))
        h = h * gates + x[:, t, None].astype("float64")
        want[:, t] = h.sum(1)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-4)


def test_a_factor_of_each_state_is_left():
    source = emit_cuda(parallelize(decay(64, 16, varies=True), CUDA_TARGET, PLANS["two threads"]))
    assert "scan_exp2(" in source and "scan_all(" not in source


@pytest.mark.parametrize("name", PLANS)
def test_no_registers_are_spilled(name):
    check_nvcc(parallelize(library.selective_scan(8, 2048, 2048, 16), CUDA_TARGET, PLANS[name]))
