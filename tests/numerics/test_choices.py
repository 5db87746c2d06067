"""Steps that choose what they read: selections where every read is inside its array."""

import itertools

import numpy as np
import pytest
from tvm import tirx
from tvm.script import from_source
from tvm.script import tirx as T

from tests.programs.suite.running import CPU, run_loop, run_scan
from tests.support.tiers import covering
from tvm_scan import ScanPlan, extract, parallelize
from tvm_scan.schedules.common.branches import branches, choices_as_selects, readable
from tvm_scan.schedules.cpu.cost.step import step_of

PLANS = [
    ScanPlan.of("cpu", "lanes", lane_block=16, vectorize=True, transpose=True, prefetch=1),
    ScanPlan.of("cpu", "lanes", lane_block=16, vectorize=True),
    ScanPlan.of("cpu", "lanes", time_vector=16),
    ScanPlan.of("cpu", "lanes", time_vector=64, time_runs=True),
    ScanPlan.of("cpu", "three_phase", chunks=8, time_vector=16),
    ScanPlan.of("cpu", "three_phase", chunks=8, lane_block=4),
]
LANES, STEPS = 35, 150
LOOP = """
@T.prim_func(s_tir=True)
def scan(A: T.Buffer(({lanes}, {steps}), "{dtype}"), R: T.Buffer(({lanes}, {steps}), "int32"),
         X: T.Buffer(({lanes}, {inputs}), "{dtype}"), H: T.Buffer(({lanes}, {steps}), "{dtype}")):
    for b in range({lanes}):
        for s in range({steps}):
            H[b, {t}] = {step}
"""
#: By h the value before, by t the step.
RESETS = "T.if_then_else(R[b, t] > 0, {zero}, A[b, t] * h) + X[b, t]"
LATE = "A[b, t] * h + T.if_then_else(t >= 3, X[b, t - 3], {zero})"
SHORT = "A[b, t] * h + T.if_then_else(t < 20, X[b, t], {zero})"
FOUND = "A[b, t] * h + T.if_then_else(R[b, t] > 0, X[b, R[b, t]], {zero})"


def program(step, dtype="float32", *, back=False, inputs=STEPS, lanes=LANES, steps=STEPS):
    zero, t = f"T.{dtype}(0)", f"{steps - 1} - s" if back else "s"
    before = f"T.if_then_else(s > 0, H[b, {t} {'+' if back else '-'} 1], {zero})"
    step = step.format(zero=zero).replace("* h", f"* {before}")
    for array in "ARX":
        step = step.replace(f"{array}[b, t]", f"{array}[b, {t}]")
    step = step.replace("t - 3", "s - 3").replace("t >= 3", "s >= 3").replace("t < 20", "s < 20")
    text = LOOP.format(lanes=lanes, steps=steps, inputs=inputs, dtype=dtype, t=t, step=step)
    return from_source(text, {"T": T})


def arrays_of(func, dtype="float32"):
    rng = np.random.default_rng(5)
    gates, resets, inputs = ([int(n) for n in p.ty.shape] for p in list(func.params)[:3])
    gates, resets = rng.integers(-1, 2, gates).astype(dtype), rng.random(resets) < 0.1
    drives = rng.integers(-3, 4, inputs).astype(dtype)
    return [gates, resets.astype("int32"), drives, np.zeros(gates.shape, dtype)]


def readable_of(func):
    """Names of inputs; registers may be read at any step."""
    return {str(buffer.name) for buffer in readable(extract(func))} & set("ARX")


@pytest.mark.parametrize(
    ("plan", "dtype", "back"),
    covering(
        itertools.product(PLANS, ["float32", "int32", "float64"], [False, True]),
        lambda c: {"plan": str(c[0]), "dtype": c[1], "back": c[2]},
    ),
    ids=str,
)
def test_resets_equal_the_loop(plan, dtype, back):
    """On whole numbers, exactly; what was not chosen may be no number."""
    func = program(RESETS, dtype, back=back)
    arrays = arrays_of(func, dtype)
    if dtype != "int32":
        arrays[0][arrays[1] > 0] = np.nan
        arrays[0][3][arrays[1][3] > 0] = np.inf
    want = run_loop(func, arrays)[-1]
    np.testing.assert_array_equal(run_scan(func, arrays, plan)[-1], want)


@pytest.mark.parametrize("plan", PLANS[:3], ids=str)
@pytest.mark.parametrize("step", [LATE, SHORT, FOUND])
def test_guarded_reads_equal_the_loop(plan, step):
    func = program(step, inputs=20 if step == SHORT else STEPS)
    arrays = arrays_of(func)
    np.testing.assert_array_equal(run_scan(func, arrays, plan)[-1], run_loop(func, arrays)[-1])


def test_arrays_of_which_every_read_is_inside():
    """Whatever the condition says: not a read before the array, behind it, or where data says."""
    assert readable_of(program(RESETS)) == {"A", "R", "X"}
    assert readable_of(program(RESETS, back=True)) == {"A", "R", "X"}
    assert readable_of(program(LATE)) == {"A"}
    assert readable_of(program(SHORT, inputs=20)) == {"A"}
    assert readable_of(program(FOUND)) == {"A", "R"}
    # Nobody asks where nothing is chosen.
    assert readable_of(program("A[b, t] * h + X[b, t]")) == set()


@pytest.mark.parametrize("plan", PLANS[:4], ids=str)
def test_a_step_that_chooses_what_it_reads_is_a_vector(plan):
    assert step_of(extract(program(RESETS))).in_vectors
    assert not step_of(extract(program(LATE))).in_vectors
    vectors = {
        step: parallelize(program(step), CPU, plan).script().count("T.vectorized(")
        for step in (RESETS, LATE)
    }
    assert vectors[RESETS] > vectors[LATE]


def test_symbolic_extents():
    """The array is as long as the loop, however long that is."""
    text = """
@T.prim_func(s_tir=True)
def scan(a: T.handle, r: T.handle, x: T.handle, h: T.handle):
    n, m = T.int64(), T.int64()
    A = T.match_buffer(a, (m, n), "float32")
    R = T.match_buffer(r, (m, n), "int32")
    X = T.match_buffer(x, (m, n), "float32")
    H = T.match_buffer(h, (m, n), "float32")
    for b, t in T.grid(m, n):
        H[b, t] = T.if_then_else(R[b, t] > 0, T.float32(0), A[b, t] * T.if_then_else(
            t > T.int64(0), H[b, t - T.int64(1)], T.float32(0))) + X[b, t]
"""
    func = from_source(text, {"T": T})
    assert readable_of(func) == {"A", "R", "X"}
    arrays = arrays_of(program(RESETS))
    for plan in PLANS[1:4]:
        want = run_loop(func, arrays)[-1]
        np.testing.assert_array_equal(run_scan(func, arrays, plan)[-1], want)


def test_what_one_side_alone_reads_stays_a_choice():
    """A read that a condition guards is not made where the condition is false."""
    x, c = tirx.decl_buffer((8,), "float32", "X"), tirx.decl_buffer((8,), "bool", "C")
    out, t = tirx.decl_buffer((8,), "float32", "Y"), tirx.Var("t", "int32")
    load, zero = tirx.BufferLoad(x, [t]), tirx.const(0, "float32")
    one, two = (tirx.BufferLoad(c, [k]) for k in (t, tirx.IntImm("int32", 0)))
    choose = tirx.op.if_then_else

    def left(value):
        return branches(choices_as_selects(tirx.BufferStore(out, value, [t]), []))

    assert left(choose(one, load, zero))
    assert left(choose(one, choose(two, load, zero), load))
    assert not left(choose(one, load + zero, load))
    assert not left(choose(one, load, zero) + load)
