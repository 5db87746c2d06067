"""Several lanes in a block of a tree: results, what they share, limits of the grid."""

import re

import numpy as np
import pytest

from tests.gpu.shared_memory import check_banks
from tests.support.cuda_harness import (
    CUDA_TARGET,
    emit_cuda,
    run_cuda,
)
from tests.support.plans import in_schedule
from tests.support.recurrence_cases import Case, check_exact, exact_inputs
from tvm_scan import ScanPlan, extract, library, parallelize
from tvm_scan.errors import PlanError
from tvm_scan.schedules.gpu.shared.tables import tables_of

STATES = (("initial_state", True), ("final_state", True))
TILES = ScanPlan.parse(
    "cuda/serial_tiles(threads_per_block=32, items_per_thread=4, block_tree=warp, "
    "vector_loads=True, lanes_per_block=4)"
)
SHARED = TILES.with_(block_load="transposed", items_per_thread=2, stages=2)


def affine(*flags, lanes=7):
    options = (*((flag, True) for flag in flags), *STATES)
    return Case("linear_recurrence", options=options, sizes=(("lanes", lanes),))


def scan(*options, channels=4):
    sizes = (("channels", channels), ("batch", 2), ("states", 4))
    return Case("selective_scan", options=(*options, *STATES), sizes=sizes)


STEPS = (("layout", "bld"), ("form", "step"))
RESULTS = {
    "direct, a block that is not full": (affine("reverse"), TILES, 300),
    "two warps each": (
        affine(),
        TILES.with_(threads_per_block=64, items_per_thread=8, block_load="transposed", stages=2),
        600,
    ),
    "Blelloch": (affine(), TILES.with_(block_tree="blelloch", threads_per_block=8), 100),
    "phases": (
        affine("exclusive"),
        in_schedule(TILES, "three_phase", block_tree="kogge_stone", threads_per_block=16),
        300,
    ),
    "B and C once": (scan(), SHARED, 160),
    "B and C once, states are neighbours": (scan(*STEPS), SHARED.with_(stages=1), 77),
    "phases, B and C once": (scan(), in_schedule(SHARED, "three_phase"), 160),
}


@pytest.mark.parametrize("name", RESULTS)
def test_exact(name):
    case, plan, length = RESULTS[name]
    options, inputs, want = exact_inputs(case, length)
    func = parallelize(case.function(length, options), CUDA_TARGET, plan)
    outputs = [np.full(array.shape, 77, case.dtype) for array in want.values()]
    got = run_cuda(func, [*inputs.values(), *outputs])
    check_exact(case, length, dict(zip(want, got[len(inputs) :], strict=True)))


def test_what_the_lanes_share():
    """B and C, where all lanes of a block have one batch."""
    for channels, count in ((8, 2), (6, 0), (None, 0)):
        found = extract(library.selective_scan(2, channels, 64, 8))
        assert len(tables_of(SHARED, found)) == count
    alone = SHARED.with_(lanes_per_block=1)
    assert not tables_of(alone, extract(library.selective_scan(2, 8, 64, 8)))


def test_tables_are_read_once_and_no_two_threads_meet_in_a_bank():
    func = library.selective_scan(2, 8, 1024, 4)
    source = emit_cuda(parallelize(func, CUDA_TARGET, SHARED.with_(stages=1)))
    kernel = source.partition("for (int tile")[2]
    # 4 states of 64 steps over 128 threads, B and C: two loads each, for all of the lanes.
    assert len(re.findall(r"_table_ptr\[[^\n]*\] = [BC]_ptr\[", kernel)) == 2 * 2
    assert kernel.count("B_ptr[") == kernel.count("C_ptr[") == 2
    check_banks(source, 2, kind="table")


WRONG = {
    "cuda/lanes(threads_per_block=64, lanes_per_block=2)": "the field 'lanes_per_block'",
    "cuda/serial_tiles(threads_per_block=512, items_per_thread=4, lanes_per_block=4)": (
        "at most 1024 threads of all of them, got lanes_per_block=4 of 512 threads"
    ),
    "cuda/serial_tiles(threads_per_block=64, items_per_thread=4, lanes_per_block=0)": (
        "at least one lane per block"
    ),
}


@pytest.mark.parametrize("text", WRONG)
def test_plans_that_do_not_fit(text):
    with pytest.raises(PlanError, match=WRONG[text]):
        ScanPlan.parse(text).check(CUDA_TARGET, extract(library.linear_recurrence(4, 1000)))
