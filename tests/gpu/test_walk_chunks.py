"""Lanes that walk time in chunks: results of every family, the kernels, plans that do not fit."""

import re

import numpy as np
import pytest
from tvm.script import tirx as T

from bench.gpu_cases import Case as GpuCase
from tests.programs.random_recurrences import FAMILIES, Shape, inputs_of, source_of, twin
from tests.support.cuda_harness import (
    CUDA_TARGET,
    check_nvcc,
    compile_cuda,
    emit_cuda,
    run_cuda,
    run_exactly,
)
from tests.support.cusim import nvcc
from tests.support.recurrence_cases import Case, check_exact, exact_inputs
from tvm_scan import ScanPlan, extract, library, parallelize
from tvm_scan.cli.draw.tree_text import tree_text
from tvm_scan.errors import PlanError
from tvm_scan.schedules.common.state_reduction import reduction_of
from tvm_scan.schedules.common.state_split import NoSplit, split_of
from tvm_scan.schedules.gpu.walk.passes import groups_written_out
from tvm_scan.schedules.gpu.walk.time_cut import TimeCut

LANES = ScanPlan.parse("cuda/lanes(threads_per_block=64, chunks=3)")
SHARED = LANES.with_(items_per_thread=4, vector_loads=True, threads_per_lane=4)
STAGED = SHARED.with_(block_load="transposed", stages=2)
STATES = (("initial_state", True), ("final_state", True))
STEPS = (("layout", "bld"), ("form", "step"), *STATES)
BARE = tuple((name, False) for name in ("has_bias", "softplus", "has_D", "has_z"))


def scan(options=STATES, **sizes):
    known = {"channels": 5, "batch": 2, "states": 8, **sizes}
    return Case("selective_scan", options=tuple(options), sizes=tuple(known.items()))


RESULTS = {
    "direct": (scan(), SHARED, (96, 33)),
    "two buffers": (scan(channels=16), STAGED, (160,)),
    "three buffers, not aligned": (scan(channels=16), STAGED.with_(stages=3), (101,)),
    "one buffer, channels last": (scan(STEPS, channels=16), STAGED.with_(stages=1), (77,)),
    "a state each": (scan(BARE), SHARED.with_(threads_per_lane=8, items_per_thread=2), (70,)),
    "polynomials": (scan(), SHARED.with_(exp_share=8), (64,)),
    "a thread per lane": (scan(STEPS), LANES, (70,)),
}


@pytest.mark.parametrize("name", RESULTS)
def test_selective_scan(name):
    run_exactly(*RESULTS[name])


@pytest.mark.parametrize(
    "plan", [SHARED, STAGED.with_(stages=1), LANES], ids=["direct", "one buffer", "alone"]
)
def test_symbolic_sizes(plan):
    """No step, chunks without steps, chunks that are not full; lanes symbolic too."""
    run_exactly(scan(channels=16), plan, (0, 33, 130), symbolic=True)


def test_symbolic_lengths():
    """Tiles beyond the end of a chunk are not copied."""
    case, plan = scan(channels=16), STAGED
    options, _, _ = exact_inputs(case, 1)
    func = parallelize(library.selective_scan(2, 16, None, 8, **options), CUDA_TARGET, plan)
    executable = compile_cuda(func)
    for length in (1, 130):
        _, inputs, want = exact_inputs(case, length)
        outputs = [np.full(array.shape, 77, case.dtype) for array in want.values()]
        got = run_cuda(func, [*inputs.values(), *outputs], executable=executable)
        check_exact(case, length, dict(zip(want, got[len(inputs) :], strict=True)))


SHAPES = (
    Shape(5, 97, reverse=True, exclusive=False, lanes_last=True, symbolic=False),
    Shape(70, 200, reverse=False, exclusive=True, lanes_last=False, symbolic=False),
    Shape(3, 211, reverse=True, exclusive=True, lanes_last=True, symbolic=True),
)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family(name):
    """A thread per lane: reversed, exclusive, resets, several carries, either layout."""
    family = FAMILIES[name]
    shape = SHAPES[list(FAMILIES).index(name) % len(SHAPES)]
    inputs = inputs_of(family, shape, seed=3)
    want = twin(family, shape, inputs)
    func = parallelize(source_of(family, shape), CUDA_TARGET, LANES.with_(chunks=4))
    outputs = [np.full_like(array, 77) for array in want]
    got = run_cuda(func, [*inputs, *outputs], seeds=(0, 1))[-len(want) :]
    for array, expected in zip(got, want, strict=True):
        np.testing.assert_allclose(array, expected, rtol=family.tolerance, atol=family.tolerance)


def test_rwkv6_of_full_size():
    """64 states: a head's columns share keys and gates; exact for halves and small integers."""
    case, rng = GpuCase("rwkv6", (2, 90, 64)), np.random.default_rng(7)
    inputs = {k: rng.integers(-1, 2, v.shape).astype(v.dtype) for k, v in case.inputs(rng).items()}
    want = case.expected(inputs)["Y"]
    assert np.abs(want).max() < 1 << 24, "beyond which sums in float32 are not exact"
    plan = SHARED.with_(threads_per_lane=16, chunks=3)
    func = parallelize(case.func, CUDA_TARGET, plan)
    got = run_cuda(func, [*inputs.values(), np.full(want.shape, 77, "float32")])[-1]
    np.testing.assert_array_equal(got, want)


def test_what_a_reduction_leaves_out():
    """C, z and D are read for the output alone, and nothing is summed."""
    found = extract(library.selective_scan(2, 16, 64, 8))
    reduced, whole = reduction_of(found).split, split_of(found)
    text = str([*reduced.before, *reduced.loops])
    for name in ("C", "z", "D"):
        assert not re.search(rf"\b{name}\[", text), f"the reduction reads {name}"
    assert re.search(r"\bB\[", text)
    assert re.search(r"\bdelta\[", text)
    assert whole.sums
    assert not reduced.sums
    assert not reduced.after
    assert len(re.findall(r"\bexp\(", str(reduced.loops))) == 1, "the gate is computed once"


def test_where_time_is_cut():
    """Whole lines, as many chunks as have steps."""
    for length, chunks, count, size in (
        (96, 3, 3, 32),
        (97, 3, 2, 64),
        (1, 8, 1, 32),
        (0, 8, 1, 32),
    ):
        cut = TimeCut(extract(library.linear_recurrence(2, length)), LANES.with_(chunks=chunks))
        assert (cut.count, int(cut.length)) == (count, size)


@T.prim_func(s_tir=True)
def largest_gate(X: T.Buffer((4, 64, 8), "float32"), Y: T.Buffer((4, 64), "float32")):
    """States that are no affine function of themselves."""
    for b in range(4):
        h = T.sblock_alloc_buffer((8,), "float32")
        y = T.sblock_alloc_buffer((1,), "float32")
        for n in range(8):
            h[n] = T.float32(0)
        for t in range(64):
            y[0] = T.float32(0)
            for n in range(8):
                h[n] = T.max(h[n], X[b, t, n])
                y[0] = y[0] + h[n]
            Y[b, t] = y[0]


WRONG = {
    "cuda/lanes(threads_per_block=64, chunks=1)": "2 to 4096 chunks, or 0 for none, got chunks=1",
    "cuda/lanes(threads_per_block=64, chunks=8192)": "2 to 4096 chunks",
    "cuda/three_phase(threads_per_block=64, items_per_thread=4, chunks=4)": "the field 'chunks'",
    "cuda/sequential(threads_per_block=64, chunks=4)": "expected one of .* got the field 'chunks'",
}


@pytest.mark.parametrize("text", WRONG)
def test_plans_that_do_not_fit(text):
    with pytest.raises(PlanError, match=WRONG[text]):
        ScanPlan.parse(text).check(CUDA_TARGET, extract(library.selective_scan(1, 64, 64, 16)))


def test_steps_and_sizes_that_do_not_fit():
    found = extract(largest_gate)
    assert isinstance(reduction_of(found), NoSplit)
    SHARED.with_(chunks=0).check(CUDA_TARGET, found)
    LANES.check(CUDA_TARGET, found)
    with pytest.raises(PlanError, match="states that are affine, each in itself alone"):
        SHARED.check(CUDA_TARGET, found)
    wide = extract(library.linear_recurrence(1 << 20, 1 << 10))
    with pytest.raises(PlanError, match=r"fewer than 2\^31 states of all lanes and chunks"):
        LANES.with_(chunks=4096).check(CUDA_TARGET, wide)


def test_what_the_compiler_makes_of_it():
    if not nvcc.nvcc_available():
        pytest.skip("nvcc is missing: the instructions of the kernels are not counted")
    func = library.selective_scan(1, 2048, 65536, 16)
    scheduled = parallelize(func, CUDA_TARGET, STAGED.with_(threads_per_block=128, chunks=16))
    taken = check_nvcc(scheduled)
    assert len(taken) == 3
    assert all(t.stack == 0 for t in taken.values())
    ptx = nvcc.compile_ptx(emit_cuda(scheduled))
    reduce, carries, replay = ptx.split(".entry")[1:]
    # Of four steps: four owners with four states each, softplus, and in the replay the gate of the
    # output.
    steps = 4 * groups_written_out(STAGED, 4)
    assert len(re.findall(r"ex2\.approx", reduce)) == steps * (4 * 4 + 1)
    assert len(re.findall(r"ex2\.approx", replay)) == steps * (4 * 4 + 2)
    assert not re.findall(r"ex2\.approx", carries)
    # What the reduction copies: delta, u and B; the replay z and C as well.
    copies = [len(re.findall(r"cp\.async\.cg", kernel)) for kernel in (reduce, replay)]
    assert copies == [2 * (2 * 2 + 1), 2 * (3 * 2 + 2)]
    # Nothing but its element leaves the reduction.
    assert len(re.findall(r"st\.global", reduce)) <= 2 * 4


def test_explain_names_the_chunks():
    found = extract(library.selective_scan(1, 64, 256, 16))
    assert "chunks  3 of time: reduce all but the last" in tree_text(found, SHARED)
    assert "chunks" not in tree_text(found, SHARED.with_(chunks=0))
