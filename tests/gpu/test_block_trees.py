"""The trees over a block's threads: the same results, and the barriers that each one needs."""

import numpy as np
import pytest

from tests.numerics.test_cuda import init_block_of_its_own
from tests.programs.family_programs import PROGRAMS
from tests.programs.test_extraction import sequential
from tests.programs.test_families import arguments, check
from tests.support.cuda_harness import (
    CUDA_TARGET,
    compile_cuda,
    emit_cuda,
    run_cuda,
)
from tests.support.plans import in_schedule
from tests.support.recurrence_cases import Case, check_exact, exact_inputs
from tests.unit.test_plan import SMALL_CUDA
from tvm_scan import ScanPlan, extract, library, parallelize
from tvm_scan.errors import PlanError

# One warp and several tiles, several warps and one tile, both; the grid's three phases.
PLANS = {
    "warp 32x1": "cuda/serial_tiles(threads_per_block=32, items_per_thread=1, block_tree=warp)",
    "warp 128x3": "cuda/serial_tiles(threads_per_block=128, items_per_thread=3, block_tree=warp)",
    "warp phases": "cuda/three_phase(threads_per_block=64, items_per_thread=2, block_tree=warp)",
    # The default of a long row.
    "warp 256x16": (
        "cuda/three_phase(threads_per_block=256, items_per_thread=16, block_tree=warp, "
        "vector_loads=True)"
    ),
    "kogge 64x1": (
        "cuda/serial_tiles(threads_per_block=64, items_per_thread=1, block_tree=kogge_stone)"
    ),
    "kogge phases": (
        "cuda/three_phase(threads_per_block=16, items_per_thread=3, block_tree=kogge_stone)"
    ),
}
LENGTHS = (0, 1, 32, 33, 383, 384, 1025)


@pytest.mark.parametrize("plan", PLANS)
def test_lengths(plan):
    """Symbolic lengths, and a combine that does not commute."""
    case = Case(
        "linear_recurrence",
        options=(("initial_state", True), ("final_state", True)),
        sizes=(("lanes", 3),),
    )
    options = exact_inputs(case, 1)[0]
    func = parallelize(case.function(None, options), CUDA_TARGET, ScanPlan.parse(PLANS[plan]))
    executable = compile_cuda(func)
    for length in LENGTHS:
        _, inputs, want = exact_inputs(case, length)
        outputs = [np.full(array.shape, 77, case.dtype) for array in want.values()]
        got = run_cuda(func, [*inputs.values(), *outputs], executable=executable)
        check_exact(case, length, dict(zip(want, got[len(inputs) :], strict=True)))


MANY = [("kogge phases", 12_600), ("warp 32x1", 1100), ("warp 256x16", 140_000)]


@pytest.mark.parametrize(("plan", "length"), MANY)
def test_carries_of_many_tiles(plan, length):
    """More than a thread walks alone; more than a block takes at once; an incomplete chunk."""
    case = Case("linear_recurrence", options=(("initial_state", True),), sizes=(("lanes", 2),))
    options, inputs, want = exact_inputs(case, length)
    chosen = in_schedule(ScanPlan.parse(PLANS[plan]), "three_phase")
    func = parallelize(case.function(length, options), CUDA_TARGET, chosen)
    args = [*inputs.values(), *(np.full(array.shape, 77, case.dtype) for array in want.values())]
    got = run_cuda(func, args, seeds=(0, 2))
    check_exact(case, length, dict(zip(want, got[len(inputs) :], strict=True)))


# Two dtypes of elements, smaller integers, 64 bits; others are in test_cuda_table.py.
FAMILIES = ("reset_max", "rolling_hash", "switch")


@pytest.mark.parametrize("plan", ["warp 32x1", "kogge phases"])
@pytest.mark.parametrize("name", FAMILIES)
def test_families(name, plan):
    func, args = PROGRAMS[name][0], arguments(name)
    scheduled = parallelize(func, CUDA_TARGET, ScanPlan.parse(PLANS[plan]))
    check(name, run_cuda(scheduled, args), sequential(func, args))


def test_several_warps_with_a_state_of_many_cells():
    case = Case(
        "selective_scan",
        options=(("initial_state", True), ("final_state", True)),
        sizes=(("channels", 2), ("batch", 1)),
    )
    options, inputs, want = exact_inputs(case, 150)
    func = case.function(150, options)
    plan = ScanPlan.parse(PLANS["warp 128x3"]).with_(items_per_thread=1)
    outputs = [np.full(array.shape, 77, case.dtype) for array in want.values()]
    got = run_cuda(parallelize(func, CUDA_TARGET, plan), [*inputs.values(), *outputs])
    check_exact(case, 150, dict(zip(want, got[len(inputs) :], strict=True)))


def barriers(tree, threads):
    plan = ScanPlan.of(
        "cuda",
        "serial_tiles",
        threads_per_block=threads,
        items_per_thread=2,
        block_tree=tree,
    )
    func = library.linear_recurrence(4, 1 << 16)
    source = emit_cuda(parallelize(func, CUDA_TARGET, plan))
    return source.count("__syncthreads()"), source.count(" = __shfl")


def test_barriers_are_those_that_the_tree_needs():
    """One between the warps' totals and their readers; more in tests/gpu/test_barriers.py."""
    # Of two parts: 5 levels, in two ways, 1 neighbour, the total.
    assert barriers("warp", 32) == (0, 2 * (2 * 5 + 2))
    assert barriers("warp", 256) == (1, 2 * (2 * 5 + 1))
    # And 4 levels of totals, in two ways, and the prefix of the warp.
    assert barriers("warp", 512) == (1, 2 * (2 * 5 + 1 + 2 * 4 + 2))
    # One for each level, one before the neighbour is read.
    assert barriers("kogge_stone", 64)[0] == 6 + 1
    assert barriers("blelloch", 256)[0] == 2 * 3


WRONG = {
    "cuda/serial_tiles(threads_per_block=16, items_per_thread=1, block_tree=warp)": (
        "whole warps of 32 threads for the warp tree, got threads_per_block=16"
    ),
    "cuda/serial_tiles(threads_per_block=96, items_per_thread=1, block_tree=kogge_stone)": (
        "a power of two for the Kogge-Stone tree, got threads_per_block=96; use 64"
    ),
    "cuda/serial_tiles(threads_per_block=256, items_per_thread=1, block_tree=kogge_stone)": (
        "at most 2048 bytes of shared memory, got 4096 bytes"
    ),
}


@pytest.mark.parametrize("text", WRONG)
def test_a_tree_that_does_not_fit(text):
    with pytest.raises(PlanError, match=WRONG[text]):
        ScanPlan.parse(text).check(SMALL_CUDA, extract(library.linear_recurrence(4, 1000)))


def test_a_single_warp_reads_its_initial_state_before_it_is_written_over():
    x = np.random.default_rng(3).integers(-3, 4, (5, 100)).astype("float32")
    plan = ScanPlan.parse(PLANS["warp 32x1"]).with_(items_per_thread=4)
    args = [x, np.full(5, 77, "float32"), np.full_like(x, 77)]
    _, s, y = run_cuda(parallelize(init_block_of_its_own, CUDA_TARGET, plan), args)
    np.testing.assert_array_equal(y, np.cumsum(x, axis=1) + 4)
    np.testing.assert_array_equal(s, x.sum(1) + 4)
