"""Threads that share a lane's states: the split of a step, the results, what nvcc makes of it."""

import re

import numpy as np
import pytest
from tvm.script import tirx as T

from bench.gpu_cases import Case as GpuCase
from tests.support.cuda_harness import (
    CUDA_TARGET,
    check_nvcc,
    emit_cuda,
    run_cuda,
)
from tests.support.cusim import nvcc
from tests.support.recurrence_cases import (
    Case,
    check_exact,
    check_random,
    exact_inputs,
    random_inputs,
)
from tvm_scan import ScanPlan, default_plan, extract, library, parallelize
from tvm_scan.errors import PlanError
from tvm_scan.schedules.common.state_split import NoSplit, split_of

FIELDS = "items_per_thread=4, vector_loads=True, threads_per_lane="
PLAN = ScanPlan.parse(f"cuda/lanes(threads_per_block=64, {FIELDS}4)")
ALL = (("initial_state", True), ("final_state", True))


def scan(options=(), **sizes):
    known = {"channels": 5, "batch": 2, "states": 8, **sizes}
    return Case("selective_scan", options=tuple(options), sizes=tuple(known.items()))


def run(case, plan, length, *, symbolic=False):
    options, inputs, want = exact_inputs(case, length)
    func = parallelize(case.function(None if symbolic else length, options), CUDA_TARGET, plan)
    outputs = [np.full(array.shape, 77, case.dtype) for array in want.values()]
    got = run_cuda(func, [*inputs.values(), *outputs])
    check_exact(case, length, dict(zip(want, got[len(inputs) :], strict=True)))


CASES = {
    "aligned": (scan(), PLAN, 32),
    "not aligned": (scan(ALL), PLAN, 37),
    "channels last": (scan((("layout", "bld"), ("form", "step"), *ALL)), PLAN, 20),
    "no options": (scan((("has_D", False), ("has_z", False), ("has_bias", False))), PLAN, 48),
    "a state each": (scan(), PLAN.with_(threads_per_lane=8, items_per_thread=2), 33),
    "one step": (scan(ALL), PLAN.with_(threads_per_lane=2, items_per_thread=1), 1),
    "no step": (scan(ALL), PLAN, 0),
}


@pytest.mark.parametrize("name", CASES)
def test_exact(name):
    """Lanes that do not fill a block, groups of steps that are not full."""
    run(*CASES[name])


def test_symbolic_lengths():
    for length in (0, 1, 50):
        run(scan(ALL), PLAN, length, symbolic=True)


def test_realistic_inputs():
    case = scan()
    inputs, want = random_inputs(case, 200)
    func = parallelize(case.function(200), CUDA_TARGET, PLAN)
    outputs = [np.full(array.shape, 77, case.dtype) for array in want.values()]
    got = run_cuda(func, [*inputs.values(), *outputs], seeds=(0,), race=False)
    check_random(case, 200, dict(zip(want, got[len(inputs) :], strict=True)), PLAN)


@T.prim_func(s_tir=True)
def product_of_states(X: T.Buffer((4, 30, 8), "float32"), Y: T.Buffer((4, 30), "float32")):
    for b in range(4):
        h = T.sblock_alloc_buffer((8,), "float32")
        y = T.sblock_alloc_buffer((1,), "float32")
        for n in range(8):
            h[n] = T.float32(0)
        for t in range(30):
            y[0] = T.float32(1)
            for n in range(8):
                h[n] = h[n] * T.float32(0.5) + X[b, t, n]
                y[0] = y[0] * h[n]
            Y[b, t] = y[0]


@T.prim_func(s_tir=True)
def history_of_states(X: T.Buffer((4, 30, 8), "float32"), H: T.Buffer((4, 30, 8), "float32")):
    for b in range(4):
        h = T.sblock_alloc_buffer((8,), "float32")
        for n in range(8):
            h[n] = T.float32(0)
        for t in range(30):
            for n in range(8):
                h[n] = h[n] * T.float32(0.5) + X[b, t, n]
                H[b, t, n] = h[n]


@T.prim_func(s_tir=True)
def copied_states(
    X: T.Buffer((4, 30, 8), "float32"),
    S: T.Buffer((4, 8), "float32"),
    Y: T.Buffer((4, 30), "float32"),
    S1: T.Buffer((4, 8), "float32"),
):
    # States that only the nest has, with a copy of them before time and after it.
    for b in range(4):
        h = T.sblock_alloc_buffer((8,), "float32")
        y = T.sblock_alloc_buffer((1,), "float32")
        for n in range(8):
            h[n] = S[b, n]
        for t in range(30):
            y[0] = T.float32(0)
            for n in range(8):
                h[n] = h[n] * T.float32(0.5) + X[b, t, n]
            for n in range(8):
                y[0] = y[0] + h[n]
            Y[b, t] = y[0]
        for n in range(8):
            S1[b, n] = h[n]


REFUSED = {
    "copied after time": (copied_states, "a final write of what another loop took"),
    "no states": (library.linear_recurrence(4, 1000), "one axis of states"),
    "not a sum": (product_of_states, "neither a state nor a sum"),
    "history": (history_of_states, "neither a state nor a sum|one axis of states"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_steps_that_are_not_split(name):
    func, reason = REFUSED[name]
    found = extract(func)
    split = split_of(found)
    assert isinstance(split, NoSplit)
    assert re.search(reason, str(split))
    with pytest.raises(PlanError, match="states are independent but for sums"):
        PLAN.check(CUDA_TARGET, found)


def test_copied_states_are_each_written_by_the_thread_that_has_them():
    rng = np.random.default_rng(0)
    x, state = (rng.integers(-4, 5, shape).astype("float32") for shape in ((4, 30, 8), (4, 8)))
    outputs = [np.full((4, 30), 77, "float32"), np.full((4, 8), 77, "float32")]
    *_, y, last = run_cuda(parallelize(copied_states, CUDA_TARGET), [x, state, *outputs])
    for t in range(30):
        state = np.float32(0.5) * state + x[:, t]
        np.testing.assert_allclose(y[:, t], state.sum(-1), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(last, state, rtol=1e-6)


WRONG = {
    f"cuda/lanes(threads_per_block=64, {FIELDS}3)": "2, 4, 8, 16 or 32 threads per lane",
    f"cuda/lanes(threads_per_block=48, {FIELDS}4)": "whole warps .* got threads_per_block=48; use",
    f"cuda/lanes(threads_per_block=64, {FIELDS}32)": "16 states, threads_per_lane=32",
    f"cuda/serial_tiles(threads_per_block=64, {FIELDS}4)": "got the field 'threads_per_lane'",
    "cuda/lanes(threads_per_block=64, threads_per_lane=4)": "1 to 16 items .* items_per_thread=0",
}


@pytest.mark.parametrize("text", WRONG)
def test_plans_that_do_not_fit(text):
    with pytest.raises(PlanError, match=WRONG[text]):
        ScanPlan.parse(text).check(CUDA_TARGET, extract(library.selective_scan(1, 64, 64, 16)))


def test_the_compiler_sees_vectors_and_one_exponential_per_state_and_step():
    if not nvcc.nvcc_available():
        pytest.skip("nvcc is missing: the instructions of the kernel are not counted")
    func = library.selective_scan(8, 2048, 2048, 16)
    plan = PLAN.with_(threads_per_block=128)
    staged = plan.with_(block_load="transposed", stages=2, threads_per_lane=2, threads_per_block=64)
    assert default_plan(CUDA_TARGET, extract(func)) == staged
    scheduled = parallelize(func, CUDA_TARGET, plan)
    source = emit_cuda(scheduled)
    ptx = nvcc.compile_ptx(source)
    # delta, u and z; for each of four owners B and C for four states; and the output.
    assert len(re.findall(r"ld\.global\.nc\.v4", ptx)) == 3 + 4 * 2 * 4
    assert len(re.findall(r"st\.global\.v4", ptx)) == 1
    # Four steps: of four owners and four states, and for softplus and the gate of one's own.
    assert len(re.findall(r"ex2\.approx", ptx)) == 4 * (4 * 4 + 2)
    # Four steps: of four owners two values sent; three exchanges of their four sums.
    assert len(re.findall(r"shfl\.sync", ptx)) == 4 * (4 * 2 + 3)
    assert "bar.sync" not in ptx
    (taken,) = check_nvcc(scheduled).values()
    assert taken.stack == taken.shared_bytes == 0
    assert taken.registers <= 80


def test_halves_are_sent_whole():
    """Inputs that every state reads come from the thread that loaded them, not rounded."""
    case = GpuCase("selective", (1, 8, 24, 16), "bfloat16")
    plan = PLAN.with_(threads_per_block=32)
    inputs = case.inputs(np.random.default_rng(1))
    want = case.expected(inputs)["out"]
    func = parallelize(case.func, CUDA_TARGET, plan)
    got = run_cuda(func, [*inputs.values(), np.full(want.shape, 77, case.numpy_dtype)])[-1]
    # One rounding to a bfloat16 of 8 bits, and float32's, which are far below.
    assert (np.abs(got.astype("float64") - want) <= 2.0**-8 * np.abs(want) + 1e-4).all()
