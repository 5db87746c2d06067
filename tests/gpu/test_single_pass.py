"""The look-back of `single_pass`: under many orders of blocks that wait for each other."""

import numpy as np
import pytest
import tvm

from tests.numerics.test_cuda import init_block_of_its_own
from tests.programs.family_programs import PROGRAMS
from tests.programs.half_recurrences import FUNCTIONS, HALVES, half_expected, half_inputs
from tests.programs.random_recurrences import FAMILIES, Shape, inputs_of, source_of, twin
from tests.programs.test_extraction import sequential
from tests.programs.test_families import arguments, check
from tests.support import cusim
from tests.support.cuda_harness import (
    CUDA_TARGET,
    compile_cuda,
    emit_cuda,
    run_cuda,
)
from tests.support.cusim import nvcc
from tests.support.recurrence_cases import Case, check_exact, exact_inputs
from tvm_scan import ScanPlan, default_plan, extract, library, parallelize
from tvm_scan.errors import PlanError
from tvm_scan.meta.space import decisions
from tvm_scan.schedules.gpu.thread.ordered_memory import is_word

PLANS = {
    "warp 32x2": "cuda/single_pass(threads_per_block=32, items_per_thread=2, block_tree=warp)",
    "warp 64x1": "cuda/single_pass(threads_per_block=64, items_per_thread=1, block_tree=warp)",
    "blelloch 8x3": "cuda/single_pass(threads_per_block=8, items_per_thread=3)",
    "kogge 16x4": (
        "cuda/single_pass(threads_per_block=16, items_per_thread=4, block_tree=kogge_stone)"
    ),
    "tiles in shared memory": (
        "cuda/single_pass(threads_per_block=64, items_per_thread=4, block_tree=warp, "
        "vector_loads=True, block_load=transposed)"
    ),
    "steps taken twice, vector by vector": (
        "cuda/single_pass(threads_per_block=32, items_per_thread=8, block_tree=warp, "
        "vector_loads=True, block_load=transposed)"
    ),
}
ORDERS = tuple(range(9))


@pytest.mark.parametrize("plan", PLANS)
def test_lengths(plan):
    """None, one, a tile, a window, and around them; of a symbolic length, by one kernel."""
    plan = ScanPlan.parse(PLANS[plan])
    case = Case(
        "linear_recurrence",
        options=(("initial_state", True), ("final_state", True)),
        sizes=(("lanes", 2),),
    )
    func = parallelize(case.function(None, exact_inputs(case, 1)[0]), CUDA_TARGET, plan)
    executable = compile_cuda(func)
    window = plan.tile * plan.threads_per_block
    for length in (0, 1, plan.tile, plan.tile + 1, min(window, 2048) + 1, 769):
        _, inputs, want = exact_inputs(case, length)
        outputs = [np.full(array.shape, 77, case.dtype) for array in want.values()]
        got = run_cuda(func, [*inputs.values(), *outputs], executable=executable, seeds=(0, 1, 4))
        check_exact(case, length, dict(zip(want, got[len(inputs) :], strict=True)))


@pytest.mark.parametrize("name", ["matrices", "first largest"])
def test_many_orders(name):
    """A combine that does not commute; two levels. Several windows."""
    family, shape = FAMILIES[name], Shape(3, 700, reverse=True, exclusive=True)
    inputs = inputs_of(family, shape, 7)
    want = twin(family, shape, inputs)
    plan = ScanPlan.parse(PLANS["blelloch 8x3"]).with_(items_per_thread=2)
    func = parallelize(source_of(family, shape), CUDA_TARGET, plan)
    args = [*inputs, *(np.full_like(array, 77) for array in want)]
    got = run_cuda(func, args, seeds=ORDERS)[len(inputs) :]
    for array, expected in zip(got, want, strict=True):
        np.testing.assert_array_equal(array, expected)


def test_the_same_bits_in_every_order():
    """Of gates and values that round: what is combined depends on the tile's number alone."""
    rng = np.random.default_rng(5)
    gates, x = (rng.uniform(-1, 1, (2, 1500)).astype("float32") for _ in range(2))
    plan = ScanPlan.parse(PLANS["blelloch 8x3"])
    func = parallelize(library.linear_recurrence(2, 1500), CUDA_TARGET, plan)
    got = run_cuda(func, [gates, x, np.zeros_like(x)], seeds=ORDERS)[2]
    want = sequential(library.linear_recurrence(2, 1500), [gates, x, np.zeros_like(x)])[2]
    # Two roundings a step, of terms that sum to at most the length in magnitude.
    np.testing.assert_allclose(got, want, atol=2 * 1500 * 2.0**-24 * 8)


# Smaller integers and functions as tables take words of 32 bits; 64 bits; two dtypes.
@pytest.mark.parametrize("name", ["switch", "automaton", "rolling_hash", "reset_max"])
def test_families(name):
    func, args = PROGRAMS[name][0], arguments(name)
    plan = ScanPlan.parse(PLANS["blelloch 8x3"]).with_(threads_per_block=4)
    got = run_cuda(parallelize(func, CUDA_TARGET, plan), args, seeds=(0, 1, 5))
    check(name, got, sequential(func, args))


def test_a_state_of_many_cells():
    case = Case(
        "selective_scan",
        options=(("initial_state", True), ("final_state", True)),
        sizes=(("channels", 2), ("batch", 1)),
    )
    options, inputs, want = exact_inputs(case, 150)
    plan = ScanPlan.parse(PLANS["warp 32x2"]).with_(items_per_thread=1)
    func = parallelize(case.function(150, options), CUDA_TARGET, plan)
    args = [*inputs.values(), *(np.full(array.shape, 77, case.dtype) for array in want.values())]
    got = run_cuda(func, args, seeds=(0, 1, 4))
    check_exact(case, 150, dict(zip(want, got[len(inputs) :], strict=True)))


def test_the_initial_state_may_lie_where_the_final_one_goes():
    """Only one thread of a lane reads it, before the last step writes there; no race."""
    x = np.random.default_rng(3).integers(-3, 4, (5, 100)).astype("float32")
    plan = ScanPlan.parse(PLANS["warp 32x2"]).with_(items_per_thread=1)
    args = [x, np.full(5, 77, "float32"), np.full_like(x, 77)]
    _, s, y = run_cuda(parallelize(init_block_of_its_own, CUDA_TARGET, plan), args, seeds=ORDERS)
    np.testing.assert_array_equal(y, np.cumsum(x, axis=1) + 4)
    np.testing.assert_array_equal(s, x.sum(1) + 4)


CUMSUM = ScanPlan.parse(PLANS["warp 32x2"]).with_(items_per_thread=1)
X = np.random.default_rng(1).integers(-3, 4, (2, 500)).astype("float32")


def rewritten(*changes):
    def change(source):
        for old, new in changes:
            assert old in source, old
            source = source.replace(old, new)
        return source

    return cusim.rewritten_source(change)


def cumsum_changed(*changes):
    with rewritten(*changes):
        return compile_cuda(parallelize(library.cumsum(2, 500), CUDA_TARGET, CUMSUM))


def right(executable, seed):
    with cusim.settings(seed=seed):
        x, y = (tvm.runtime.tensor(a, tvm.cuda(0)) for a in (X, np.full_like(X, 77)))
        executable["main"](x, y)
        return np.array_equal(y.numpy(), np.cumsum(X, axis=1))


@pytest.mark.skipif(not cusim.is_simulated(), reason="changes what the simulator compiles")
def test_what_a_missing_mark_or_ticket_does():
    """That the tests of this file can fail: both defects are found."""
    as_is = cumsum_changed()
    assert all(right(as_is, seed) for seed in range(12))
    mark = "seen_ptr[0] = (seen_ptr[0] & ((int)(word_ptr[0] >> (uint64_t)32ULL)));"
    unseen = cumsum_changed((mark, ""))
    assert not all(right(unseen, seed) for seed in range(2, 20))
    ticket = "tvm_builtin_cuda_atomic_add((&(ticket_ptr[0])), 1)"
    by_number = cumsum_changed((ticket, "(int)blockIdx.x"))
    assert right(by_number, 0), "ascending blocks wait for nobody"
    with pytest.raises(tvm.error.InternalError, match=r"deadlock: .* none of the 4 blocks"):
        right(by_number, 1)


@pytest.mark.skipif(not cusim.is_simulated(), reason="changes what the simulator compiles")
@pytest.mark.parametrize("ordered", ["st_release", "ld_acquire"])
def test_what_a_missing_order_does(ordered):
    """The final state is then written where another block reads the initial one."""
    call = f"tvm_builtin_ptx_{ordered}_gpu_global_u64("
    relaxed = call.replace("release", "relaxed").replace("acquire", "relaxed")
    arguments = {"st_release": "(&(", "ld_acquire": "word_ptr[0]"}[ordered]
    x = np.ones((5, 100), "float32")
    func = parallelize(init_block_of_its_own, CUDA_TARGET, CUMSUM)
    with rewritten((call + arguments, relaxed + arguments)):
        executable = compile_cuda(func)
    with pytest.raises(tvm.error.InternalError, match=r"data race"):
        run_cuda(func, [x, np.full(5, 77, "float32"), np.full_like(x, 77)], executable=executable)


@pytest.mark.skipif(not nvcc.nvcc_available(), reason="nvcc is missing: no PTX to read")
@pytest.mark.parametrize("arch", ["sm_80", "sm_100"])
@pytest.mark.parametrize(
    ("func", "ordered"), [(library.cumsum(2, 500), 0), (init_block_of_its_own, 1)]
)
def test_what_is_in_the_ptx(func, ordered, arch):
    source = emit_cuda(parallelize(func, CUDA_TARGET, CUMSUM))
    ptx = nvcc.compile_ptx(source, arch)
    for text, count in (
        ("st.relaxed.gpu.global.u64", 3),  # the tile, the first carry, the next window's
        ("ld.relaxed.gpu.global.u64", 2),
        # Fences and emptied caches: of the first and the last tile alone, where they must be.
        ("st.release.gpu.global", ordered),
        ("ld.acquire.gpu.global", ordered),
        ("fence", 0),
        ("membar", 0),
        ("atom.global.add", 1),
    ):
        assert ptx.count(text) == count, text
    assert not any(t.spill_stores for t in nvcc.compile_resources(source, arch).values())


def test_shared_memory_is_what_the_plan_says():
    if not nvcc.nvcc_available():
        pytest.skip("nvcc is missing: no resources to read")
    for text in PLANS.values():
        func = library.linear_recurrence(4, 1000, "float64")
        plan = ScanPlan.parse(text)
        source = emit_cuda(parallelize(func, CUDA_TARGET, plan))
        taken = nvcc.compile_resources(source)
        # The last array, whichever that is, is not rounded up.
        assert (
            0 <= plan.smem_bytes(extract(func)) - max(t.shared_bytes for t in taken.values()) < 64
        )


def test_it_is_tried_in_a_search_and_a_default_of_few_long_rows():
    """Through shared memory, of lengths that are not known too; not of states of many cells."""
    found = extract(library.cumsum(1, 1 << 28))
    tried = {plan.algorithm for b in decisions.branches(CUDA_TARGET, found) for plan in b.plans()}
    assert "single_pass" in tried
    for func in (library.cumsum(1, 1 << 28), library.cumsum(1, None)):
        plan = default_plan(CUDA_TARGET, extract(func))
        assert plan.algorithm == "single_pass" and plan.block_load == "transposed"
    others = (
        library.cumsum(4096, 4096),
        library.selective_scan(1, 8, 65536, 16),
    )
    for func in others:
        assert default_plan(CUDA_TARGET, extract(func)).algorithm != "single_pass"


def test_halves_are_handed_over_in_float32():
    inputs = half_inputs("state", np.random.default_rng(2), 2, 200, "bfloat16")
    want = half_expected("state", inputs)
    func = parallelize(FUNCTIONS["state"](2, 200, "bfloat16"), CUDA_TARGET, CUMSUM)
    args = [*inputs.values(), *(np.full(a.shape, 77, HALVES["bfloat16"]) for a in want.values())]
    got = run_cuda(func, args, seeds=(0, 1, 4))[len(inputs) :]
    for array, expected in zip(got, want.values(), strict=True):
        # bfloat16's unit roundoff, and float32's of 200 steps of sums below 6 * 200.
        error = np.abs(array.astype(np.float64) - expected)
        assert (error <= 2.0**-9 * np.abs(expected) + 2 * 232 * 2.0**-24 * 1200).all()


def test_what_it_refuses():
    plan = ScanPlan.parse(PLANS["warp 32x2"])
    assert is_word("bool") and is_word("float64") and not is_word("float16")
    many = extract(library.cumsum(1 << 20, 1 << 20))
    small = plan.with_(items_per_thread=1)
    with pytest.raises(PlanError, match=r"fewer than 2\^31 tiles.*, got 34359738368 tiles"):
        small.check(CUDA_TARGET, many)
