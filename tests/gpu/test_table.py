"""Builders times algebras times lengths: one table that shows its holes.

Every pair of a builder and an algebra is either refused, with the reason that stands in `REFUSED`,
or runs: exact inputs, symbolic sizes, all edge lengths by one kernel, under the race detector and
in two orders of threads and blocks. The full tier takes all pairs, the others every builder and
every algebra.
"""

import re
from functools import cache

import numpy as np
import pytest
import tvm

from tests.programs.random_recurrences import FAMILIES, Shape, inputs_of, source_of, twin
from tests.support import cusim
from tests.support.cuda_harness import CUDA_TARGET, compile_cuda
from tests.support.recurrence_cases import Case, exact_inputs
from tests.support.tiers import SEED, longer
from tvm_scan import ScanPlan, extract, parallelize
from tvm_scan.errors import PlanError

_TILES = "cuda/serial_tiles(threads_per_block=32, items_per_thread=3, block_tree=warp, "
_SHARED = "cuda/lanes(threads_per_block=32, items_per_thread=2, threads_per_lane=2"
#: Threads of the trees: within a warp, and of an odd and an even number of levels beyond it.
_TREES = {
    "serial_tiles": {"blelloch": 128, "kogge_stone": 64, "warp": 64},
    "three_phase": {"blelloch": 8, "kogge_stone": 8, "warp": 32},
    "single_pass": {"blelloch": 64, "kogge_stone": 128, "warp": 64},
}
BUILDERS = {
    "a thread a lane": "cuda/sequential(threads_per_block=32)",
    "lanes": "cuda/lanes(threads_per_block=32)",
    "shared lanes": f"{_SHARED})",
    "shared lanes, 1 buffer": f"{_SHARED}, block_load=transposed)",
    "shared lanes, 2 buffers": f"{_SHARED}, block_load=transposed, stages=2)",
    "shared lanes, 3 buffers": f"{_SHARED}, block_load=transposed, stages=3)",
    **{
        f"{algorithm}, {tree}": f"cuda/{algorithm}(threads_per_block={threads}, "
        f"items_per_thread=3, block_tree={tree})"
        for algorithm, trees in _TREES.items()
        for tree, threads in trees.items()
    },
    "tiles, 1 buffer": f"{_TILES}block_load=transposed)",
    "tiles, 2 buffers": f"{_TILES}block_load=transposed, stages=2)",
    "tiles, 3 buffers": f"{_TILES}block_load=transposed, stages=3)",
    "phases, transposed": _TILES.replace("serial_tiles", "three_phase") + "block_load=transposed)",
    "single pass, transposed": _TILES.replace("serial_tiles", "single_pass")
    + "block_load=transposed)",
    "lanes of a block": f"{_TILES}lanes_per_block=2)",
    "lanes of a block, 2 buffers": f"{_TILES}block_load=transposed, stages=2, lanes_per_block=4)",
}
SELECTIVE = Case(
    "selective_scan",
    options=(("initial_state", True), ("final_state", True)),
    sizes=(("channels", 3), ("batch", 1), ("states", 4)),
)
ALGEBRAS = [*FAMILIES, "selective scan"]

#: Pattern of a builder, pattern of an algebra, and why the plan is refused.
REFUSED = (
    (
        r"shared lanes.*",
        r"(?!selective scan).*",
        "expected a step whose states are independent but for sums over them, got a carry without",
    ),
)


def plan_of(builder):
    return ScanPlan.parse(BUILDERS[builder])


@cache
def loop_of(algebra):
    """With symbolic sizes; backwards, and exclusive where that is said of the family."""
    if algebra == "selective scan":
        return SELECTIVE.function(None, exact_inputs(SELECTIVE, 1)[0])
    return source_of(FAMILIES[algebra], shape_of(algebra, 1))


def shape_of(algebra, length):
    turn = ALGEBRAS.index(algebra)
    return Shape(3, length, reverse=turn % 2 == 1, exclusive=turn % 3 == 2, symbolic=True)


def lengths_of(plan):
    """None, one, odd, prime, and around a tile."""
    tile = plan.tile if plan.algorithm not in ("sequential", "lanes") else 32
    return sorted({0, 1, 9, 13, tile - 1, tile, tile + 1, 3 * tile + 5})


@cache
def recurrence_of(algebra):
    return extract(loop_of(algebra))


def refusal(builder, algebra):
    try:
        plan_of(builder).check(CUDA_TARGET, recurrence_of(algebra))
    except PlanError as error:
        return str(error)
    return None


def listed(builder, algebra):
    for builders, algebras, reason in REFUSED:
        if re.fullmatch(builders, builder) and re.fullmatch(algebras, algebra):
            return reason
    return None


def test_every_hole_is_listed_with_its_reason():
    for builder in BUILDERS:
        for algebra in ALGEBRAS:
            found, reason = refusal(builder, algebra), listed(builder, algebra)
            if reason is None:
                assert found is None, (builder, algebra)
            else:
                assert found is not None and re.search(reason, found), (builder, algebra, found)


def pairs():
    """Of the pairs that run, one for every builder, and what it takes for every algebra."""
    runs = {b: [a for a in ALGEBRAS if listed(b, a) is None] for b in BUILDERS}
    every = [(b, a) for b, algebras in runs.items() for a in algebras]
    missing, found = set(ALGEBRAS), []
    for builder, algebras in runs.items():
        one = next(
            (a for a in algebras if a in missing), algebras[(SEED + len(found)) % len(algebras)]
        )
        missing.discard(one)
        found.append((builder, one))
    found += [next(pair for pair in every if pair[1] == algebra) for algebra in sorted(missing)]
    return longer(found, every)


def test_the_sample_has_every_builder_and_every_algebra():
    assert {builder for builder, _ in pairs()} == set(BUILDERS)
    assert {algebra for _, algebra in pairs()} == set(ALGEBRAS)


@pytest.mark.parametrize(("builder", "algebra"), pairs())
def test_edge_lengths(builder, algebra):
    plan = plan_of(builder)
    executable = compile_cuda(parallelize(loop_of(algebra), CUDA_TARGET, plan))
    for length in lengths_of(plan):
        inputs, want, tolerance = problem(algebra, length)
        args = [*inputs, *(np.full_like(array, 77) for array in want)]
        first = None
        for seed, race in ((0, True), (1, False), (5, False)):
            with cusim.settings(seed=seed, race=race):
                tensors = [tvm.runtime.tensor(array, tvm.cuda(0)) for array in args]
                executable["main"](*tensors)
                got = [tensor.numpy() for tensor in tensors[len(inputs) :]]
            for array, expected in zip(got, want, strict=True):
                np.testing.assert_allclose(
                    array, expected, rtol=tolerance, atol=tolerance, err_msg=f"length {length}"
                )
            first = first or got
            assert all(a.tobytes() == b.tobytes() for a, b in zip(first, got, strict=True))


def problem(algebra, length):
    """Inputs, results, and a tolerance, which is zero where every order is exact."""
    if algebra == "selective scan":
        _, inputs, want = exact_inputs(SELECTIVE, length)
        return list(inputs.values()), [a.astype("float32") for a in want.values()], 0.0
    family, shape = FAMILIES[algebra], shape_of(algebra, length)
    inputs = inputs_of(family, shape, seed=length)
    return inputs, twin(family, shape, inputs), family.tolerance
