"""Tiles in shared memory at the edges: no step, one step, indices of 64 bits, one grid axis."""

import re

import numpy as np
import pytest

from tests.numerics.test_cuda import subscripts
from tests.support.cuda_harness import (
    CUDA_TARGET,
    emit_cuda,
    run_cuda,
)
from tests.support.recurrence_cases import Case, check_exact, exact_inputs
from tvm_scan import ScanPlan, default_plan, extract, library, parallelize
from tvm_scan.errors import PlanError

_TREE = "cuda/serial_tiles(threads_per_block=32, items_per_thread=3, block_tree=warp, "
PLANS = {
    "one buffer": _TREE + "block_load=transposed)",
    "two buffers": _TREE + "block_load=transposed, stages=2)",
    "several lanes": _TREE + "block_load=transposed, stages=3, lanes_per_block=4)",
    "phases": _TREE.replace("serial_tiles", "three_phase") + "block_load=transposed)",
}
WALK = (
    "cuda/lanes(threads_per_block=64, items_per_thread=4, threads_per_lane=4, "
    "block_load=transposed, stages=2)"
)


@pytest.mark.parametrize("plan", ["several lanes", "phases"])
def test_no_step_and_one(plan):
    options = (("initial_state", True), ("final_state", True))
    case = Case("linear_recurrence", options=options, sizes=(("lanes", 5),))
    for length in (0, 1):
        chosen, inputs, want = exact_inputs(case, length)
        func = case.function(length, chosen)
        func = parallelize(func, CUDA_TARGET, ScanPlan.parse(PLANS[plan]))
        outputs = [np.full(array.shape, 77, case.dtype) for array in want.values()]
        got = run_cuda(func, [*inputs.values(), *outputs], seeds=(0, 2))
        check_exact(case, length, dict(zip(want, got[len(inputs) :], strict=True)))


def check_wide(source, names, least):
    """Every number in an index of these arrays is cast to 64 bits before it is used."""
    found = list(subscripts(source, names))
    assert len(found) >= least
    for index in found:
        for narrow in (r"(?<!int64_t\))\b\d+\b", r"(?<!int64_t\))\(\(int\)", r"\(int\)\("):
            assert not re.search(narrow, index), index


@pytest.mark.parametrize("plan", PLANS)
def test_indices_of_large_arrays_have_64_bits(plan):
    """70,000 rows of 40,000: beyond 65,535 blocks, all along blockIdx.x, and beyond 2^31."""
    func = library.linear_recurrence(70_000, 40_000, initial_state=True)
    source = emit_cuda(parallelize(func, CUDA_TARGET, ScanPlan.parse(PLANS[plan])))
    check_wide(source, ["A", "X", "H"], 3)
    assert "blockIdx.y" not in source


def test_so_have_those_of_lanes_that_threads_share():
    func = library.selective_scan(8, 4096, 70_000, 16)
    source = emit_cuda(parallelize(func, CUDA_TARGET, ScanPlan.parse(WALK)))
    # The thread within its block is a small number, whatever it is computed in.
    source = source.replace("((int)((int64_t)threadIdx.x))", "threadIdx.x")
    check_wide(source, ["delta", "u", "z", "out"], 4)
    assert "blockIdx.y" not in source


@pytest.mark.parametrize("chunks", [0, 8])
def test_so_have_those_of_rows_of_steps_and_of_chunks(chunks):
    """Channels last, where a block copies the rows of its lanes."""
    options = {"layout": "bld", "form": "step"}
    plan = ScanPlan.parse(WALK).with_(vector_loads=True, chunks=chunks)
    func = library.selective_scan(8, 4096, 70_000, 16, **options)
    source = emit_cuda(parallelize(func, CUDA_TARGET, plan))
    assert "float32_tile_ptr" in source and "blockIdx.y" not in source
    # The numbers of a block and of a thread within it have 31 bits, whatever they are computed in.
    for name in ("threadIdx.x", "blockIdx.x"):
        source = source.replace(f"((int)((int64_t){name}))", name)
    check_wide(source, ["delta", "u", "z", "out"], 8)


SINGLE = "cuda/single_pass(threads_per_block=32, items_per_thread=3, block_tree=warp)"


@pytest.mark.parametrize(
    ("plan", "rows", "length"),
    [
        ("one buffer", 1, 1 << 33),
        ("phases", 1, 1 << 33),
        ("single pass", 1, 1 << 33),
        ("two buffers", 3, 3 << 30),
        ("single pass", 3, 3 << 30),
    ],
)
def test_so_have_those_of_few_and_very_long_rows(plan, rows, length):
    func = library.cumsum(rows, length)
    chosen = ScanPlan.parse({**PLANS, "single pass": SINGLE}[plan])
    source = emit_cuda(parallelize(func, CUDA_TARGET, chosen))
    check_wide(source.replace("ticket_own_ptr[0]", "ticket"), ["X", "Y"], 1)
    assert "blockIdx.y" not in source


def test_a_single_pass_over_large_arrays():
    func = library.linear_recurrence(70_000, 40_000, initial_state=True)
    source = emit_cuda(parallelize(func, CUDA_TARGET, ScanPlan.parse(SINGLE)))
    check_wide(source.replace("ticket_own_ptr[0]", "ticket"), ["A", "X", "H"], 3)
    assert "blockIdx.y" not in source


def test_more_blocks_than_a_grid_has():
    """A block per row, or per tile, of 2^31 rows is refused; threads per row are not as many."""
    found = extract(library.cumsum(1 << 31, 40))
    for text in (PLANS["one buffer"], PLANS["phases"]):
        with pytest.raises(PlanError, match=r"at most 2147483647 blocks.*got 2147483648 blocks"):
            ScanPlan.parse(text).check(CUDA_TARGET, found)
    ScanPlan.parse(PLANS["several lanes"]).check(CUDA_TARGET, found)
    default_plan(CUDA_TARGET, found).check(CUDA_TARGET, found)
    with pytest.raises(PlanError, match=r"fewer than 2\^31 tiles"):
        ScanPlan.parse(SINGLE).check(CUDA_TARGET, extract(library.cumsum(1, 1 << 38)))


def test_shared_memory_is_that_of_each_kernel():
    """Three kernels of 37 KB in one module: each of them fits."""
    plan = ScanPlan.parse(
        "cuda/three_phase(threads_per_block=128, items_per_thread=16, block_tree=warp, "
        "block_load=transposed)"
    )
    x = np.arange(2 * 5000, dtype="int64").reshape(2, 5000) % 7
    func = parallelize(library.cumsum(2, 5000, "int64"), CUDA_TARGET, plan)
    _, y = run_cuda(func, [x, np.zeros_like(x)], seeds=(0,), race=False)
    np.testing.assert_array_equal(y, np.cumsum(x, axis=1))
