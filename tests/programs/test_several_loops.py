"""Functions of several loops: each has its own plan, and what is no scan runs beside them."""

import numpy as np
import pytest
import tvm
from tvm.script import tirx as T
from tvm.target import Target

from tests.support.compiled import compile_cached
from tests.support.cuda_harness import CUDA_TARGET, run_cuda
from tvm_scan import Recurrence, ScanPlan, default_plan, extract, parallelize, verify
from tvm_scan.errors import PlanError
from tvm_scan.extraction import extract_nest, root_nests

CPU = Target.from_device("cpu")
L = 1024


@T.prim_func(s_tir=True)
def two_sweeps(X: T.Buffer((L,), "float64"), H: T.Buffer((L,), "float64")):
    for t in range(L):
        H[t] = T.if_then_else(t > 0, H[t - 1], T.float64(0)) + X[t]
    for t in range(L):
        H[L - 1 - t] = T.if_then_else(t > 0, H[L - t], T.float64(0)) + H[L - 1 - t]


@T.prim_func(s_tir=True)
def sweep_and_states(
    X: T.Buffer((4, 96, 3), "float32"),
    S: T.Buffer((4, 3, 2), "float32"),
    Y: T.Buffer((4, 96), "float32"),
):
    for b, t in T.grid(4, 96):
        Y[b, t] = T.if_then_else(t > 0, Y[b, t - 1], T.float32(0)) + X[b, t, 0]
    for b, t, i, j in T.grid(4, 96, 3, 2):
        S[b, i, j] = S[b, i, j] + X[b, 95 - t, i] * Y[b, t]


FUNCTIONS = {"two_sweeps": two_sweeps, "sweep_and_states": sweep_and_states}


def inputs(func):
    rng = np.random.default_rng(0)
    shapes = [tuple(int(extent) for extent in buffer.shape) for buffer in func.params]
    return [
        rng.integers(-2, 3, shape).astype(buffer.dtype)
        for shape, buffer in zip(shapes, func.params, strict=True)
    ]


def looped(func, arrays):
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    compile_cached(func, target=CPU, plainly=True)(*tensors)
    return [tensor.numpy() for tensor in tensors]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_cpu(name):
    func = FUNCTIONS[name]
    want = looped(func, inputs(func))
    chunks = "cpu/three_phase(chunks=4)"
    for plan in (None, lambda found: default_plan(CPU, found), chunks):
        got = looped(parallelize(func, CPU, plan), inputs(func))
        for array, expected in zip(got, want, strict=True):
            np.testing.assert_array_equal(array, expected)
    assert all(c.holds for c in verify(func, CPU))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_cuda(name):
    func = FUNCTIONS[name]
    want = looped(func, inputs(func))
    got = run_cuda(parallelize(func, CUDA_TARGET), inputs(func))
    for array, expected in zip(got, want, strict=True):
        np.testing.assert_array_equal(array, expected)


def test_a_plan_for_all_that_fits_the_first_only():
    first, second = (extract_nest(two_sweeps, nest) for nest in root_nests(two_sweeps))
    assert isinstance(first, Recurrence) and isinstance(second, Recurrence)
    plan = default_plan("cuda", extract(two_sweeps))
    plan.check(CUDA_TARGET, first)
    with pytest.raises(PlanError, match="expected an array whose memory runs along time"):
        plan.check(CUDA_TARGET, second)
    message = r"(?s)runs along time.*\nthe plan was given for every loop .* t that writes H: leave"
    for given in (plan, str(plan)):
        with pytest.raises(PlanError, match=message):
            parallelize(two_sweeps, CUDA_TARGET, given)
    # Alone, or chosen for each, there is nothing to say of the others.
    alone = r"use block_load=direct \(cuda/serial_tiles\(.*\)\); on cuda cuda/.* works$"
    with pytest.raises(PlanError, match=alone):
        parallelize(two_sweeps, CUDA_TARGET, lambda found: plan)


def test_the_plans_of_a_choice_are_asked_for_in_order():
    asked = []

    def choose(found):
        asked.append(found.outputs[0].name)
        return ScanPlan.of("cpu", "lanes")

    parallelize(sweep_and_states, CPU, choose)
    assert asked == ["Y", "S"]
