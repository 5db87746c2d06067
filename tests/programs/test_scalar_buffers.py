"""States and outputs without an axis: a carry that enters and leaves as a buffer of one number."""

import numpy as np
import pytest
import tvm
from tvm.script import tirx as T

from tests.programs.suite.running import CPU
from tests.programs.test_extents import CPU_PLANS, CUDA_PLANS
from tests.support.compiled import compile_cached
from tests.support.cuda_harness import CUDA_TARGET, run_cuda
from tvm_scan import ScanPlan, parallelize


@T.prim_func(s_tir=True)
def scalars(
    h0: T.Buffer((), "float32"),
    a: T.Buffer((), "float32"),
    X: T.Buffer((70,), "float32"),
    hn: T.Buffer((), "float32"),
    Y: T.Buffer((70,), "float32"),
):
    hn[()] = h0[()]
    for t in range(70):
        hn[()] = hn[()] * a[()] + X[t]
        Y[t] = hn[()]


def arrays():
    x = np.random.default_rng(5).random(70).astype("float32")
    return [np.float32(0.3).reshape(()), np.float32(0.5).reshape(()), x, *filled()]


def filled():
    return [np.zeros((), "float32"), np.zeros(70, "float32")]


def wanted():
    h0, a, x, *_ = arrays()
    states = []
    for value in x:
        h0 = h0 * a + value
        states.append(h0)
    return states[-1], np.array(states)


def check(got):
    for array, want in zip(got[-2:], wanted(), strict=True):
        np.testing.assert_allclose(array, want, rtol=2e-6)


# Tiles are transposed where there are lanes.
@pytest.mark.parametrize("plan", [plan for plan in CPU_PLANS if "transpose" not in plan])
def test_cpu(plan):
    scheduled = parallelize(scalars, CPU, ScanPlan.parse(plan))
    tensors = [tvm.runtime.tensor(array) for array in arrays()]
    compile_cached(scheduled, target=CPU, plainly=True)(*tensors)
    check([tensor.numpy() for tensor in tensors])


@pytest.mark.parametrize("plan", CUDA_PLANS)
def test_cuda(plan):
    scheduled = parallelize(scalars, CUDA_TARGET, ScanPlan.parse(plan))
    check(run_cuda(scheduled, arrays()))
