"""Lanes that full blocks leave: the first task of the loop over cores, whatever their number."""

import numpy as np
import pytest
import tvm

from bench.regret_cases import Case, inputs_of
from tests.programs.suite.running import CPU, run_loop, run_scan
from tests.support.compiled import compile_cached
from tests.support.tiers import covering
from tvm_scan import ScanPlan, library, parallelize
from tvm_scan.schedules.machine.machine import Machine

PAST = [False, True] if Machine.of(CPU).line_stores else [False]
#: Lanes of a block -> all lanes: fewer than a block, one more, one less than two, odd ones.
LANES = {16: (1, 3, 15, 17, 31, 45), 64: (37, 65, 127, 177), 640: (636, 641, 1276)}
STEPS = 37


def results(case, plan):
    """Outputs of the loop and of a plan, which has them all after it was called twice."""
    given = inputs_of(case)
    written = [(p.ty.shape, str(p.ty.dtype)) for p in case.func.params[len(given) :]]
    made = [np.full([int(e) for e in shape], 7, dtype) for shape, dtype in written]
    once = run_scan(case.func, [*given, *made], plan)
    want, got = run_loop(case.func, [*given, *made]), run_scan(case.func, once, plan)
    return want[len(given) :], got[len(given) :]


def agree(case, plan):
    want, got = results(case, plan)
    for a, b in zip(got, want, strict=True):
        if np.issubdtype(a.dtype, np.integer):
            np.testing.assert_array_equal(a, b)
        else:
            np.testing.assert_allclose(a.astype("float64"), b.astype("float64"), 1e-4, 1e-4)


@pytest.mark.parametrize(
    ("width", "dtype", "past", "reverse"),
    covering(
        [
            (width, dtype, past, reverse)
            for width in LANES
            for dtype in ("float32", "float64", "int32", "int64")
            for past in PAST
            for reverse in (False, True)
        ],
        lambda c: dict(zip(("width", "dtype", "past", "reverse"), c, strict=True)),
    ),
)
def test_columns(width, dtype, past, reverse):
    """Neighbours in memory: vectors of any length, and lines with parts of one behind them."""
    plan = ScanPlan.of("cpu", "lanes", lane_block=width, vectorize=True, nontemporal=past)
    for lanes in LANES[width]:
        options = {"axis": 0, "dtype": dtype, "reverse": reverse}
        agree(Case("cumsum", (lanes, STEPS), options), plan)


@pytest.mark.parametrize(
    "options",
    [
        {"lane_block": 16, "vectorize": True},
        {"lane_block": 64, "vectorize": True},
        {"lane_block": 4},
        {"lane_block": 16},
        {"lane_block": 16, "vectorize": True, "transpose": True, "prefetch": 1},
        {"lane_block": 64, "vectorize": True, "transpose": True, "nontemporal": PAST[-1]},
    ],
)
@pytest.mark.parametrize("family", ["cumsum", "cummax", "resets", "logsumexp"])
def test_rows(family, options):
    """Rows apart: in turns, in vectors that are gathered, and in tiles, some of them whole."""
    plan = ScanPlan.of("cpu", "lanes", **options)
    for lanes in (1, 3, 7, 31, 45, 59, 127):
        agree(Case(family, (lanes, STEPS)), plan)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
def test_short_rows_that_are_written_out(dtype, reverse):
    """A block of up to 128 cells has no loop over its steps; of more it has one."""
    for width, steps in ((2, 64), (4, 1), (4, 13), (4, 32), (4, 33), (8, 16), (8, 17), (16, 8)):
        plan = ScanPlan.of("cpu", "lanes", lane_block=width, vectorize=True)
        case = Case("cumsum", (3 * width + 1, steps), {"dtype": dtype, "reverse": reverse})
        agree(case, plan)
        block = parallelize(case.func, CPU, plan).script().split("else:")[-1]
        assert ("for t in range" in block) == (width * steps > 128)


@pytest.mark.parametrize("family", ["linear_recurrence", "order 2", "narrow", "restarts"])
def test_short_rows_of_other_recurrences(family):
    """Gates, two carries, halves that are rounded, and choices that keep their loop."""
    for width, steps in ((4, 20), (8, 13)):
        plan = ScanPlan.of("cpu", "lanes", lane_block=width, vectorize=True)
        want, got = results(Case(family, (3 * width + 1, steps)), plan)
        close = 2e-2 if family == "narrow" else 1e-4
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a.astype("float64"), b.astype("float64"), close, close)


@pytest.mark.parametrize("layout", ["bld", "bdl"])
@pytest.mark.parametrize("channels", [5, 16, 31, 91])
def test_states_of_several_sequences(channels, layout):
    """Each sequence has a narrower block of its own."""
    ldexp = Machine.of(CPU).ldexp
    for width in (16, 64):
        plan = ScanPlan.of("cpu", "lanes", lane_block=width, vectorize=True, ldexp=ldexp)
        for tiles in {False, layout == "bdl"}:
            case = Case("selective_scan", (3, channels, STEPS, 4), {"layout": layout})
            agree(case, plan.with_(transpose=tiles))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves(dtype):
    plan = ScanPlan.of("cpu", "lanes", lane_block=16, vectorize=True)
    for lanes in (3, 15, 27):
        case = Case("selective_scan", (1, lanes, STEPS, 4), {"layout": "bld", "dtype": dtype})
        want, got = results(case, plan)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a.astype("float64"), b.astype("float64"), 2e-2, 2e-2)


_ROWS, _COLUMNS = 1, 0


@pytest.mark.parametrize(
    ("axis", "options"),
    [
        (_ROWS, {"lane_block": 4}),
        (_ROWS, {"lane_block": 16, "vectorize": True}),
        (_ROWS, {"lane_block": 32, "vectorize": True, "transpose": True}),
        (_ROWS, {"lane_block": 64, "vectorize": True, "transpose": True, "nontemporal": PAST[-1]}),
        (_COLUMNS, {"lane_block": 4}),
        (_COLUMNS, {"lane_block": 16, "vectorize": True}),
        (_COLUMNS, {"lane_block": 64, "vectorize": True, "prefetch": 1}),
        (_COLUMNS, {"lane_block": 64, "vectorize": True, "nontemporal": PAST[-1]}),
    ],
)
def test_a_number_that_only_the_run_tells(axis, options):
    """One kernel for all of them, with one pass over what full blocks leave."""
    func = library.cumsum(None, None, "int32", axis=axis)
    scan = parallelize(func, CPU, ScanPlan.of("cpu", "lanes", **options))
    text = scan.script()
    assert text.count("scan_lanes") == 1 and text.count("T.parallel") == 1
    run = compile_cached(scan, CPU)[str(func.attrs["global_symbol"])]
    for lanes in (0, 1, 3, 16, 31, 63, 64, 65, 100, 177):
        shape = (STEPS, lanes) if axis == 0 else (lanes, STEPS)
        x = np.random.default_rng(lanes).integers(-1000, 1000, shape).astype("int32")
        out = tvm.runtime.tensor(np.full(shape, 7, "int32"))
        run(tvm.runtime.tensor(x), out)
        np.testing.assert_array_equal(out.numpy(), np.cumsum(x, axis=axis, dtype="int32"))
