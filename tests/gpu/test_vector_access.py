"""Loads and stores of 128 bits: where they may be, what nvcc makes of them, and the results."""

import re

import numpy as np
import pytest

from tests.programs.half_recurrences import FUNCTIONS, HALVES, half_expected, half_inputs
from tests.support.cuda_harness import (
    CUDA_TARGET,
    emit_cuda,
    run_cuda,
)
from tests.support.cusim import nvcc
from tests.support.plans import in_schedule
from tests.support.recurrence_cases import Case, check_exact, exact_inputs
from tvm_scan import ScanPlan, extract, library, parallelize
from tvm_scan.schedules.gpu.thread.vector_access import has_vectors, steady_stores, vector_access

PLAN = ScanPlan.parse(
    "cuda/serial_tiles(threads_per_block=32, items_per_thread=8, block_tree=warp, "
    "vector_loads=True)"
)


def stored_lanes(func, items=8):
    found = extract(func)
    (store,) = steady_stores(found)
    return vector_access(store.buffer, list(store.indices), found, items)


@pytest.mark.parametrize(
    ("func", "lanes"),
    [
        (library.cumsum(3, 64), 4),
        (library.cumsum(3, 64, "float64"), 2),
        (library.cumsum(3, 64, "int64"), 2),
        (library.cumsum(3, 62), 2),
        (library.cumsum(3, 63), 1),
        (library.cumsum(3, None), 1),
        (library.cumsum(3, 64, axis=0), 1),
        (library.cumsum(3, 64, reverse=True), 4),
        (FUNCTIONS["history"](3, 64, "bfloat16"), 8),
    ],
)
def test_widths(func, lanes):
    assert stored_lanes(func).lanes == lanes
    assert has_vectors(extract(func)) == (lanes > 1)


def test_fewer_items_than_a_vector_narrow_it():
    func = library.cumsum(3, 64)
    assert [stored_lanes(func, items).lanes for items in (1, 2, 3, 4, 6, 8)] == [1, 2, 1, 4, 2, 4]


def test_memory_walked_backwards_keeps_its_order_in_registers():
    access = stored_lanes(library.cumsum(3, 64, reverse=True))
    assert [access.slot(k) for k in range(8)] == [3, 2, 1, 0, 7, 6, 5, 4]


@pytest.mark.parametrize("algorithm", ["serial_tiles", "three_phase"])
@pytest.mark.parametrize("flags", [(), ("reverse",), ("exclusive",), ("reverse", "exclusive")])
def test_results(flags, algorithm):
    """Complete and incomplete tiles; the accesses that an exclusive scan shifts stay single."""
    options = tuple((flag, True) for flag in flags)
    case = Case("linear_recurrence", options=options, sizes=(("lanes", 3),))
    for length in (4, 1000):
        chosen, inputs, want = exact_inputs(case, length)
        func = parallelize(case.function(length, chosen), CUDA_TARGET, in_schedule(PLAN, algorithm))
        outputs = [np.full(array.shape, 77, case.dtype) for array in want.values()]
        got = run_cuda(func, [*inputs.values(), *outputs])
        check_exact(case, length, dict(zip(want, got[len(inputs) :], strict=True)))


@pytest.mark.parametrize("dtype", HALVES)
def test_eight_halves_at_once(dtype):
    name = "history"
    inputs = half_inputs(name, np.random.default_rng(7), 3, 304, dtype)
    want = half_expected(name, inputs)
    func = parallelize(FUNCTIONS[name](3, 304, dtype), CUDA_TARGET, PLAN)
    args = [*inputs.values(), *(np.full(a.shape, 77, HALVES[dtype]) for a in want.values())]
    got = dict(zip(want, run_cuda(func, args)[len(inputs) :], strict=True))
    for key in want:
        half = 2.0**-9 if dtype == "bfloat16" else 2.0**-11
        error = np.abs(got[key].astype(np.float64) - want[key])
        # The last rounding to a half, and float32's of 304 steps on sums below 6 * 304.
        assert (error <= half * np.abs(want[key]) + 2 * 336 * 2.0**-24 * 1824).all()


@pytest.mark.parametrize(
    ("func", "loads", "stores"),
    [
        (library.linear_recurrence(3, 1024), 2 * 2, 2),
        (FUNCTIONS["history"](3, 1024, "bfloat16"), 2, 1),
    ],
    ids=["float32", "bfloat16"],
)
def test_the_compiler_moves_128_bits(func, loads, stores):
    """In the PTX: as many vectors of four words as there must be, and no narrower access."""
    if not nvcc.nvcc_available():
        pytest.skip("nvcc is missing: the widths of loads and stores are not checked")
    source = emit_cuda(parallelize(func, CUDA_TARGET, PLAN))
    ptx = nvcc.compile_ptx(source)
    found = re.findall(r"\b(ld|st)\.global(?:\.nc)?(\.v4)?\.\w+", ptx)
    assert sorted(found) == [("ld", ".v4")] * loads + [("st", ".v4")] * stores
