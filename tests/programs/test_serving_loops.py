"""RWKV's kernels as a serving engine writes them run as scans, on both kinds of device."""

import numpy as np
import pytest
from tvm.script import tirx as T

from tests.programs.serving_programs import HEADS, SIZE, make_wkv_five, make_wkv_six, wkv_six
from tests.programs.suite.running import CPU, run_loop, run_scan
from tests.support.cuda_harness import CUDA_TARGET, run_cuda
from tvm_scan import Recurrence, ScanPlan, default_plan, extract, parallelize
from tvm_scan.errors import PlanError

BATCH, LENGTH = 1, 21
PLANS = [
    None,
    ScanPlan.of("cpu", "three_phase", chunks=4),
    ScanPlan.of("cpu", "lanes", lane_block=2),
]


def arguments():
    rng = np.random.default_rng(0)
    tokens, matrices = (BATCH, LENGTH, HEADS, SIZE), (BATCH, HEADS, SIZE, SIZE)
    shapes = [tokens, tokens, tokens, (HEADS, SIZE), tokens, matrices, tokens, matrices]
    return [rng.integers(-1, 2, shape).astype("float32") for shape in shapes]


def test_lanes_and_state():
    found = extract(wkv_six)
    assert isinstance(found, Recurrence), found.message()
    assert [axis.var.name for axis in found.lanes] == ["b", "h", "i"]
    assert [algebra.name for algebra in found.algebras] == ["affine"]
    assert list(found.registers[0].extents) == [1, 1, 1, SIZE]


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_cpu(plan):
    want = run_loop(wkv_six, arguments())
    plan = plan or default_plan(CPU, extract(wkv_six))
    for got, expected in zip(run_scan(wkv_six, arguments(), plan), want, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_cuda():
    scheduled = parallelize(wkv_six, CUDA_TARGET)
    for got, expected in zip(
        run_cuda(scheduled, arguments()), run_loop(wkv_six, arguments()), strict=True
    ):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("kernel", [make_wkv_six(32, 64), make_wkv_five(32, 64)])
def test_threads_share_the_states_on_cuda(kernel):
    """``let added = k v`` in the loop over the states is in nobody's way."""
    plan = default_plan(CUDA_TARGET, extract(kernel))
    assert plan.threads_per_lane >= 4 and plan.block_load == "transposed"


@T.prim_func(s_tir=True)
def named_state(
    A: T.Buffer((8, 30), "float32"),
    X: T.Buffer((8, 30), "float32"),
    Y: T.Buffer((8, 30), "float32"),
):
    """A sum of the states, which are named before they are renewed."""
    for b in range(8):
        S = T.sblock_alloc_buffer((16,), "float32")
        for n in range(16):
            S[n] = T.float32(1)
        for t in range(30):
            Y[b, t] = T.float32(0)
            for n in range(16):
                named: T.let[T.float32] = S[n]
                S[n] = A[b, t] * S[n] + X[b, t]
                Y[b, t] += named


def test_a_name_for_the_state_is_not_moved():
    func = named_state
    found = extract(func)
    assert isinstance(found, Recurrence), found.message()
    plan = ScanPlan.of("cuda", "lanes", 32, 4, threads_per_lane=4)
    with pytest.raises(PlanError, match="a name in a loop over the states"):
        parallelize(func, CUDA_TARGET, plan)
    rng = np.random.default_rng(1)
    given = [rng.integers(-1, 2, (8, 30)).astype("float32") for _ in range(3)]
    want = run_loop(func, given)[-1]
    got = run_scan(func, given, default_plan(CPU, found))[-1]
    np.testing.assert_array_equal(got, want)
