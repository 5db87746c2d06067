"""RWKV's kernels as a serving engine writes them run as scans, on both kinds of device."""

import numpy as np
import pytest

from tests.cuda_harness import CUDA_TARGET, run_cuda
from tests.serving_programs import HEADS, SIZE, wkv_six
from tests.suite.running import CPU, run_loop, run_scan
from tvm_scan import Recurrence, ScanPlan, default_plan, extract, parallelize

BATCH, LENGTH = 1, 21
PLANS = [None, ScanPlan("cpu", "three_phase", chunks=4), ScanPlan("cpu", "lanes", lane_block=2)]


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


@pytest.mark.gpu
def test_cuda():
    scheduled = parallelize(wkv_six, CUDA_TARGET)
    for got, expected in zip(
        run_cuda(scheduled, arguments()), run_loop(wkv_six, arguments()), strict=True
    ):
        np.testing.assert_array_equal(got, expected)
