"""Steps at the beginning that differ from the others: they are done one by one, before vectors."""

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.ir import Call
from tvm.script import from_source
from tvm.script import tirx as T

from tvm_scan import ScanPlan, extract, parallelize, tir
from tvm_scan.schedules.common.ends import first_steps

PLANS = [
    "cpu/lanes(time_vector=16)",
    "cpu/lanes(time_vector=64, time_runs=True)",
    "cpu/three_phase(chunks=2, time_vector=16)",
    "cpu/three_phase(chunks=3, time_vector=16, cache_steps=1024)",
]
LENGTHS = [1, 2, 3, 4, 17, 18, 19, 20, 66, 67, 130, 577]


#: (factor, steps back, first step that looks back) of each term -> steps that differ. Sums and
#: products of integers wrap in any order.
TERMS = {
    ((3, 1, 1),): 0,  # the state before is zero, and the step the same
    ((3, 1, 1), (-5, 2, 2)): 2,
    ((1, 1, 1), (7, 2, 2), (-3, 3, 3)): 3,
    ((3, 1, 1), (2, 2, 4)): 4,
}


def before(lag, first):
    """What the loop finds ``lag`` steps back: zero where there is nothing."""
    return f"T.if_then_else(t >= {first}, H[r, t - {lag}], T.int32(0))"


def step_of(terms):
    return " + ".join([*(f"{f} * {before(lag, first)}" for f, lag, first in terms), "X[r, t]"])


def loop_of(step, length, symbolic=False):
    """Two rows of a step."""
    shape = f"T.Buffer((2, {length}), 'int32')"
    head = f"def scan(X: {shape}, H: {shape}):"
    if symbolic:
        names = "n = T.int32(); X = T.match_buffer(x, (2, n), 'int32'); "
        head = f"def scan(x: T.handle, h: T.handle):\n    {names}"
        head += "H = T.match_buffer(h, (2, n), 'int32')"
        length = "n"
    text = f"@T.prim_func(s_tir=True)\n{head}\n    for r, t in T.grid(2, {length}):\n"
    return from_source(f"{text}        H[r, t] = {step}\n", {"T": T})


def loops_result(terms, data):
    """The loop itself, with its wrapping."""
    out = data.copy()
    for row in out:
        for t in range(len(row)):
            value = int(row[t]) + sum(f * int(row[t - n]) for f, n, first in terms if t >= first)
            row[t] = (value + 2**31) % 2**32 - 2**31
    return out


def run(built, data):
    """What a compiled loop writes."""
    given, out = tvm.runtime.tensor(data), tvm.runtime.tensor(np.full_like(data, -1))
    built["scan"](given, out)
    return out.numpy()


@pytest.mark.parametrize("terms", TERMS)
def test_how_many_steps_differ(terms):
    assert first_steps(extract(loop_of(step_of(terms), 100))) == TERMS[terms]


@pytest.mark.parametrize("condition", ["t % 2 < 1", "t > 50", "X[r, t] > 0"])
def test_a_condition_that_is_never_settled_adds_no_first_steps(condition):
    step = f"T.if_then_else({condition}, 3, 2) * {before(1, 1)} + X[r, t]"
    recurrence = extract(loop_of(step, 100))
    own = int(any(carry.first is not None for carry in recurrence.carries))
    assert first_steps(recurrence) == own


@pytest.mark.parametrize("plan", [plan for plan in PLANS if "lanes" in plan])
@pytest.mark.parametrize("terms", TERMS)
def test_every_length_is_the_loops(terms, plan):
    rng = np.random.default_rng(0)
    func = loop_of(step_of(terms), None, symbolic=True)
    built = tvm.compile(parallelize(func, "llvm", ScanPlan.parse(plan)), target="llvm")
    for length in LENGTHS:
        data = rng.integers(-(2**31), 2**31 - 1, (2, length), dtype=np.int32)
        got = run(built, data)
        np.testing.assert_array_equal(got, loops_result(terms, data), err_msg=f"{length} steps")


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("length", [2, 5, 9, 10, 14, 15, 18, 21, 29, 67, 3577])
@pytest.mark.parametrize("terms", [terms for terms, steps in TERMS.items() if steps])
def test_a_known_length_is_the_loops(terms, length, plan):
    """Pieces of chunks have 1 to 4 steps and more, those that differ among them."""
    rng = np.random.default_rng(1)
    data = rng.integers(-(2**31), 2**31 - 1, (2, length), dtype=np.int32)
    func = parallelize(loop_of(step_of(terms), length), "llvm", ScanPlan.parse(plan))
    got = run(tvm.compile(func, target="llvm"), data)
    np.testing.assert_array_equal(got, loops_result(terms, data))


def test_chunks_of_less_than_a_step_are_the_loops():
    """A length that is known at run time may be shorter than there are pieces."""
    step = f"T.if_then_else(t % 2 < 1, 3, 2) * {before(1, 1)} + X[r, t]"
    func = loop_of(step, None, symbolic=True)
    assert first_steps(extract(func)) == 1
    plan = ScanPlan.parse("cpu/three_phase(chunks=16, time_vector=16)")
    built = tvm.compile(parallelize(func, "llvm", plan), target="llvm")
    loop = tvm.compile(func, target="llvm")
    rng = np.random.default_rng(2)
    for length in (1, 2, 15, 32, 33, 34, 65, 66, 67, 200):
        data = rng.integers(-(2**31), 2**31 - 1, (2, length), dtype=np.int32)
        np.testing.assert_array_equal(run(built, data), run(loop, data), err_msg=f"{length} steps")


@pytest.mark.parametrize("plan", [plan for plan in PLANS if "three_phase" in plan])
def test_gates_of_chunks_are_numbers_behind_the_first_steps(plan):
    """Filters by two chunks took 2.3 times as long where each vector had its gates compared."""
    loop = loop_of(step_of(((3, 1, 1), (-5, 2, 2))), 3577)
    module = tvm.IRModule({"scan": parallelize(loop, "llvm", ScanPlan.parse(plan))})
    kernel = tvm.tirx.transform.StmtSimplify()(module)["scan"]
    vectors = [n for n in tir.nodes(kernel.body, tirx.For) if n.kind == tirx.ForKind.VECTORIZED]
    assert vectors
    for vector in vectors:
        conditions = [e.condition for e in tir.nodes(vector.body, tirx.Select)]
        calls = [e for e in tir.nodes(vector.body, Call) if tir.call_name(e) == "prim.if_then_else"]
        conditions += [call.args[0] for call in calls]
        assert not [e for e in conditions if tir.contains_var(e, [vector.loop_var])]
