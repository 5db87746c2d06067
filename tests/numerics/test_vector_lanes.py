"""Lanes in vectors: tiles transposed from rows, invariants held, lines stored past the caches."""

import itertools
import mmap
import re

import numpy as np
import pytest
import tvm
from tvm.script import from_source
from tvm.script import tirx as T
from tvm.target import Target

from tests.programs.suite.running import CPU, agree, run_loop, run_scan
from tests.support.compiled import compile_cached
from tests.support.tiers import covering, paired
from tvm_scan import Recurrence, ScanPlan, default_plan, extract, library, parallelize
from tvm_scan.errors import PlanError
from tvm_scan.schedules.choose.default import decide
from tvm_scan.schedules.machine.machine import Machine

TILES = ScanPlan.of("cpu", "lanes", lane_block=16, vectorize=True, transpose=True)
ROWS = ScanPlan.of("cpu", "lanes", lane_block=16, vectorize=True)
#: More lanes than whole blocks, more steps than whole tiles, and rows that no line is aligned to.
LANES, STEPS = 35, 37
PAST = [False, True] if Machine.of(CPU).line_stores else [False]

#: Step of each program over X and A, both indexed [b, t]; h stands for the state before.
STEPS_OF = {
    "sum": "h + X[b, t]",
    "affine": "A[b, t] * h + X[b, t]",
    "maximum": "T.max(h, X[b, t])",
    "clamp": "T.min(T.max(h + X[b, t], {lo}), {hi})",
    "segmented": "T.if_then_else(A[b, t] > {hi}, {zero}, h) + X[b, t]",
    "guarded": "h + T.if_then_else(A[b, t] > {hi}, X[b, t], A[b, t])",
}


def program(step, dtype, *, back=False, lanes=LANES, steps=STEPS):
    names = {"zero": f"T.{dtype}(0)", "lo": f"T.{dtype}(-2)", "hi": f"T.{dtype}(1)"}
    body = STEPS_OF[step].format(**names)
    at = f"{steps - 1} - t" if back else "t"
    before = f"{steps - 1} - t + 1" if back else "t - 1"
    state = f"T.if_then_else(t > 0, H[b, {before}], {names['zero']})"
    body = body.replace("h +", f"{state} +").replace("* h", f"* {state}")
    body = body.replace("(h,", f"({state},").replace(", h)", f", {state})")
    for buffer in "XA":
        body = body.replace(f"{buffer}[b, t]", f"{buffer}[b, {at}]")
    shape = f'T.Buffer(({lanes}, {steps}), "{dtype}")'
    text = f"""
@T.prim_func(s_tir=True)
def scan(A: {shape}, X: {shape}, H: {shape}):
    for b in range({lanes}):
        for t in range({steps}):
            H[b, {at}] = {body}
"""
    return from_source(text, {"T": T})


def arrays_of(func, dtype, seed=0):
    rng = np.random.default_rng(seed)
    shape = [int(extent) for extent in func.params[0].ty.shape]
    made = [rng.integers(-2, 3, shape).astype(dtype) for _ in range(2)]
    return [*made, np.zeros(shape, dtype)]


@pytest.mark.parametrize(
    ("step", "dtype", "back", "past"),
    covering(
        itertools.product(STEPS_OF, ["float32", "int32", "float64"], [False, True], PAST),
        lambda c: dict(zip(("step", "dtype", "back", "past"), c, strict=True)),
    ),
)
def test_tiles_equal_the_loop(step, dtype, back, past):
    """On whole numbers, exactly; blocks, tiles and what is left of both."""
    func = program(step, dtype, back=back)
    arrays = arrays_of(func, dtype)
    if step == "affine":
        arrays[0] = np.sign(arrays[0]).astype(dtype)
    want = run_loop(func, arrays)
    plan = TILES.with_(nontemporal=past)
    for got, expected in zip(run_scan(func, arrays, plan), want, strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("dtype", "plan"),
    [
        ("uint32", TILES),
        ("uint32", ScanPlan.of("cpu", "lanes", time_vector=16)),
        ("uint64", ScanPlan.of("cpu", "lanes", time_vector=16)),
    ],
    ids=str,
)
def test_unsigned_lines_past_the_caches(dtype, plan):
    """Every dtype that tiles or vectors of time take has a line store."""
    func = program("sum", dtype, steps=64)
    arrays = [np.arange(LANES * 64, dtype=dtype).reshape(LANES, 64)] * 2
    arrays.append(np.zeros_like(arrays[0]))
    got = run_scan(func, arrays, plan.with_(nontemporal=PAST[-1]))
    np.testing.assert_array_equal(got[2], np.cumsum(arrays[1], axis=1, dtype=dtype))


@pytest.mark.parametrize("back", [False, True], ids=["forwards", "backwards"])
def test_asking_ahead_changes_nothing(back):
    func = program("affine", "float32", back=back, lanes=32, steps=1000)
    arrays = arrays_of(func, "float32")
    arrays[0] = np.sign(arrays[0]).astype("float32")
    want = run_loop(func, arrays)
    for tiles in (1, 16):
        plan = TILES.with_(prefetch=tiles)
        np.testing.assert_array_equal(run_scan(func, arrays, plan)[2], want[2])
    with pytest.raises(PlanError, match="1 to 16 tiles"):
        parallelize(func, CPU, TILES.with_(prefetch=17))


@pytest.mark.parametrize("back", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize(
    "plan",
    [
        ScanPlan.of("cpu", "lanes", time_vector=16),
        ScanPlan.of("cpu", "lanes", time_vector=64, time_runs=True),
        ScanPlan.of("cpu", "three_phase", chunks=3, time_vector=16, cache_steps=1024),
    ],
    ids=str,
)
def test_vectors_of_time_that_ask_ahead_equal_the_loop(plan, back):
    """Within the row and beyond it; a line of both inputs for 16 steps of 4 bytes."""
    func = program("affine", "float32", back=back, lanes=2, steps=5000)
    arrays = arrays_of(func, "float32")
    arrays[0] = np.sign(arrays[0]).astype("float32")
    want = run_loop(func, arrays)
    np.testing.assert_array_equal(run_scan(func, arrays, plan.with_(prefetch=2))[2], want[2])
    text = parallelize(func, CPU, plan.with_(prefetch=2)).script()
    # But for the slot of a line, which a block of vectors begins and ends with.
    asked = re.compile(r"T.prefetch\(T.address_of\((?!line\[)")
    assert len(asked.findall(text)) >= 2 * plan.time_vector // 16 > 0
    assert not asked.search(parallelize(func, CPU, plan).script())
    with pytest.raises(PlanError, match="16 tiles or pages ahead"):
        parallelize(func, CPU, plan.with_(prefetch=17))


@pytest.mark.parametrize("back", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize("lanes", [64, 72])
def test_strips_that_ask_ahead_equal_the_loop(lanes, back):
    """A line of every 16 lanes of both inputs, some steps ahead, and none beyond the last step."""
    options = {"layout": "ld", "reverse": back, "gate": "time"}
    func = library.linear_recurrence(lanes, 40, **options)
    arrays = arrays_of(func, "float32")
    want = run_loop(func, arrays)
    plan = ScanPlan.of("cpu", "lanes", lane_block=32, vectorize=True)
    asks = plan.with_(prefetch=16)
    for got, one in zip(run_scan(func, arrays, asks), want, strict=True):
        np.testing.assert_allclose(got, one, rtol=1e-5, atol=1e-5)
    asked = re.compile(r"prefetch\(T.address_of\([AX].*T.min\(.*\(16\), T.int64\(39\)\).*, 0, 2, 1")
    text = parallelize(func, CPU, asks).script()
    assert len(asked.findall(text)) >= 2 * 2
    assert not re.search(r"address_of\((?!line)", parallelize(func, CPU, plan).script())
    with pytest.raises(PlanError, match="neighbours in memory"):
        parallelize(library.cumsum(lanes, 40), CPU, asks)


def test_tiles_in_the_cache_ask_for_the_next_tile():
    """A core asks for what it will reduce next while it replays; everything in the second cache.

    It reduces that beside it, some pages behind what it asks for.
    """
    func = program("affine", "float32", lanes=2, steps=5000)
    plan = ScanPlan.of("cpu", "three_phase", chunks=3, time_vector=16, cache_steps=1024, prefetch=2)
    reduced, replayed = parallelize(func, CPU, plan).script().split("scan_replay")
    asked = re.compile(r"prefetch\(T.address_of\([AX]\[.* \+ (\d+), 4999\), 0\)\]\), 0, (\d), 1")
    # Seven pieces of 160 steps are a tile.
    pages = {2048 + line for line in (0, 16, 32, 48)}
    assert {int(ahead) for ahead, _ in asked.findall(replayed)} == {1120 + 2048, 2048}
    beside = re.search(
        r"for b in range\(5\):\n +if v_tile \+ 1 < 4 and not v_chunk == 0:", replayed
    )
    assert beside, replayed
    assert {int(ahead) for ahead, _ in asked.findall(reduced)} == pages
    assert {cache for _, cache in asked.findall(reduced + replayed)} == {"2"}


@pytest.mark.parametrize("past", PAST)
@pytest.mark.parametrize("steps", [160, 161])
def test_results_are_asked_for_where_they_are_not_stored_past(steps, past):
    """Of rows that are no whole lines nothing is stored past; the last cell is in the next line."""
    func = program("sum", "float32", lanes=32, steps=steps)
    text = parallelize(func, CPU, TILES.with_(prefetch=2, nontemporal=past)).script()
    asked = re.findall(r"T.prefetch\(T.address_of\((\w)\[.*?(\d+)\), 0\)\]\), (\d)", text)
    assert {buffer for buffer, _, _ in asked} == ({"X"} if past and steps == 160 else {"X", "H"})
    assert {written for buffer, _, written in asked if buffer == "H"} <= {"1"}


def test_more_than_two_to_the_31_steps():
    """Steps beyond 2^31 in an input that is hardly there: anonymous pages that read as zero."""
    length = (1 << 31) + 150
    text = f"""
@T.prim_func(s_tir=True)
def peak(X: T.Buffer((T.int64({length}),), "int8"), S: T.Buffer((1,), "int32")):
    for t in range(T.int64({length})):
        S[0] = T.max(S[0] - 1, T.Cast("int32", X[t]))
"""
    func = from_source(text, {"T": T})
    pages = np.frombuffer(mmap.mmap(-1, length), "int8")
    pages[(1 << 31) + 100] = 100  # forgotten one by one in the 49 steps behind it
    pages[100] = 120  # where a 32-bit index would be again
    for plan in (
        ScanPlan.of("cpu", "lanes"),
        ScanPlan.of("cpu", "three_phase", chunks=8, lane_block=4),
    ):
        run = compile_cached(parallelize(func, CPU, plan), target=CPU)["peak"]
        state = tvm.runtime.tensor(np.zeros(1, "int32"))
        run(tvm.runtime.from_dlpack(pages), state)
        assert state.numpy().tolist() == [100 - 49]


@pytest.mark.parametrize(("lanes", "steps"), [(16, 16), (16, 1), (16, 15), (32, 64), (48, 17)])
def test_tiles_of_other_shapes(lanes, steps):
    func = program("affine", "float32", lanes=lanes, steps=steps)
    arrays = arrays_of(func, "float32")
    want = run_loop(func, arrays)
    for block in (16, 32):
        if block <= lanes:
            got = run_scan(func, arrays, TILES.with_(lane_block=block))
            assert agree(got[2], want[2], rounds=True)


def test_the_tiles_move_whole_vectors():
    """No lane of a square is read or written alone, and the step runs on vectors."""
    func = program("affine", "float32", lanes=32, steps=64)
    text = parallelize(func, CPU, TILES).script()
    assert text.count("T.Shuffle") >= 2 * 64
    assert "vectorized" in text


@pytest.mark.parametrize(
    ("layout", "past", "width"),
    covering(
        itertools.product(["bdl", "bld"], PAST, [16, 32]),
        lambda c: dict(zip(("layout", "past", "width"), c, strict=True)),
    ),
)
def test_selective_scan(layout, past, width):
    """What time does not change is gathered once: A, which lies apart for neighbouring channels."""
    func = library.selective_scan(1, LANES, STEPS, 5, layout=layout)
    entry = library.LIBRARY["selective_scan"]
    inputs = entry.example_inputs(np.random.default_rng(3), 1, LANES, STEPS, 5)
    arrays = [np.ascontiguousarray(v) for v in inputs.values()]
    if layout == "bld":
        arrays = [v.swapaxes(1, 2).copy() if v.ndim == 3 else v for v in arrays]
    arrays.append(np.zeros_like(arrays[0]))
    plan = ROWS.with_(lane_block=width, nontemporal=past, transpose=layout == "bdl")
    if Machine.of(CPU).ldexp:
        plan = plan.with_(ldexp=True)
    text = parallelize(func, CPU, plan).script()
    assert "held0" in text
    got, want = run_scan(func, arrays, plan)[-1], run_loop(func, arrays)[-1]
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("layout", ["bdl", "bld"])
def test_selective_scan_of_halves(layout, dtype):
    """Halves are widened a row at a time; the step is the loop's, and is rounded once."""
    options = {"dtype": dtype, "layout": layout}
    func = library.selective_scan(1, LANES, STEPS, 5, **options)
    entry = library.LIBRARY["selective_scan"]
    inputs = entry.example_inputs(np.random.default_rng(3), 1, LANES, STEPS, 5, **options)
    exact = next(
        iter(
            entry.expected({n: v.astype("float64") for n, v in inputs.items()}, **options).values()
        )
    )
    arrays = [*inputs.values(), np.zeros_like(inputs["u"])]
    past = PAST[-1] and dtype == "float16"  # no line store takes the other
    plan = ROWS.with_(transpose=layout == "bdl", nontemporal=past)
    text = parallelize(func, CPU, plan).script()
    assert ("T.Shuffle" in text) == plan.transpose
    assert "arrays_float32" in text
    assert "arrays_bfloat16" not in text and "arrays_float16" not in text
    got = run_scan(func, arrays, plan)[-1]
    assert got.dtype == inputs["u"].dtype
    # One rounding to a half, and float32 before it.
    unit = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    np.testing.assert_allclose(got.astype("float64"), exact, rtol=1.01 * unit, atol=2e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_of_halves_in_tiles(dtype):
    """Whole numbers that halves hold: any rounding on the way would show."""
    for back in (False, True):
        func = program("sum", dtype, back=back)
        rng = np.random.default_rng(5)
        arrays = [rng.integers(-1, 2, (LANES, STEPS)).astype(dtype) for _ in range(2)]
        arrays.append(np.zeros_like(arrays[0]))
        got, want = run_scan(func, arrays, TILES)[2], run_loop(func, arrays)[2]
        np.testing.assert_array_equal(got.astype("float32"), want.astype("float32"))


@pytest.mark.parametrize(("length", "past"), paired([1024, 2048, 5000, 10_007], PAST))
def test_three_phases_by_tiles_of_the_cache(length, past):
    """Tiles of 1024 steps: the carry of one is the head of the next; exact on whole numbers."""
    func = program("affine", "float32", lanes=2, steps=length)
    arrays = arrays_of(func, "float32")
    arrays[0] = np.sign(arrays[0]).astype("float32")
    want = run_loop(func, arrays)
    for chunks in (2, 3):
        plan = ScanPlan.of(
            "cpu", "three_phase", chunks=chunks, time_vector=16, cache_steps=1024, nontemporal=past
        )
        got = run_scan(func, arrays, plan)
        np.testing.assert_array_equal(got[2], want[2])


@pytest.mark.parametrize("mcpu", ["", "x86-64-v3", "x86-64"])
@pytest.mark.parametrize("runs", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("make", [library.cummax, library.cummin])
def test_an_extremum_in_vectors_of_time_knows_nan(make, dtype, runs, mcpu):
    """One vector without a NaN is scanned plainly, one that has one anywhere with care."""
    target = Target({"kind": "llvm", "mcpu": mcpu}) if mcpu else CPU
    plan = ScanPlan.of("cpu", "lanes", time_vector=16, time_runs=runs)
    values = np.random.default_rng(1).normal(size=(40, 48)).astype(dtype)
    for row in range(32):  # at every cell of a vector, behind others and before them
        values[row, 8 + row] = np.nan
    values[32, ::5], values[33, 3:], values[34, 20], values[35, 20] = (
        np.nan,
        np.nan,
        np.inf,
        -np.inf,
    )
    values[36], values[37, 30:32] = -np.inf, (np.inf, np.nan)
    func = make(*values.shape, dtype)
    want, got = np.zeros_like(values), np.zeros_like(values)
    name = str(func.attrs["global_symbol"])
    for out, built in ((want, func), (got, parallelize(func, target, plan))):
        arrays = [tvm.runtime.tensor(a) for a in (values, out)]
        tvm.compile(built, target=target)[name](*arrays)
        out[:] = arrays[1].numpy()
    np.testing.assert_array_equal(got, want)
    assert np.isnan(want[8, 16]) and np.isfinite(want[:32, :8]).all()


@pytest.mark.parametrize(
    ("name", "attributes", "sign"),
    [
        ("x86-64", {"mcpu": "x86-64"}, "xmm"),
        ("AVX2", {"mcpu": "x86-64-v3"}, "ymm"),
        ("AVX-512", {"mcpu": "x86-64-v4"}, "zmm"),
        ("AArch64", {"mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-n1"}, "v0."),
    ],
)
def test_default_plans_compile_to_the_vectors_of_every_machine(name, attributes, sign):
    target = Target({"kind": "llvm", "num-cores": 2, **attributes})
    for func in (
        library.cumsum(1, 1 << 22),
        library.linear_recurrence(64, 1 << 18),
        library.cumsum(4096, 8192, axis=0),
        library.selective_scan(1, 64, 1024, 16),
    ):
        found = extract(func)
        assert isinstance(found, Recurrence)
        plan = default_plan(target, found)
        assert plan.ldexp <= (name == "AVX-512")
        assert plan.nontemporal <= (name in ("AVX2", "AVX-512"))
        built = tvm.compile(parallelize(func, target, plan), target=target)
        text = built.mod.inspect_source("asm")
        assert sign in text
        stores_past = "movnt" in text
        assert stores_past == plan.nontemporal


@pytest.mark.parametrize("machine", ["x86-64", "x86-64-v3", "emeraldrapids", "znver4"])
def test_rows_walked_backwards_are_turned_for_vectors_of_time(machine):
    """At both ends, which is counted; tiles of rows are compared."""
    target = Target({"kind": "llvm", "num-cores": 2, "mcpu": machine})
    forward, backward = (
        extract(library.linear_recurrence(64, 1000, reverse=reverse)) for reverse in (False, True)
    )
    made = decide(target, backward)
    every = [made.chosen, *made.others]
    assert any(candidate.plan.transpose for candidate in every)
    in_vectors = [candidate for candidate in every if candidate.plan.time_vector]
    for candidate in in_vectors:
        ahead, back = (candidate.plan.cost(r, Machine.of(target)) for r in (forward, backward))
        assert back.seconds > ahead.seconds and back.work > 1.01 * ahead.work, candidate
    # Below AVX-512 it takes more shuffles than it saves.
    assert machine in ("emeraldrapids", "znver4") or not made.chosen.plan.time_vector


def test_what_the_machine_cannot_do_is_refused():
    generic = Target({"kind": "llvm", "mcpu": "x86-64"})
    func = program("affine", "float32")
    with pytest.raises(PlanError, match="AVX-512"):
        parallelize(func, generic, ROWS.with_(ldexp=True))
    with pytest.raises(PlanError, match="AVX"):
        parallelize(func, generic, TILES.with_(nontemporal=True))
    with pytest.raises(PlanError, match="multiple of 16"):
        parallelize(func, CPU, TILES.with_(lane_block=8))
    vectors = ScanPlan.of("cpu", "three_phase", chunks=2, time_vector=16)
    with pytest.raises(PlanError, match="1024"):
        parallelize(func, CPU, vectors.with_(cache_steps=100))
    with pytest.raises(PlanError, match="a row apart"):
        parallelize(library.cumsum(64, 64, axis=0), CPU, TILES)
