"""The law of rounding errors of docs/numerics.md, family by family, and where it ends."""

import numpy as np
import pytest
import tvm

from tests.numerics.cases import CASES, inputs_of, longest_product, source_of
from tests.numerics.runs import (
    FINITE,
    LENGTHS,
    PLANS,
    TREE,
    U,
    exact_and_magnitude,
    in_units,
    oracle,
    regimes,
    run,
    scan,
)
from tests.programs.suite.running import CPU, families_of
from tests.support.compiled import compile_cached
from tests.support.cuda_harness import CUDA_TARGET, run_cuda
from tests.support.tiers import longer, one_of, paired
from tvm_scan import ScanPlan, extract, parallelize
from tvm_scan.algebra import FAMILIES


def test_oracle_is_the_loop():
    """The compiled float64 loop beside one in Python."""
    case, name = CASES["affine"], "affine"
    inputs = inputs_of(case, "U(-1, 1)", 500, "float32")
    exact, magnitude = exact_and_magnitude(name, inputs)
    h = m = 1.0
    for t in range(500):
        g, x = (float(inputs[key][0, t]) for key in "gx")
        h, m = g * h + x, abs(g) * m + abs(x)
        assert abs(exact[0][t] - h) <= 1e-15 * max(1, m)
        assert abs(magnitude[t] - m) <= 1e-14 * m


@pytest.mark.parametrize("name", CASES)
def test_family(name):
    assert families_of(extract(source_of(CASES[name], CASES[name].dtype))) == CASES[name].family


def test_every_family_has_a_law():
    # Tables; the user's own; that of the inner family, for every k-th step.
    exempt = {"two states", "finite automaton", "declared associative", "interleaved"}
    shown = {case.family.partition(" ")[0] for case in CASES.values()}
    assert {f.name for f in FAMILIES if f.name.partition(" ")[0] not in shown} == exempt


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", [n for n, c in CASES.items() if c.k])
def test_the_law(name, plan):
    case = CASES[name]
    chosen, combinations = PLANS[plan]
    largest = 0.0
    for number, gates in enumerate(regimes(case)):
        for length in longer(LENGTHS if not number else LENGTHS[1:-1], LENGTHS):
            inputs = inputs_of(case, gates, length, "float32", seed=length)
            exact, magnitude = exact_and_magnitude(name, inputs)
            finite = (longest_product(case, inputs) < FINITE) & (magnitude < FINITE)
            assert finite[: min(length, 4096)].all()
            got = run(scan(name, chosen), case, inputs, "float32")
            steps = np.arange(1, length + 1)[finite] + combinations
            units = in_units(case, got, exact, magnitude, finite)
            assert (units <= steps).all(), f"{gates}, {length}: {(units / steps).max():.3g}"
            if not case.one_sign:
                assert (units <= 2 * np.sqrt(steps)).all(), (
                    f"{gates}, {length}: {(units / np.sqrt(steps)).max():.3g} roots"
                )
            largest = max(largest, float((units / steps).max(initial=0.0)))
    assert largest > 1e-3, "a bound that nothing comes near says nothing"


@pytest.mark.parametrize("name", CASES)
def test_the_law_on_cuda(name):
    """Every tile adds two combinations per level of its tree, and two for the carry."""
    case, length = CASES[name], 1029
    plan = ScanPlan.of("cuda", "serial_tiles", threads_per_block=32, items_per_thread=4)
    tiles = -(-length // plan.tile)
    combinations = tiles * (2 * 5 + 2)
    func = parallelize(source_of(case, case.dtype), CUDA_TARGET, plan)
    inputs = inputs_of(case, "U(0.99, 1.01)", length, case.dtype)
    exact, magnitude = exact_and_magnitude(name, inputs)
    states = len(case.steps)
    arrays = [*inputs.values(), *(np.full(1, case.start, case.dtype) for _ in range(states))]
    arrays += [np.zeros((1, length), case.dtype) for _ in range(states)]
    got = [array[0] for array in run_cuda(func, arrays, seeds=(0,))[-states:]]
    if not case.k:
        for left, right in zip(got, exact, strict=True):
            np.testing.assert_array_equal(left, right)
        return
    everywhere = np.ones(length, bool)
    units = in_units(case, got, exact, magnitude, everywhere)
    assert (units <= np.arange(1, length + 1) + combinations).all()


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if not c.k])
def test_exact_families(name):
    case = CASES[name]
    for length in LENGTHS:
        inputs = inputs_of(case, "U(0.9, 1)", length, case.dtype, seed=length)
        exact, _ = exact_and_magnitude(name, inputs)
        for plan, _ in PLANS.values():
            for got, want in zip(
                run(scan(name, plan), case, inputs, case.dtype), exact, strict=True
            ):
                np.testing.assert_array_equal(got.astype(want.dtype), want)


@pytest.mark.parametrize(
    ("name", "dtype"),
    paired(["sum", "affine", "clamp", "maximum", "segmented"], ["float16", "bfloat16"]),
)
def test_halves_round_once(name, dtype):
    """Inputs and outputs are halves, the carry is not: one rounding of the output on top."""
    case, length = CASES[name], 4099
    unit = 2.0**-11 if dtype == "float16" else 2.0**-8
    for number, gates in enumerate(regimes(case)):
        inputs = inputs_of(case, gates, length, dtype)
        wide = {key: array.astype("float32") for key, array in inputs.items()}
        (exact,), magnitude = exact_and_magnitude(name, wide)
        for plan, combinations in one_of(list(PLANS.values()), number):
            (got,) = run(scan(name, plan, dtype), case, inputs, dtype)
            law = case.k * (np.arange(1, length + 1) + combinations) * U * magnitude
            # The smallest normal float16 is 2^-14, below which spacing no longer shrinks.
            allowed = unit * np.abs(exact) * (1 + U) + 2 * law + 2.0**-25
            assert (np.abs(got.astype("float64") - exact) <= allowed).all(), f"{gates}, {plan}"


@pytest.mark.parametrize("name", CASES)
def test_same_bits(name):
    """One plan gives the same bits on every run, with one thread or with two."""
    case = CASES[name]
    inputs = inputs_of(case, "U(0.99, 1.01)", 2**14 + 3, case.dtype)
    configure = tvm.get_global_func("runtime.config_threadpool")
    for plan in (TREE, None):
        seen = set()
        for threads in (2, 1, 2):
            configure(1, threads)
            for _ in range(3):
                got = run(scan(name, plan), case, inputs, case.dtype)
                seen.add(b"".join(array.tobytes() for array in got))
        assert len(seen) == 1


class TestGatesThatOverflow:
    """A chunk's product of gates is infinite: what becomes of the state is told, and is so."""

    LENGTH = 2048

    def both(self, gates, values, start):
        case = CASES["affine"]
        inputs = {
            "g": np.asarray(gates, "float32")[None],
            "x": np.asarray(values, "float32")[None],
        }
        compiled, dtype = oracle("affine")
        (exact, _) = run(compiled, case, inputs, dtype, extra=1, start=start)
        (got,) = run(scan("affine", TREE), case, inputs, "float32", start=start)
        return got, exact

    def test_zero_stays_zero(self):
        zeros = np.zeros(self.LENGTH)
        got, exact = self.both(np.full(self.LENGTH, 4.0), zeros, 0.0)
        assert (exact == 0).all()
        np.testing.assert_array_equal(got, exact)

    def test_what_overflows_in_the_loop_overflows_in_the_scan(self):
        got, exact = self.both(np.full(self.LENGTH, 4.0), np.zeros(self.LENGTH), 1.0)
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(got, exact.astype("float32"))
        assert np.isinf(got[-1])

    def test_what_no_element_has_comes_back_from_infinity(self):
        """Where the loop overflows and the product of the gates does not."""
        gates, middle = np.ones(self.LENGTH), self.LENGTH // 16
        gates[middle : middle + 2] = 3e38, 0.25
        case, inputs = CASES["affine"], {}
        inputs["g"] = np.asarray(gates, "float32")[None]
        inputs["x"] = np.zeros_like(inputs["g"])
        (loop,) = run(
            compile_cached(source_of(case, "float32"), target=CPU), case, inputs, "float32", start=2
        )
        (got,) = run(scan("affine", TREE), case, inputs, "float32", start=2)
        assert np.isinf(loop[middle:]).all()
        np.testing.assert_array_equal(got[: middle + 2], loop[: middle + 2])
        assert np.isfinite(got[-1])
        np.testing.assert_allclose(got[-1], 1.5e38, rtol=1e-6)

    def test_a_small_state_is_infinite_from_the_next_chunk_on(self):
        """Gates of 2 for 140 steps make 2^40 of 2^-100: the product 2^140 is no float32."""
        gates = np.ones(self.LENGTH)
        gates[300:440] = 2.0
        got, exact = self.both(gates, np.zeros(self.LENGTH), 2.0**-100)
        assert exact.max() == 2.0**40
        chunk = -(-self.LENGTH // TREE.chunks)
        # All of these gates lie in the second chunk (whose length may be rounded up to an odd
        # number of cache lines); it is replayed from its own start, like the first.
        near = got[:400] == exact[:400]
        assert near.all()
        assert np.isinf(got[-1])
        assert chunk < 300

    def test_lanes_have_no_such_products(self):
        case = CASES["affine"]
        gates = np.ones(self.LENGTH, "float32")[None]
        gates[0, 300:440] = 2.0
        inputs = {"g": gates, "x": np.zeros_like(gates)}
        compiled, dtype = oracle("affine")
        exact, _ = run(compiled, case, inputs, dtype, extra=1, start=2.0**-100)
        (got,) = run(scan("affine", PLANS["lanes"][0]), case, inputs, "float32", start=2.0**-100)
        np.testing.assert_array_equal(got, exact)

    def test_a_vanishing_product_costs_nothing(self):
        rng = np.random.default_rng(0)
        values = rng.standard_normal(self.LENGTH)
        got, exact = self.both(np.full(self.LENGTH, 0.25), values, 1e30)
        assert np.abs(got - exact).max() <= 4 * U * 1e30
        assert np.abs(got[200:] - exact[200:]).max() <= 16 * U * np.abs(exact[200:]).max()
