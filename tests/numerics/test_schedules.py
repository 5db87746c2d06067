"""One compiled and run example of every schedule: what a change of a builder breaks first.

Odd lengths and lanes, both states, gates that do not commute with sums, exact inputs.
"""

import numpy as np
import pytest

from tests.programs.test_delta import attention, called
from tests.support.compiled import compile_cached
from tests.support.cuda_harness import CUDA_TARGET, compile_cuda, run_cuda
from tests.support.library_runs import run_serial
from tests.support.recurrence_cases import Case, check_exact, exact_inputs
from tvm_scan import ScanPlan, parallelize
from tvm_scan.arguments import host_target
from tvm_scan.schedules.registry import SCHEDULES

CPU = host_target()
ON_CPU = (
    "cpu/sequential()",
    "cpu/lanes()",
    "cpu/lanes(lane_block=4)",
    "cpu/lanes(lane_block=8, vectorize=True)",
    "cpu/lanes(lane_block=16, vectorize=True, transpose=True)",
    "cpu/lanes(time_vector=8)",
    "cpu/lanes(time_vector=16, time_runs=True)",
    "cpu/three_phase(lane_block=2, chunks=4)",
    "cpu/three_phase(chunks=3, time_vector=8)",
)
ON_CUDA = (
    "cuda/sequential(threads_per_block=32)",
    "cuda/lanes(threads_per_block=32)",
    "cuda/lanes(threads_per_block=32, chunks=4)",
    "cuda/serial_tiles(threads_per_block=32, items_per_thread=3)",
    "cuda/serial_tiles(threads_per_block=64, items_per_thread=3, block_tree=kogge_stone)",
    "cuda/serial_tiles(threads_per_block=64, items_per_thread=4, block_tree=warp, "
    "block_load=transposed, stages=2)",
    "cuda/three_phase(threads_per_block=32, items_per_thread=3, block_tree=warp)",
    "cuda/single_pass(threads_per_block=32, items_per_thread=3, block_tree=warp)",
)
STATES = (("initial_state", True), ("final_state", True))
CASE = Case("linear_recurrence", options=STATES, sizes=(("lanes", 19),))
LENGTHS = (0, 1, 63, 301)
#: Of a delta rule, whose steps round in another order than the loop: against float64.
DELTA_ON_CPU = (
    "cpu/sequential()",
    "cpu/delta_walk(columns=16, steps=1, vector=4, strip=4)",
    "cpu/delta_walk(columns=64, steps=8, threads=True)",
)
DELTA_ON_CUDA = (
    "cuda/delta_blocks(steps=4, threads_per_block=64)",
    "cuda/delta_blocks(steps=8, chunks=3)",
    "cuda/delta_blocks(steps=8, threads_per_block=64, products=tf32x3)",
)
SHARED = Case("selective_scan", options=STATES, sizes=(("channels", 3), ("states", 4)))
SHARED_PLAN = "cuda/lanes(threads_per_block=32, items_per_thread=2, threads_per_lane=2"


def test_no_schedule_is_forgotten():
    every = (*ON_CPU, *ON_CUDA, *DELTA_ON_CPU, *DELTA_ON_CUDA)
    assert {type(ScanPlan.parse(plan)) for plan in every} == set(SCHEDULES)


@pytest.mark.parametrize("plan", ON_CPU)
def test_on_the_cpu(plan):
    options = exact_inputs(CASE, 1)[0]
    func = CASE.function(None, options)
    executable = compile_cached(parallelize(func, CPU, ScanPlan.parse(plan)), target=CPU)
    for length in LENGTHS:
        _, inputs, want = exact_inputs(CASE, length)
        check_exact(CASE, length, run_serial(executable, func, inputs, want))


@pytest.mark.parametrize("plan", ON_CUDA)
def test_on_cuda(plan):
    check_on_cuda(CASE, plan, LENGTHS)


@pytest.mark.parametrize("plan", DELTA_ON_CPU)
def test_a_delta_rule_on_the_cpu(plan):
    """Any length of one program; gates of each row, which may be 0."""

    def run(func, arrays):
        kernels.setdefault("", compile_cached(parallelize(func, CPU, plan), target=CPU))
        return called(kernels[""], arrays)

    kernels = {}
    for length, decay in ((0, None), (1, None), (37, None), (37, -120.0), (600, -0.01)):
        check_delta(*attention(length, 12, 40, each=True, symbolic=True, decay=decay, run=run))


@pytest.mark.parametrize("plan", DELTA_ON_CUDA)
def test_a_delta_rule_on_cuda(plan):
    def run(func, arrays):
        return run_cuda(parallelize(func, CUDA_TARGET, plan), arrays)

    for length, decay in ((29, None), (29, -120.0)):
        check_delta(*attention(length, 8, 33, each=True, heads=1, decay=decay, run=run))


def check_delta(got, want):
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("more", [")", ", block_load=transposed, stages=2)", ", chunks=3)"])
def test_threads_that_share_a_lane(more):
    check_on_cuda(SHARED, SHARED_PLAN + more, (1, 65))


def check_on_cuda(case, plan, lengths):
    func = case.function(None, exact_inputs(case, 1)[0])
    func = parallelize(func, CUDA_TARGET, ScanPlan.parse(plan))
    executable = compile_cuda(func)
    for length in lengths:
        _, inputs, want = exact_inputs(case, length)
        outputs = [np.full(array.shape, 77, case.dtype) for array in want.values()]
        got = run_cuda(func, [*inputs.values(), *outputs], executable=executable)
        check_exact(case, length, dict(zip(want, got[len(inputs) :], strict=True)))
