"""Every recurrence of the library under every CUDA plan, on the simulated device.

Exact inputs: a missing barrier or a wrong carry cannot hide behind rounding. Each function runs
in three orders of threads and blocks and under the race detector (see `run_cuda`).
"""

import itertools
import re

import numpy as np
import pytest
import tvm
from tvm.script import tirx as T

from tests.programs.half_recurrences import FUNCTIONS, HALVES, half_expected, half_inputs
from tests.support.cuda_harness import (
    CUDA_TARGET,
    check_nvcc,
    compile_cuda,
    emit_cuda,
    run_cuda,
)
from tests.support.recurrence_cases import (
    LENGTHS,
    SEED,
    Case,
    check_exact,
    check_random,
    exact_inputs,
    random_inputs,
)
from tests.support.tiers import covering, longer, paired
from tvm_scan import ScanPlan, extract, library, parallelize
from tvm_scan.errors import PlanError
from tvm_scan.library import LIBRARY

PLANS = {
    "sequential": ScanPlan.of("cuda", "sequential", threads_per_block=32),
    "lanes": ScanPlan.of("cuda", "lanes", threads_per_block=64),
    "tiles 32x1": ScanPlan.of("cuda", "serial_tiles", threads_per_block=32, items_per_thread=1),
    "tiles 64x3": ScanPlan.of("cuda", "serial_tiles", threads_per_block=64, items_per_thread=3),
    "tiles 32x4": ScanPlan.of("cuda", "serial_tiles", threads_per_block=32, items_per_thread=4),
    "phases 32x3": ScanPlan.of("cuda", "three_phase", threads_per_block=32, items_per_thread=3),
    "phases 64x4": ScanPlan.of("cuda", "three_phase", threads_per_block=64, items_per_thread=4),
    "default": None,
}
FEW = (("rows", 5), ("lanes", 5), ("channels", 3), ("batch", 2))
TREES = ("tiles 64x3", "phases 32x3")


def filled(want, dtype):
    """Outputs that hold 77, so that an unwritten element shows."""
    return [np.full(array.shape, 77, dtype) for array in want.values()]


def run_lengths(case, plan, lengths, kind, check):
    """One compiled symbolic function, every length."""
    options = exact_inputs(case, 1)[0] if kind == "exact" else dict(case.options)
    scheduled = parallelize(case.function(None, options), CUDA_TARGET, plan)
    executable = compile_cuda(scheduled)
    for length in lengths:
        made = exact_inputs(case, length)[1:] if kind == "exact" else random_inputs(case, length)
        inputs, want = made
        args = [*inputs.values(), *filled(want, case.dtype)]
        got = run_cuda(scheduled, args, executable=executable)
        check(case, length, dict(zip(want, got[len(inputs) :], strict=True)))


BASE = [
    *(Case(name, sizes=FEW) for name in LIBRARY if name not in ("ema", "selective_scan")),
    Case("ema", options=(("alpha", "lane"),), sizes=FEW),
    Case("selective_scan", options=(("initial_state", True), ("final_state", True)), sizes=FEW),
]
SHORT = (0, 1, 2, 31, 32, 33, 200)
"""For the selective scan, whose steps are long."""


def lengths_of(case):
    return SHORT if case.name == "selective_scan" else LENGTHS


def family_and_plan(pair):
    case, plan = pair
    return {"family": case.name.replace("cumsum", "cum")[:3], "plan": plan}


#: Each family with each plan, and each recurrence with some.
PAIRS = dict.fromkeys(
    [*covering(itertools.product(BASE, PLANS), family_and_plan), *paired(BASE, list(PLANS))]
)


@pytest.mark.parametrize(("case", "plan"), PAIRS, ids=str)
def test_every_plan(case, plan):
    run_lengths(case, PLANS[plan], lengths_of(case), "exact", check_exact)


@pytest.mark.parametrize("plan", TREES)
def test_long_selective_scan(plan):
    few = (("channels", 1), ("batch", 1))
    case = Case("selective_scan", options=BASE[-1].options, sizes=few)
    run_lengths(case, PLANS[plan], (1023, 1024, 1025, 4099), "exact", check_exact)


def _options():
    """Each option of each recurrence at least once."""
    flags = {"reverse": True, "exclusive": True}
    for name, dtype, options in (
        ("cumsum", "int32", {**flags, "axis": 0}),
        ("cumsum", "float64", {"exclusive": True}),
        ("cumsum", "int64", {"reverse": True}),
        ("cumprod", "float64", {**flags, "axis": 0}),
        ("cumprod", "int32", {}),
        ("cummax", "int64", flags),
        ("cummax", "float64", {"axis": 0}),
        ("cummin", "int32", {"axis": 0, "exclusive": True}),
        ("ema", "float32", {"initial": "first", "layout": "ld"}),
        ("ema", "float64", {"initial": "buffer"}),
        ("linear_recurrence", "int32", {"layout": "ld", "gate": "lane", "reverse": True}),
        ("linear_recurrence", "float32", {"layout": "bdl", "gate": -1, "exclusive": True}),
        ("linear_recurrence", "float64", {"layout": "bld", "initial_state": True}),
        (
            "linear_recurrence",
            "int64",
            {"layout": "bld", "gate": "lane", "initial_state": True, "final_state": True, **flags},
        ),
        ("linear_recurrence", "float32", {"initial_state": True, "final_state": True}),
        ("selective_scan", "float32", {"layout": "bld", "form": "step", "has_bias": False}),
        ("selective_scan", "float64", {"has_D": False, "form": "step", "final_state": True}),
    ):
        if options.get("layout", "").startswith("b") and name == "linear_recurrence":
            options = {**options, "batch": 2}
        yield Case(name, dtype, tuple(options.items()), FEW)


@pytest.mark.parametrize(("case", "plan"), paired(list(_options()), TREES), ids=str)
def test_options(case, plan):
    lengths = (0, 1, 33, 200) if case.name == "selective_scan" else (0, 1, 2, 96, 97, 192, 1025)
    run_lengths(case, PLANS[plan], lengths, "exact", check_exact)


@pytest.mark.parametrize("plan", [*TREES, "lanes"])
@pytest.mark.parametrize("name", ["linear_recurrence", "selective_scan"])
def test_realistic_inputs(name, plan):
    """Decaying gates, softplus and SiLU, which are not exact, within the bound of rounding."""

    def check(case, length, got):
        check_random(case, length, got, PLANS[plan])

    run_lengths(Case(name, sizes=FEW), PLANS[plan], (1, 97, 300), "random", check)


@pytest.mark.parametrize("name", LIBRARY)
def test_constant_extents(name):
    """The default plan, and a tree, of lengths that are known."""
    case = Case(name, sizes=FEW)
    every = list(itertools.product((0, 1, 33, 500), ("default", "tiles 32x4", "phases 32x3")))
    some = [(0, "phases 32x3"), (1, "tiles 32x4"), (33, "phases 32x3"), (500, "default")]
    for length, plan in longer(some, every):
        options, inputs, want = exact_inputs(case, length)
        func = case.function(length, options)
        args = [*inputs.values(), *filled(want, case.dtype)]
        got = run_cuda(parallelize(func, CUDA_TARGET, PLANS[plan]), args)
        check_exact(case, length, dict(zip(want, got[len(inputs) :], strict=True)))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_halves(name, dtype):
    """Carried in float32: the only error is that of the last rounding, up to float32's."""
    inputs = half_inputs(name, np.random.default_rng(SEED), 3, 300, dtype)
    want = half_expected(name, inputs)
    plans = ("tiles 32x4", "phases 32x3", "lanes")
    first = list(FUNCTIONS).index(name) + list(HALVES).index(dtype)
    for plan in longer((plans[first % 3],), plans):
        func = parallelize(FUNCTIONS[name](3, 300, dtype), CUDA_TARGET, PLANS[plan])
        args = [*inputs.values(), *filled(want, HALVES[dtype])]
        got = dict(zip(want, run_cuda(func, args)[len(inputs) :], strict=True))
        for key in want:
            # 2^-9 is bfloat16's unit roundoff, 2^-11 float16's; then 2 roundings of float32 for
            # each of 300 steps and at most 32 combinations, on sums below 6 * 300.
            half = 2.0**-9 if dtype == "bfloat16" else 2.0**-11
            single = 2 * 332 * 2.0**-24 * 1800 * (name != "max")
            error = np.abs(got[key].astype(np.float64) - want[key])
            assert (error <= half * np.abs(want[key]) + single).all()


@pytest.mark.parametrize("rows", [0, 1, 2, 31, 33, 130])
def test_any_number_of_rows(rows):
    """Fewer lanes than threads, none, more than a block; rows are symbolic and constant."""
    case = Case("linear_recurrence", sizes=(("lanes", rows),))
    options, inputs, want = exact_inputs(case, 70)
    plans = ("lanes", "tiles 32x1", "phases 32x3")
    for plan, length in paired(plans, (None, 70)) + [(plans[rows % 3], 70)]:
        func = parallelize(case.function(length, options), CUDA_TARGET, PLANS[plan])
        args = [*inputs.values(), *filled(want, case.dtype)]
        got = run_cuda(func, args)
        check_exact(case, 70, {"H": got[-1]})


@pytest.mark.parametrize(
    ("plan", "symbolic"),
    longer(
        [("default", False), ("lanes", True), ("tiles 32x1", False)],
        [("default", False), *((p, s) for p in ("lanes", "tiles 32x1") for s in (False, True))],
    ),
)
def test_many_rows(plan, symbolic):
    """70,000 rows of length 3: more blocks than 65,535, all of them along blockIdx.x."""
    rows, length = 70_000, 3
    func = library.cumsum(None, None) if symbolic else library.cumsum(rows, length)
    x = np.random.default_rng(SEED).integers(-3, 4, (rows, length)).astype("float32")
    scheduled = parallelize(func, CUDA_TARGET, PLANS[plan])
    assert "blockIdx.y" not in emit_cuda(scheduled)
    orders = longer((0,), (0, 1, 2))  # other orders of threads are the other tests'
    got = run_cuda(scheduled, [x, np.full_like(x, 77)], seeds=orders)[1]
    np.testing.assert_array_equal(got, np.cumsum(x, axis=1))


@pytest.mark.parametrize("threads", [32, 64, 256])
@pytest.mark.parametrize("name", ["cumsum", "cummax", "linear_recurrence"])
def test_shared_memory_is_what_the_plan_says(name, threads):
    plan = ScanPlan.of("cuda", "serial_tiles", threads_per_block=threads, items_per_thread=2)
    func = LIBRARY[name].factory(4, 1000, "float64")
    (taken,) = check_nvcc(parallelize(func, CUDA_TARGET, plan)).values()
    assert 0 <= plan.smem_bytes(extract(func)) - taken.shared_bytes < 64


# ---- functions with more than the recurrence --------------------------------------------------


@T.prim_func(s_tir=True)
def init_block_of_its_own(
    X: T.Buffer((5, 100), "float32"), S: T.Buffer((5,), "float32"), Y: T.Buffer((5, 100), "float32")
):
    for b in range(5):
        with T.sblock("init"):
            vb = T.axis.spatial(5, b)
            S[vb] = T.float32(4)
    for b, t in T.grid(5, 100):
        with T.sblock("scan"):
            vb = T.axis.spatial(5, b)
            vt = T.axis.scan(100, t)
            S[vb] = S[vb] + X[vb, vt]
            Y[vb, vt] = S[vb]


@T.prim_func(s_tir=True)
def processed_before_and_after(X: T.Buffer((5, 100), "float32"), Y: T.Buffer((5, 100), "float32")):
    doubled = T.sblock_alloc_buffer((5, 100), "float32")
    summed = T.sblock_alloc_buffer((5, 100), "float32")
    for b, t in T.grid(5, 100):
        with T.sblock("before"):
            vb, vt = T.axis.remap("SS", [b, t])
            doubled[vb, vt] = X[vb, vt] * T.float32(2)
    for b, t in T.grid(5, 100):
        with T.sblock("scan"):
            vb = T.axis.spatial(5, b)
            vt = T.axis.scan(100, t)
            summed[vb, vt] = (
                T.if_then_else(vt > 0, summed[vb, vt - 1], T.float32(0)) + doubled[vb, vt]
            )
    for b, t in T.grid(5, 100):
        with T.sblock("after"):
            vb, vt = T.axis.remap("SS", [b, t])
            Y[vb, vt] = summed[vb, vt] - T.float32(1)


@T.prim_func(s_tir=True)
def two_recurrences(X: T.Buffer((5, 100), "float32"), Y: T.Buffer((5, 100), "float32")):
    summed = T.sblock_alloc_buffer((5, 100), "float32")
    for b, t in T.grid(5, 100):
        with T.sblock("sum"):
            vb = T.axis.spatial(5, b)
            vt = T.axis.scan(100, t)
            summed[vb, vt] = T.if_then_else(vt > 0, summed[vb, vt - 1], T.float32(0)) + X[vb, vt]
    for b, t in T.grid(5, 100):
        with T.sblock("max"):
            vb = T.axis.spatial(5, b)
            vt = T.axis.scan(100, t)
            Y[vb, vt] = T.max(
                T.if_then_else(vt > 0, Y[vb, vt - 1], T.float32("-inf")), summed[vb, vt]
            )


@pytest.mark.parametrize("plan", ["lanes", "tiles 32x1", "phases 32x3", "default"])
def test_other_nests_beside_the_recurrence(plan):
    x = np.random.default_rng(SEED).integers(-3, 4, (5, 100)).astype("float32")
    sums = np.cumsum(x, axis=1)
    empty = np.full_like(x, 77)

    def run(func, *args):
        return run_cuda(parallelize(func, CUDA_TARGET, PLANS[plan]), args)

    _, s, y = run(init_block_of_its_own, x, np.full(5, 77, "float32"), empty)
    np.testing.assert_array_equal(y, sums + 4)
    np.testing.assert_array_equal(s, sums[:, -1] + 4)
    _, y = run(processed_before_and_after, x, empty)
    np.testing.assert_array_equal(y, 2 * sums - 1)
    _, y = run(two_recurrences, x, empty)
    np.testing.assert_array_equal(y, np.maximum.accumulate(sums, axis=1))


# ---- indices beyond 2^31 ----------------------------------------------------------------------


def subscripts(source, names):
    """The index expressions of the named parameters in emitted source."""
    for match in re.finditer(rf"\b(?:{'|'.join(names)})_ptr\[", source):
        depth, end = 1, match.end()
        while depth:
            depth += {"[": 1, "]": -1}.get(source[end], 0)
            end += 1
        yield source[match.end() : end - 1]


@pytest.mark.parametrize("plan", ["lanes", "tiles 64x3", "phases 32x3"])
@pytest.mark.parametrize("symbolic", [False, True], ids=["constant", "symbolic"])
@pytest.mark.parametrize("layout", ["dl", "ld"])
def test_indices_of_large_arrays_have_64_bits(plan, symbolic, layout):
    """70,000 x 40,000 elements: every number in an index is cast to 64 bits before it is used.

    So are those into the scratch of tiles, unless its size is known to be small.
    """
    sizes = (None, None) if symbolic else (70_000, 40_000)
    func = library.linear_recurrence(*sizes, layout=layout, initial_state=True, final_state=True)
    source = emit_cuda(parallelize(func, CUDA_TARGET, PLANS[plan]))
    scratch = ["carry0", "tile0a"] if symbolic else []
    found = list(subscripts(source, ["A", "X", "H", *scratch]))
    assert len(found) >= 3
    for index in found:
        for narrow in (r"(?<!int64_t\))\b\d+\b", r"(?<!int64_t\))\(\(int\)", r"\(int\)\("):
            assert not re.search(narrow, index), index


def test_32_bit_indices_into_large_arrays_are_refused():
    @T.prim_func(s_tir=True)
    def func(X: T.Buffer((70000, 40000), "float32"), Y: T.Buffer((70000, 40000), "float32")):
        for r in range(70000):
            for t in range(40000):
                Y[r, t] = T.if_then_else(t > 0, Y[r, t - 1], T.float32(0)) + X[r, t]

    for plan in (PLANS["tiles 32x1"], ScanPlan.of("cpu", "lanes")):
        target = CUDA_TARGET if plan.device == "cuda" else tvm.target.Target("llvm")
        with pytest.raises(PlanError, match=r"int32 indices into \w+ of 2800000000 elements"):
            parallelize(func, target, plan)
