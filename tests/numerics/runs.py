"""Loops of ``numerics_cases`` run in float64, and as scans."""

import functools

import ml_dtypes
import numpy as np
import tvm

from tests.numerics.cases import CASES, GATES, source_of
from tests.programs.suite.running import CPU
from tests.support.compiled import compile_cached
from tvm_scan import ScanPlan, default_plan, extract, parallelize

__all__ = [
    "FINITE",
    "LENGTHS",
    "PLANS",
    "TINY",
    "TREE",
    "U",
    "exact_and_magnitude",
    "in_units",
    "oracle",
    "regimes",
    "run",
    "scan",
]

U = 2.0**-24
TINY = 2.0**-126
LENGTHS = (1, 7, 4096, 2**16, 2**20)
TREE = ScanPlan.of("cpu", "three_phase", chunks=8, lane_block=4)
#: Plan and the combinations that it adds to the loop's own steps.
PLANS = {str(TREE): (TREE, 16), "lanes": (ScanPlan.of("cpu", "lanes"), 0)}
GATED = {"gate", "half gate", "turned", "shift"}
#: Products of gates up to here are finite in float32, and so is the state.
FINITE = 1e37


def regimes(case):
    return list(GATES) if GATED & set(case.inputs.values()) else ["U(0.9, 1)"]


@functools.cache
def oracle(name):
    """The loop in float64 (integers in their own dtype), with M beside it."""
    case = CASES[name]
    dtype = "float64" if case.dtype == "float32" else case.dtype
    return compile_cached(source_of(case, dtype, magnitude=True), target=CPU), dtype


@functools.cache
def scan(name, plan, dtype=None):
    func = source_of(CASES[name], dtype or CASES[name].dtype)
    plan = plan or default_plan(CPU, extract(func))
    return compile_cached(parallelize(func, CPU, plan), target=CPU)


def run(compiled, case, inputs, dtype, *, extra=0, start=None):
    """Histories of all states."""
    length = next(iter(inputs.values())).shape[1]
    states = len(case.steps) + extra
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    arrays = [array.astype(kind) for array in inputs.values()]
    arrays += [np.full(1, case.start if start is None else start, kind) for _ in range(states)]
    arrays += [np.zeros((1, length), kind) for _ in range(states)]
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    compiled(*tensors)
    return [tensor.numpy()[0] for tensor in tensors[-states:]]


def exact_and_magnitude(name, inputs):
    compiled, dtype = oracle(name)
    *exact, magnitude = run(compiled, CASES[name], inputs, dtype, extra=1)
    return exact, np.abs(magnitude.astype("float64"))


def in_units(case, got, exact, magnitude, finite):
    """Error over ``k u M`` at every step, what lies below the smallest float left out."""
    worst = np.zeros(len(magnitude))
    for left, right in zip(got, exact, strict=True):
        apart = np.maximum(np.abs(left.astype("float64") - right) - TINY, 0)
        worst = np.maximum(worst, apart / np.maximum(case.k * U * magnitude, TINY * U))
    return worst[finite]
