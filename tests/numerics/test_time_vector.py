"""Steps of time as the lanes of a vector compute what the loop computes."""

import itertools

import numpy as np
import pytest
from tvm import tirx

from tests.numerics.cases import CASES, inputs_of, source_of
from tests.numerics.runs import FINITE, exact_and_magnitude, in_units, run, scan
from tests.programs.suite.classes import ACCEPTED
from tests.programs.suite.program import arguments
from tests.programs.suite.running import CPU, agree, families_of, run_loop, run_scan
from tests.support.tiers import covering, longer, paired
from tvm_scan import ScanPlan, extract, parallelize, tir
from tvm_scan.errors import PlanError
from tvm_scan.schedules.cpu.vector_values import takes_time_vectors

#: Steps whose elements are 4 x 4 matrices compile for a minute as wide vectors.
WIDE = ("fourth_order",)
PLANS = [
    ScanPlan.of("cpu", "lanes", time_vector=8),
    ScanPlan.of("cpu", "three_phase", chunks=3, time_vector=4),
    ScanPlan.of("cpu", "lanes", time_vector=16, time_runs=True),
]
FOUND = {name: extract(program.func) for name, program in ACCEPTED.items()}
TAKEN = [name for name, found in FOUND.items() if takes_time_vectors(found)]


def test_most_of_the_suite_is_taken():
    families = {algebra.name for n in TAKEN for algebra in FOUND[n].algebras}
    assert {"reduce", "affine", "clamp", "segmented", "matrix affine"} <= families
    assert len(TAKEN) > len(ACCEPTED) // 2


def decided(name):
    """What vectors of time look at: elements, and what else is done with the steps."""
    found = FOUND[name]
    return {
        "families": families_of(found),
        "dtypes": tuple(sorted({carry.dtype for carry in found.carries})),
        "apart": (found.boundary is None, found.finish is None),
        "plan": TAKEN.index(name) % len(PLANS),
    }


@pytest.mark.parametrize("name", covering([n for n in TAKEN if n not in longer(WIDE, ())], decided))
def test_equals_the_loop(name):
    program = ACCEPTED[name]
    arrays = arguments(program.func, program.inputs)
    want = run_loop(program.func, arrays)
    plan = PLANS[TAKEN.index(name) % len(PLANS)]
    for got, expected in zip(run_scan(program.func, arrays, plan), want, strict=True):
        assert agree(got, expected, rounds=program.rounds, growth=program.growth)


WIDTHS = [(w, False) for w in (4, 8, 16, 32)] + [(w, True) for w in (16, 32, 64)]


ALGORITHMS = ("lanes", "three_phase")
#: The replay of a clamp's chunks compiles for seconds; test_equals_the_loop has clamps in chunks.
QUICK = [(vector, "lanes") for vector in WIDTHS[::3]]


@pytest.mark.parametrize(
    ("vector", "name"),
    [
        *paired(list(itertools.product(WIDTHS, ALGORITHMS)), ["affine", "maximum", "integers"]),
        *((v, "clamp") for v in longer(QUICK, list(itertools.product(WIDTHS, ALGORITHMS)))),
    ],
    ids=str,
)
def test_lengths_around_vectors_and_chunks(name, vector):
    case, ((width, runs), algorithm) = CASES[name], vector
    chunks = {"chunks": 3} if algorithm == "three_phase" else {}
    plan = ScanPlan.of("cpu", algorithm, time_vector=width, time_runs=runs, **chunks)
    for length in longer(
        (1, width + 1, 4099), (1, width - 1, width, width + 1, 3 * width + 1, 4099)
    ):
        inputs = inputs_of(case, "U(0.9, 1)", length, case.dtype, seed=length)
        exact, magnitude = exact_and_magnitude(name, inputs)
        got = run(scan(name, plan), case, inputs, case.dtype)
        if not case.k:
            np.testing.assert_array_equal(got[0], exact[0])
            continue
        units = in_units(case, got, exact, magnitude, magnitude < FINITE)
        # Every step passes the levels of one vector, and two more for each chunk.
        assert (units <= np.arange(1, length + 1) + 5 + 6).all()


@pytest.mark.parametrize("runs", [False, True])
def test_nan_and_infinity_do_not_reach_back(runs):
    """In a vector, what enters at a step must not show before it."""
    func = source_of(CASES["affine"], "float32")
    plan = ScanPlan.of("cpu", "lanes", time_vector=16, time_runs=runs)
    for bad in (np.nan, np.inf):
        gates, values = np.ones((1, 64), "float32"), np.ones((1, 64), "float32")
        values[0, 21] = bad
        arrays = [gates, values, np.zeros(1, "float32"), np.zeros((1, 64), "float32")]
        want, got = run_loop(func, arrays), run_scan(func, arrays, plan)
        np.testing.assert_array_equal(got[-1], want[-1])
        assert np.isfinite(got[-1][0, :21]).all()


def test_refused_where_vectors_do_not_fit():
    program = ACCEPTED["selective_scan"]  # a state of several cells
    with pytest.raises(PlanError, match="carries of one cell"):
        parallelize(program.func, CPU, PLANS[0])
    with pytest.raises(PlanError, match="one lane at a time"):
        parallelize(ACCEPTED["prefix_sum"].func, CPU, PLANS[0].with_(lane_block=4))
    with pytest.raises(PlanError, match="4, 8, 16, 32 or 64"):
        parallelize(ACCEPTED["prefix_sum"].func, CPU, PLANS[0].with_(time_vector=5))
    with pytest.raises(PlanError, match="for time_runs"):
        parallelize(ACCEPTED["prefix_sum"].func, CPU, PLANS[0].with_(time_runs=True))


@pytest.mark.parametrize("name", ["convergents", "string_matching", "borrow", *longer((), WIDE)])
def test_runs_keep_the_order_of_time(name):
    """Integer matrices and automata do not commute, and are exact."""
    func = ACCEPTED[name].func
    arrays = arguments(func, ACCEPTED[name].inputs)
    want = run_loop(func, arrays)
    for cut in ("lanes(", "three_phase(chunks=2, "):
        plan = ScanPlan.parse(f"cpu/{cut}time_vector=16, time_runs=True)")
        for got, expected in zip(run_scan(func, arrays, plan), want, strict=True):
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("runs", [False, True])
def test_a_product_of_gates_that_overflows_inside_a_vector(runs):
    """The one vector that needs care takes it: a zero state stays zero, others overflow."""
    func = source_of(CASES["affine"], "float32")
    plan = ScanPlan.of("cpu", "lanes", time_vector=16, time_runs=runs)
    gates, values = np.ones((1, 64), "float32"), np.zeros((1, 64), "float32")
    gates[0, 20:26] = 1e20
    for start in (0.0, 1e-30, 2.0):
        arrays = [gates, values, np.full(1, start, "float32"), np.zeros((1, 64), "float32")]
        with np.errstate(over="ignore"):
            want, got = run_loop(func, arrays), run_scan(func, arrays, plan)
        if start == 1e-30:
            # The loop makes 1e-10, 1e10, 1e30 of it; the product of gates is infinite earlier.
            np.testing.assert_array_equal(got[-1][0, :21], want[-1][0, :21])
            assert (got[-1][0, 24:] == np.inf).all()
        else:
            np.testing.assert_array_equal(got[-1], want[-1])


def test_decaying_products_do_not_stick_at_the_smallest_denormal():
    """A chunk's product of gates is flushed to zero where it becomes denormal."""
    algebra = extract(source_of(CASES["affine"], "float32")).algebras[0]
    for gate, kept in ((1e-39, 0.0), (-1e-39, 0.0), (1e-37, 1e-37), (0.5, 0.5)):
        element = algebra.flush(tuple(tirx.const(v, "float32") for v in (gate, 3.0)))
        found = [float(tir.simplify(part).value) for part in element]
        np.testing.assert_allclose(found, [kept, 3.0], rtol=1e-7)
