"""Threads that share lanes walk tiles of time in shared memory: results, what nvcc makes of it."""

import re

import numpy as np
import pytest
from tvm.script import tirx as T

from bench.gpu_loops import rwkv6
from tests.gpu.shared_memory import check_banks
from tests.support.cuda_harness import (
    CUDA_TARGET,
    check_nvcc,
    compile_cuda,
    emit_cuda,
    emitted_source,
    run_cuda,
    run_exactly,
)
from tests.support.cusim import nvcc
from tests.support.recurrence_cases import Case, check_exact, exact_inputs
from tvm_scan import ScanPlan, extract, library, parallelize
from tvm_scan.errors import PlanError
from tvm_scan.schedules.common.state_split import split_of
from tvm_scan.schedules.gpu.shared.step_rows import StepRows
from tvm_scan.schedules.gpu.shared.walk_layout import walk_layout, walk_steps
from tvm_scan.schedules.gpu.walk.common_factors import with_common_factors
from tvm_scan.schedules.gpu.walk.exchange import exchange_layout
from tvm_scan.schedules.gpu.walk.passes import groups_written_out

PLAN = ScanPlan.parse(
    "cuda/lanes(threads_per_block=32, items_per_thread=4, vector_loads=True, threads_per_lane=4, "
    "block_load=transposed, stages=2)"
)
STATES = (("initial_state", True), ("final_state", True))
STEPS = (("layout", "bld"), ("form", "step"), *STATES)


def scan(options=STATES, **sizes):
    known = {"channels": 8, "batch": 2, "states": 8, **sizes}
    return Case("selective_scan", options=tuple(options), sizes=tuple(known.items()))


RESULTS = {
    "two buffers": (scan(), PLAN, (80,)),
    "one buffer, not aligned": (scan(), PLAN.with_(stages=1), (77,)),
    "states are neighbours": (scan(STEPS), PLAN.with_(stages=3), (100,)),
    "several vectors of a thread": (scan(STEPS, states=32), PLAN, (100,)),
    "several vectors, one buffer": (scan(STEPS, states=32), PLAN.with_(stages=1), (33,)),
    "vectors of two threads": (scan(STEPS, states=24), PLAN, (40,)),
    "channels last, one buffer": (scan(STEPS, channels=16), PLAN.with_(stages=1), (33,)),
    "channels last, scalar copies": (scan(STEPS), PLAN.with_(vector_loads=False), (45,)),
    "channels last, few of a block": (
        scan(STEPS, states=16, channels=4),
        PLAN.with_(threads_per_lane=16, threads_per_block=64, items_per_thread=2),
        (70,),
    ),
    "lanes of two batches": (scan(channels=5), PLAN, (40,)),
    "a state each": (scan(), PLAN.with_(threads_per_lane=8, items_per_thread=2), (40,)),
}


@pytest.mark.parametrize("name", RESULTS)
def test_exact(name):
    run_exactly(*RESULTS[name])


@pytest.mark.parametrize(("stages", "lengths"), [(1, (0, 33)), (2, (0, 1, 33, 130))])
def test_symbolic_lengths(stages, lengths):
    """No step, one, a tile that is not full, more tiles than buffers; lanes symbolic too."""
    run_exactly(scan(), PLAN.with_(stages=stages), lengths, symbolic=True)


def shared(channels, block=32):
    """How many tables the lanes of a block share, of B and C."""
    func = library.selective_scan(2, channels, 64, 8)
    return len(walk_layout(PLAN.with_(threads_per_block=block), extract(func)).tables)


def test_what_the_lanes_of_a_block_share():
    """B and C, where all lanes of a block are in one batch; eight lanes a block, or four."""
    assert shared(16) == 2
    assert shared(20) == 0
    assert shared(20, block=16) == 2
    assert shared(None) == 0


def rows(channels, plan=PLAN, **options):
    """Streams that a block stages by steps: width of a copy and padding of each."""
    sizes = (None, channels, None)
    func = library.selective_scan(*sizes, 8, layout="bld", form="step", **options)
    found = walk_layout(plan, extract(func)).streams
    assert all(isinstance(part, StepRows) for part in found)
    return {part.buffer.name: (part.copies.lanes, part.padding) for part in found}


def test_what_a_block_stages_by_steps():
    """Channels are the last axis, batch and length are not known: eight lanes a block."""
    # Four threads of a lane, four steps each: 8 more than 32 places apart, as lanes of a warp are.
    assert rows(16) == dict.fromkeys(("delta", "u", "z"), (4, 8))
    assert rows(20) == rows(None) == {}, "a block would have lanes of two rows"
    assert rows(16, PLAN.with_(vector_loads=False))["u"] == (1, 8)


def test_rows_of_steps_are_staged_while_there_is_room():
    """Of two buffers for 64 lanes a block, two of three; tables and rows of lanes come first."""
    func = library.selective_scan(2, 128, None, 16, layout="bld", form="step")
    found, plan = extract(func), PLAN.with_(threads_per_block=256)
    kept = walk_layout(plan, found)
    assert [part.buffer.name for part in kept.streams] == ["delta", "u"]
    assert len(kept.tables) == 2 and plan.smem_bytes(found) <= 48 << 10
    assert len(walk_layout(plan.with_(stages=1), found).streams) == 3
    plan.check(CUDA_TARGET, found)
    heads = extract(rwkv6(32, 1024, 64))
    plan = PLAN.with_(threads_per_block=128, threads_per_lane=8)
    assert not walk_layout(plan, heads).streams and len(walk_layout(plan, heads).tables) == 3


@pytest.mark.parametrize("shared", [2, 4, 8, 16])
@pytest.mark.parametrize("items", [1, 2, 4, 8])
@pytest.mark.parametrize("threads", [32, 64, 128])
def test_paddings_of_rows_of_steps(shared, items, threads):
    """No two elements in one place, every copy whole and aligned, no two threads in a bank."""
    func = library.selective_scan(2, 64, 256, 16, layout="bld", form="step")
    plan = PLAN.with_(threads_per_block=threads, threads_per_lane=shared, items_per_thread=items)
    part, steps = walk_layout(plan, extract(func)).streams[0], walk_steps(plan)
    lanes = threads // shared
    indices = [[part.index(t, y) for y in range(lanes)] for t in range(steps)]
    assert len({p for row in indices for p in row}) == steps * lanes
    assert max(p for row in indices for p in row) < part.cells
    assert all(row[0] % part.copies.lanes == 0 for row in indices)
    assert all(row == list(range(row[0], row[0] + lanes)) for row in indices)
    for item in range(items):
        read = {part.index(q * items + item, y) for q in range(shared) for y in range(32 // shared)}
        assert len({place % 32 for place in read}) == 32


@pytest.mark.parametrize("stages", [1, 2])
def test_channels_last_of_symbolic_length(stages):
    """Batch and length by one kernel, forwards and, by the times of its indices, backwards."""
    case = scan(STEPS, channels=16)
    func = parallelize(reading_steps(), CUDA_TARGET, PLAN.with_(stages=stages))
    executable = compile_cuda(func)
    assert ("delta_tile" if stages == 1 else "float32_tile") in emitted_source(executable)
    for batch, length in ((2, 0), (1, 1), (2, 33), (1, 130)):
        small = scan(STEPS, channels=16, batch=batch)
        _, inputs, want = exact_inputs(small, length)
        outputs = [np.full(array.shape, 77, case.dtype) for array in want.values()]
        got = run_cuda(func, [*inputs.values(), *outputs], executable=executable)
        check_exact(small, length, dict(zip(want, got[len(inputs) :], strict=True)))


def reading_steps():
    """The selective scan with channels last: 16 channels, 8 states, all else symbolic."""
    options, _, _ = exact_inputs(scan(STEPS, channels=16), 1)
    return library.selective_scan(None, 16, None, 8, **options)


@T.prim_func(s_tir=True)
def backwards_in_halves(
    A: T.Buffer((16, 8), "float32"),
    X: T.Buffer((2, 90, 16), "float16"),
    B: T.Buffer((2, 90, 8), "float16"),
    Y: T.Buffer((2, 90, 16), "float16"),
):
    """From the last step to the first, channels last."""
    for b, d in T.grid(2, 16):
        h = T.sblock_alloc_buffer((8,), "float32")
        y = T.sblock_alloc_buffer((1,), "float32")
        for n in range(8):
            h[n] = T.float32(0)
        for t in range(90):
            y[0] = T.float32(0)
            for n in range(8):
                h[n] = h[n] * A[d, n] + T.Cast("float32", X[b, 89 - t, d]) * T.Cast(
                    "float32", B[b, 89 - t, n]
                )
                y[0] = y[0] + h[n]
            Y[b, 89 - t, d] = T.Cast("float16", y[0])


@pytest.mark.parametrize("items", [2, 4])
def test_steps_backwards_in_halves(items):
    rng = np.random.default_rng(6)
    a = rng.choice([-1.0, 1.0, 0.0], (16, 8)).astype("float32")
    x, b = (rng.integers(-1, 2, (2, 90, n)).astype("float16") for n in (16, 8))
    h, want = np.zeros((2, 16, 8)), np.zeros((2, 90, 16))
    for t in reversed(range(90)):
        h = h * a + x[:, t, :, None].astype(float) * b[:, t, None, :]
        want[:, t] = h.sum(-1)
    assert np.abs(want).max() < 2048, "beyond which halves are no longer exact"
    plan = PLAN.with_(items_per_thread=items, threads_per_block=64)
    scheduled = parallelize(backwards_in_halves, CUDA_TARGET, plan)
    assert "float16_tile" in emit_cuda(scheduled)
    got = run_cuda(scheduled, [a, x, b, np.full((2, 90, 16), 77, "float16")])
    np.testing.assert_array_equal(got[-1], want)


@pytest.mark.parametrize("change", [{}, {"threads_per_lane": 8, "stages": 1}], ids=str)
@pytest.mark.parametrize("options", [{}, {"layout": "bld", "form": "step"}], ids=str)
def test_no_two_threads_meet_in_a_bank(change, options):
    plan = PLAN.with_(threads_per_block=64, **change)
    func = library.selective_scan(2, 64, 1024, 16, **options)
    check_banks(emit_cuda(parallelize(func, CUDA_TARGET, plan)), 2, False)


@pytest.mark.parametrize("shared", [2, 4, 8])
@pytest.mark.parametrize("size", [32, 64])
def test_nor_where_the_states_of_a_thread_are_several_vectors(shared, size):
    plan = PLAN.with_(threads_per_block=64, threads_per_lane=shared)
    func = rwkv6(2, 64, size)
    check_banks(emit_cuda(parallelize(func, CUDA_TARGET, plan)), 2, False)


@pytest.mark.parametrize("change", [{}, {"threads_per_lane": 8}, {"threads_per_lane": 16}], ids=str)
@pytest.mark.parametrize("options", [{}, {"layout": "bld", "form": "step"}], ids=str)
def test_nor_where_halves_lie_in_float32(change, options):
    plan = PLAN.with_(threads_per_block=64, **change)
    func = library.selective_scan(2, 64, 1024, 16, "bfloat16", **options)
    check_banks(emit_cuda(parallelize(func, CUDA_TARGET, plan)), 2, False)


#: Threads of a block and of a lane -> vectors of what owners send and of sums that a thread leaves,
#: and that it takes; shuffles. Of a group of steps, and of two values and a sum.
EXCHANGES = {
    (64, 2): ((2, 2), (2 * 2, 2), 0),
    (64, 4): ((2, 4), (4 * 2, 4), 0),
    # Sums of more threads are shuffled: of two runs of four owners, and between the two.
    (64, 8): ((2, 0), (4 * 2, 0), 4 * (3 + 1)),
    # The tiles leave no room.
    (128, 4): ((0, 0), (0, 0), 4 * (4 * 2 + 3)),
}


@pytest.mark.skipif(not nvcc.nvcc_available(), reason="nvcc is missing: no instructions to count")
@pytest.mark.parametrize(("threads", "shared"), EXCHANGES)
def test_threads_of_a_lane_exchange_in_shared_memory_where_there_is_room(threads, shared):
    left, taken, shuffles = EXCHANGES[threads, shared]
    # Four states of a thread, which leaves one way through a step.
    func = library.selective_scan(8, 2048, 2048, 4 * shared)
    plan = PLAN.with_(threads_per_block=threads, threads_per_lane=shared)
    ptx = nvcc.compile_ptx(emit_cuda(parallelize(func, CUDA_TARGET, plan)))
    groups = groups_written_out(plan, 4)
    assert len(re.findall(r"st\.shared\.v4", ptx)) == groups * sum(left)
    # delta, u and z; B and C of four owners' steps; what is exchanged.
    tables = min(4, shared) * 2 * 4
    assert len(re.findall(r"ld\.shared\.v4", ptx)) == groups * (3 + tables + sum(taken))
    assert len(re.findall(r"shfl\.sync", ptx)) == groups * shuffles
    layout = exchange_layout(plan, *_split(func))
    assert (bool(layout.sent), bool(layout.sums)) == tuple(map(bool, left))
    check_banks(emit_cuda(parallelize(func, CUDA_TARGET, plan)), 2, False)


def _split(func):
    recurrence = with_common_factors(extract(func))
    return recurrence, split_of(recurrence)


@T.prim_func(s_tir=True)
def squares_of_halves(
    A: T.Buffer((16, 8), "float32"),
    B: T.Buffer((2, 96, 8), "float16"),
    Y: T.Buffer((2, 96, 16), "float32"),
):
    for b, d in T.grid(2, 16):
        h = T.sblock_alloc_buffer((8,), "float32")
        y = T.sblock_alloc_buffer((1,), "float32")
        for n in range(8):
            h[n] = T.float32(0)
        for t in range(96):
            y[0] = T.float32(0)
            for n in range(8):
                h[n] = h[n] * A[d, n] + T.Cast("float32", B[b, t, n] * B[b, t, n])
                y[0] = y[0] + h[n]
            Y[b, t, d] = y[0]


def test_halves_that_a_step_uses_as_such_stay():
    """Where a product is one of halves, no number of it may be wider."""
    squares, others = (
        walk_layout(PLAN, extract(func)) for func in (squares_of_halves, backwards_in_halves)
    )
    assert squares.tables and squares.wide_bytes == []
    assert others.tables and len(others.wide_bytes) == 1


@pytest.mark.parametrize(("channels", "rows"), [(64, 1), (60, 0)])
def test_rows_of_a_tile_have_one_index_unless_they_are_cut_off(channels, rows):
    """Of eight lanes of a block: those beyond the last repeat it, in two rounds of the threads."""
    func = library.selective_scan(1, channels, 128, 16)
    source = emit_cuda(parallelize(func, CUDA_TARGET, PLAN))
    assert len(re.findall(r"delta_ptr\[scan_index\(", source)) == rows * 2 * 2
    assert len(re.findall(r"= scan_held\(", source)) <= 10


def test_the_compiler_sees_copies_of_128_bits_and_one_barrier():
    if not nvcc.nvcc_available():
        pytest.skip("nvcc is missing: the instructions of the kernel are not counted")
    func = library.selective_scan(8, 2048, 2048, 16)
    plan = PLAN.with_(threads_per_block=128)
    scheduled = parallelize(func, CUDA_TARGET, plan)
    ptx = nvcc.compile_ptx(emit_cuda(scheduled))
    # Of 32 steps: delta, u and z of 32 lanes, two vectors each per thread; B and C of 16 states,
    # one. Once before the tiles, and once for the tile after this one.
    copies = re.findall(r"cp\.async\.(c[ag])\.shared\.global .*, (\d+);", ptx)
    assert copies == [("cg", "16")] * 2 * (3 * 2 + 2)
    # Of four steps: three vectors of a thread's own, and of four owners four states of B and C.
    groups = groups_written_out(plan, 4)
    assert len(re.findall(r"ld\.shared\.v4", ptx)) == groups * (3 + 4 * 2 * 4)
    assert not re.findall(r"ld\.shared\.[^v]", ptx)
    assert len(re.findall(r"ex2\.approx", ptx)) == groups * 4 * (4 * 4 + 2)
    assert len(re.findall(r"bar\.sync", ptx)) == 1
    # The initial state and A: none; all that is read from global memory at a step is copied.
    assert not re.findall(r"ld\.global\.nc\.v4", ptx)
    (taken,) = check_nvcc(scheduled).values()
    assert taken.stack == 0
    # With 128 registers four blocks of 128 threads fit, as with their shared memory.
    assert taken.registers <= 128


@pytest.mark.skipif(not nvcc.nvcc_available(), reason="nvcc is missing: no spills to read")
@pytest.mark.parametrize(
    ("shared", "items", "threads", "spills"),
    [(2, 8, 64, False), (4, 4, 128, False), (16, 4, 64, True)],
)
def test_one_buffer_and_symbolic_sizes_do_not_spill(shared, items, threads, spills):
    """Left alone, ptxas may give up registers for another block; it is told that one is enough."""
    known = dict(STATES)
    func = library.selective_scan(None, None, None, 16, **known)
    plan = PLAN.with_(
        threads_per_block=threads, items_per_thread=items, threads_per_lane=shared, stages=1
    )
    source = emit_cuda(parallelize(func, CUDA_TARGET, plan))
    assert f"__launch_bounds__({threads}, 1)" in source
    taken = [r for a in ("sm_80", "sm_90") for r in nvcc.compile_resources(source, a).values()]
    assert all(r.spill_stores == r.spill_loads == r.stack == 0 for r in taken)
    as_before = source.replace(f"({threads}, 1)", f"({threads})")
    assert any(r.spill_stores for r in nvcc.compile_resources(as_before).values()) == spills


@T.prim_func(s_tir=True)
def attention_of_halves(
    W: T.Buffer((8,), "float32"),
    K: T.Buffer((2, 8, 96), "float16"),
    Q: T.Buffer((2, 8, 96), "float16"),
    V: T.Buffer((2, 8, 96), "float16"),
    Y: T.Buffer((2, 8, 96), "float16"),
):
    """Eight states per lane in float32, everything that is read or written in halves."""
    for b, d in T.grid(2, 8):
        h = T.sblock_alloc_buffer((8,), "float32")
        y = T.sblock_alloc_buffer((1,), "float32")
        for n in range(8):
            h[n] = T.float32(0)
        for t in range(96):
            y[0] = T.float32(0)
            for n in range(8):
                h[n] = h[n] * W[n] + T.Cast("float32", K[b, n, t]) * T.Cast("float32", V[b, d, t])
                y[0] = y[0] + h[n] * T.Cast("float32", Q[b, n, t])
            Y[b, d, t] = T.Cast("float16", y[0])


def test_halves_move_eight_at_once_and_are_carried_in_float32():
    rng = np.random.default_rng(5)
    w = rng.choice([-1.0, 1.0], 8).astype("float32")
    k, q, v = (rng.integers(-1, 2, (2, 8, 96)).astype("float16") for _ in range(3))
    h, want = np.zeros((2, 8, 8)), np.zeros((2, 8, 96))
    for t in range(96):
        h = h * w + k[:, None, :, t].astype(float) * v[:, :, None, t]
        want[:, :, t] = (h * q[:, None, :, t]).sum(-1)
    assert np.abs(want).max() < 2048, "beyond which halves are no longer exact"
    plan = PLAN.with_(items_per_thread=8)
    scheduled = parallelize(attention_of_halves, CUDA_TARGET, plan)
    got = run_cuda(scheduled, [w, k, q, v, np.full((2, 8, 96), 77, "float16")])
    np.testing.assert_array_equal(got[-1], want)
    if not nvcc.nvcc_available():
        pytest.skip("nvcc is missing: the instructions of the kernel are not counted")
    ptx = nvcc.compile_ptx(emit_cuda(scheduled))
    # V of eight lanes, K and Q of eight states: a row of 32 steps is four vectors, a vector of
    # each for every thread; once before the tiles, once for the tile after this one.
    assert re.findall(r"cp\.async\.cg\.shared\.global .*, (\d+);", ptx) == ["16"] * 2 * 3
    # Eight halves of V; of four owners K and Q, of two states, four numbers at once in float32, and
    # eight of V; and of four threads the sums of eight steps.
    assert len(re.findall(r"ld\.shared\.v4", ptx)) == 1 + 4 * 2 * 2 * 2 + 4 * 2 + 4 * 2
    # Each half of K and Q is converted once for the block, and no other of theirs.
    converted = 8 * 32 // plan.threads_per_block
    assert len(re.findall(r"ld\.shared\.[^v]", ptx)) == 2 * converted
    source = emit_cuda(scheduled)
    assert source.count("((float)float16_tile_ptr") == 2 * converted
    assert len(re.findall(r"st\.global\.v4", ptx)) == 1
    assert re.findall(r"fma\.rn\.f32|add\.f32", ptx)
    assert not re.findall(r"(?:fma|add|mul)[.\w]*\.f16", ptx)


WRONG = {
    "threads_per_lane=4, block_load=transposed": (library.ema(64, 64), "states are independent"),
    "threads_per_lane=1, block_load=transposed": (
        library.ema(64, 64),
        "states are independent but for sums over them, got .* use block_load=direct",
    ),
    "threads_per_lane=2, block_load=transposed, stages=3": (
        library.selective_scan(1, 128, 64, 16),
        "at most 49152 bytes of shared memory, got .* use fewer buffers of a tile",
    ),
}


@pytest.mark.parametrize("text", WRONG)
def test_plans_that_do_not_fit(text):
    func, reason = WRONG[text]
    plan = ScanPlan.parse(f"cuda/lanes(threads_per_block=256, items_per_thread=4, {text})")
    with pytest.raises(PlanError, match=reason):
        plan.check(CUDA_TARGET, extract(func))
