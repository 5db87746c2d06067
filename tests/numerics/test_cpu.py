"""Every recurrence of the library under every CPU plan, against the float64 twin."""

import itertools
import zlib

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm.script import from_source
from tvm.script import tirx as T

from tests.programs.half_recurrences import FUNCTIONS, HALVES, half_expected, half_inputs
from tests.support.compiled import compile_cached
from tests.support.library_runs import run_serial
from tests.support.recurrence_cases import (
    LENGTHS,
    SEED,
    Case,
    cases,
    check_exact,
    check_random,
    combinations,
    exact_inputs,
    random_inputs,
)
from tests.support.tiers import covering, longer, one_of, paired
from tvm_scan import ScanPlan, default_plan, extract, library, parallelize
from tvm_scan.arguments import host_target
from tvm_scan.library import LIBRARY

TARGET = host_target()
PLANS = {
    "sequential": ScanPlan.of("cpu", "sequential"),
    "lanes": ScanPlan.of("cpu", "lanes"),
    "interleaved": ScanPlan.of("cpu", "lanes", lane_block=4),
    "vectors": ScanPlan.of("cpu", "lanes", lane_block=8, vectorize=True),
    "strips": ScanPlan.of("cpu", "lanes", lane_block=64, vectorize=True),
    "chunks": ScanPlan.of("cpu", "three_phase", chunks=3),
    "streams": ScanPlan.of("cpu", "three_phase", chunks=8, lane_block=4),
    "many": ScanPlan.of("cpu", "three_phase", chunks=128, lane_block=2),
    "default": None,
}
CASES = cases()


def compiled(func, plan):
    return compile_cached(parallelize(func, TARGET, plan), target=TARGET, plainly=True)


def both_kinds(case, plan, lengths, function_of, number):
    """Run a case on exact or on random inputs of every length; in the full tier on both.

    They may be two programs: exact numbers ask for other constants.
    """
    kinds = one_of((on_exact, on_random), number)
    for kind, length in itertools.product(kinds, lengths):
        kind(case, plan, length, function_of)


def on_exact(case, _, length, function_of):
    options, inputs, want = exact_inputs(case, length)
    func, executable = function_of(length, options)
    check_exact(case, length, run_serial(executable, func, inputs, want))


def on_random(case, plan, length, function_of):
    inputs, want = random_inputs(case, length)
    func, executable = function_of(length, dict(case.options))
    check_random(case, length, run_serial(executable, func, inputs, want), plan)


def decided(pair):
    """What a case and a plan decide: plans of a kind look at options alike."""
    case, plan = pair
    chosen = PLANS[plan]
    kind = plan if chosen is None else (chosen.algorithm, chosen.lane_block > 1, chosen.vectorize)
    return {"name": (case.name, plan), "dtype": case.dtype, "kind": kind, **dict(case.options)}


def case_by_plan(some):
    """Cases and names of plans, each recurrence with each plan, each option with each kind."""
    # An option beside an option is test_library.py's.
    pairs = covering(itertools.product(some, PLANS), decided, hub="kind")
    return pytest.mark.parametrize(("case", "plan"), pairs, ids=lambda value: str(value))


@case_by_plan(CASES)
def test_symbolic_extents(case, plan):
    """One compiled function serves every length."""

    number = list(PLANS).index(plan) + CASES.index(case)
    made, plan = {}, PLANS[plan]

    def function_of(_, options):
        key = str(options)
        if key not in made:
            func = case.function(None, options)
            made[key] = func, compiled(func, plan)
        return made[key]

    both_kinds(case, plan, LENGTHS, function_of, number)


CONSTANT = [
    Case("cumsum"),
    Case("cummax"),
    Case("ema", options=(("alpha", "lane"),)),
    Case("linear_recurrence"),
    Case("linear_recurrence", options=(("initial_state", True), ("final_state", True))),
    Case("selective_scan", options=(("initial_state", True), ("final_state", True))),
]


@case_by_plan(CONSTANT)
def test_constant_extents(case, plan):
    number, made, plan = list(PLANS).index(plan), {}, PLANS[plan]

    def function_of(length, options):
        key = length, str(options)
        if key not in made:
            func = case.function(length, options)
            made[key] = func, compiled(func, plan)
        return made[key]

    # The selective scan compiles ten times as long as the others.
    few = (0, 1, 33, 1025)
    once = one_of(few, number)
    short, long = one_of(few[:2], number), one_of(few[2:], number)
    lengths = once if case.name == "selective_scan" else longer([*short, *long], LENGTHS)
    both_kinds(case, plan, lengths, function_of, number + CONSTANT.index(case))


TREES = {name: plan for name, plan in PLANS.items() if name not in ("sequential", "default")}


def rows_of(plan):
    """None, one, and around twice a block of lanes."""
    block = 2 * plan.lane_block
    around = {0, 1, block - 1, block, block + 1}
    return sorted(around | set(longer((), (2, 7, 8, 9, 63, 64, 65, 127))))


@pytest.mark.parametrize(("plan", "rows"), [(p, n) for p in TREES for n in rows_of(TREES[p])])
def test_any_number_of_lanes(plan, rows):
    """None, fewer than a block of lanes, a multiple, one more and one less; constant extents."""
    plan = TREES[plan]
    ends = (("layout", "ld"), ("initial_state", True), ("final_state", True))
    for options in one_of(((), ends), rows):
        case = Case("linear_recurrence", options=options, sizes=(("lanes", rows),))
        func = case.function(33)
        options, inputs, want = exact_inputs(case, 33)
        check_exact(case, 33, run_serial(compiled(func, plan), func, inputs, want))


@pytest.mark.parametrize(("name", "plan"), paired(sorted(LIBRARY), list(PLANS)))
def test_no_lanes(name, plan):
    """Symbolic lanes of which there are none."""
    sizes = (("rows", 0), ("lanes", 0), ("channels", 0))
    options = (("has_z", False), ("softplus", False)) if name == "selective_scan" else ()
    case = Case(name, options=options, sizes=sizes)
    func = case.function(None)
    executable = compiled(func, PLANS[plan])
    for length in (0, 5):
        inputs, want = random_inputs(case, length)
        got = run_serial(executable, func, inputs, want)
        assert all(array.size == 0 for array in got.values())


@pytest.mark.parametrize(
    ("name", "plan"), paired(["linear_recurrence", "selective_scan"], list(TREES))
)
def test_a_plan_gives_the_same_bits_on_every_run(name, plan):
    case, plan = Case(name), TREES[plan]
    func = case.function(1025)
    inputs, want = random_inputs(case, 1025)
    runs = []
    for _ in range(2):  # compiled anew
        executable = compiled(func, plan)
        runs += [run_serial(executable, func, inputs, want) for _ in range(3)]
    for key in want:
        assert len({zlib.crc32(run[key].tobytes()) for run in runs}) == 1, key


@pytest.mark.parametrize(
    ("plan", "dtype", "name"),
    covering(
        itertools.product(PLANS, ["int32", "int64"], ["cumsum", "cumprod", "linear_recurrence"]),
        lambda c: dict(zip(("plan", "dtype", "name"), c, strict=True)),
    ),
)
def test_integers_wrap_around(plan, dtype, name):
    """Sums, products and affine steps modulo a power of two, far beyond the dtype's range."""
    rng = np.random.default_rng(SEED)
    limits = np.iinfo(dtype)
    entry = LIBRARY[name]
    func = entry.factory(None, None, dtype)
    executable = compiled(func, PLANS[plan])
    for length in (33, 1025):
        inputs = {
            key: rng.integers(limits.min, limits.max, (13, length), dtype)
            for key in entry.parameters(func)[0]
        }
        if name == "cumprod":
            inputs["X"] |= 1  # odd factors never become zero
        want = entry.expected(inputs)
        got = run_serial(executable, func, inputs, want)
        for key in want:
            np.testing.assert_array_equal(got[key], want[key], f"{name}, length {length}")


def test_strided_and_misaligned_arrays_are_copied_by_the_runtime():
    """What NumPy slices, reverses and offsets by a byte arrives whole; the result is exact."""
    rng = np.random.default_rng(SEED)
    rows, length = 6, 100
    func = library.cumsum(rows, length)
    executable = compiled(func, PLANS["streams"])
    whole = rng.integers(-9, 10, (2 * length, 2 * rows)).astype("float32")
    raw = np.zeros(rows * length * 4 + 1, np.uint8)
    shifted = np.frombuffer(raw.data, "float32", rows * length, offset=1).reshape(rows, length)
    shifted[:] = whole[:length, :rows].T
    assert not shifted.flags.aligned
    views = {
        "transposed": whole[:length, :rows].T,
        "strided": whole.T[: 2 * rows : 2, : 2 * length : 2],
        "backwards": whole.T[:rows, :length][:, ::-1],
        "shifted": shifted,
    }
    for name, x in views.items():
        y = tvm.runtime.tensor(np.zeros((rows, length), "float32"))
        executable(tvm.runtime.tensor(x), y)
        np.testing.assert_array_equal(y.numpy(), np.cumsum(x, axis=1), name)


HALF_PLANS = {name: plan for name, plan in PLANS.items() if name != "sequential"}


@pytest.mark.parametrize(
    ("name", "plan", "dtype"),
    covering(
        itertools.product(FUNCTIONS, HALF_PLANS, HALVES),
        lambda c: dict(zip(("name", "plan", "dtype"), c, strict=True)),
    ),
)
def test_halves_are_carried_in_float32(name, plan, dtype):
    """The error is that of one rounding to a half at the end, whatever the length."""
    plan = HALF_PLANS[plan]
    rng = np.random.default_rng(SEED)
    for length in longer((4099,), (0, 1, 33, 4099)):
        inputs = half_inputs(name, rng, 5, length, dtype)
        want = half_expected(name, inputs)
        func = FUNCTIONS[name](5, length, dtype)
        got = run_serial(compiled(func, plan), func, inputs, want)
        for key in want:
            # Unit roundoff of the half, times |h|; and 2 (length + combinations) roundings of
            # float32 on sums of |x| < 6, of which the half's store may see the worst.
            half = float(ml_dtypes.finfo(HALVES[dtype]).eps) / 2
            single = 2 * (length + combinations(plan, length)) * 2.0**-24 * 6 * (length + 1)
            error = np.abs(got[key].astype(np.float64) - want[key])
            assert (error <= half * np.abs(want[key]) + single * (name != "max")).all()


@pytest.mark.parametrize("dtype", HALVES)
def test_halves_carried_in_halves_would_be_far_off(dtype):
    """The loop as written rounds its state at every step; the default plan never is that loop."""
    inputs = half_inputs("history", np.random.default_rng(SEED), 5, 4099, dtype)
    want = half_expected("history", inputs)
    func = FUNCTIONS["history"](5, 4099, dtype)
    error = {}
    for name in ("sequential", "default"):
        got = run_serial(compiled(func, PLANS[name]), func, inputs, want)
        error[name] = np.abs(got["H"].astype(np.float64) - want["H"]).max()
    assert error["sequential"] > 4 * error["default"]
    for rows, length in ((1, 1), (1, 64), (5, 100)):
        plan = default_plan(TARGET, extract(FUNCTIONS["history"](rows, length, dtype)))
        assert plan.algorithm != "sequential"


@pytest.mark.parametrize("plan", PLANS)
def test_one_row_backwards_of_any_length(plan):
    """Nothing but time in the index, which falls, and a length that is known when it runs."""
    source = """
@T.prim_func(s_tir=True)
def suffix_sum(x: T.handle, h: T.handle):
    T.func_attr({"global_symbol": "suffix_sum"})
    n = T.int64()
    X = T.match_buffer(x, (n,), "int32")
    H = T.match_buffer(h, (n,), "int32")
    for t in range(n):
        H[n - 1 - t] = T.if_then_else(t > 0, H[n - t], 0) + X[n - 1 - t]
"""
    executable = compiled(from_source(source, {"T": T}), PLANS[plan])
    for length in (0, 1, 7, 1003):
        x = np.arange(length, dtype="int32") % 11 - 5
        out = tvm.runtime.tensor(np.zeros(length, "int32"))
        executable["suffix_sum"](tvm.runtime.tensor(x), out)
        np.testing.assert_array_equal(out.numpy(), x[::-1].cumsum(dtype="int32")[::-1])
