"""Every recurrence of the library under every CPU plan, against the float64 twin."""

import pytest
import tvm

from tests.library_runs import run_serial
from tests.recurrence_cases import (
    LENGTHS,
    Case,
    cases,
    check_exact,
    check_random,
    exact_inputs,
    random_inputs,
)
from tvm_scan import ScanPlan, parallelize
from tvm_scan.library import LIBRARY
from tvm_scan.schedules.default import host_target

TARGET = host_target()
PLANS = {
    "sequential": ScanPlan("cpu", "sequential"),
    "lanes": ScanPlan("cpu", "lanes"),
    "interleaved": ScanPlan("cpu", "lanes", lane_block=4),
    "vectors": ScanPlan("cpu", "lanes", lane_block=8, vectorize=True),
    "strips": ScanPlan("cpu", "lanes", lane_block=64, vectorize=True),
    "chunks": ScanPlan("cpu", "three_phase", chunks=3),
    "streams": ScanPlan("cpu", "three_phase", chunks=8, lane_block=4),
    "many": ScanPlan("cpu", "three_phase", chunks=128, lane_block=2),
    "default": None,
}
CASES = cases()


def compiled(func, plan):
    return tvm.compile(parallelize(func, TARGET, plan), target=TARGET)


def both_kinds(case, plan, lengths, function_of):
    """Run a case on exact and on random inputs of every length."""
    for length in lengths:
        options, inputs, want = exact_inputs(case, length)
        func, executable = function_of(length, options)
        check_exact(case, length, run_serial(executable, func, inputs, want))
        inputs, want = random_inputs(case, length)
        func, executable = function_of(length, dict(case.options))
        check_random(case, length, run_serial(executable, func, inputs, want), plan)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_symbolic_extents(case, plan):
    """One compiled function serves every length."""

    made = {}

    def function_of(_, options):
        key = str(options)
        if key not in made:
            func = case.function(None, options)
            made[key] = func, compiled(func, plan)
        return made[key]

    both_kinds(case, plan, LENGTHS, function_of)


CONSTANT = [
    *(Case(name) for name in LIBRARY if name.startswith("cum")),
    Case("ema", options=(("alpha", "lane"),)),
    Case("linear_recurrence"),
    Case("linear_recurrence", options=(("initial_state", True), ("final_state", True))),
    Case("selective_scan", options=(("initial_state", True), ("final_state", True))),
]


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("case", CONSTANT, ids=str)
def test_constant_extents(case, plan):
    made = {}

    def function_of(length, options):
        key = length, str(options)
        if key not in made:
            func = case.function(length, options)
            made[key] = func, compiled(func, plan)
        return made[key]

    # The selective scan compiles ten times as long as the others.
    lengths = (0, 1, 33, 1025) if case.name == "selective_scan" else LENGTHS
    both_kinds(case, plan, lengths, function_of)
