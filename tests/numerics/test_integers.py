"""Integers of every width at their limits: all plans wrap as the loop does.

A module holds the loops of all dtypes, so that a plan is one compilation.
"""

import numpy as np
import pytest
import tvm
from tvm.script import tirx as T

from tests.programs.suite.running import CPU
from tests.support import cusim
from tests.support.compiled import compile_cached
from tests.support.cuda_harness import CUDA_TARGET, compile_cuda
from tests.support.tiers import longer
from tvm_scan import ScanPlan, parallelize

ROWS, LENGTH = 3, 64
DTYPES = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
GATE, START = 113, (101, 7)
#: The new ``h`` in TVMScript (``c`` becomes the old one), and in NumPy with a constant ``k``.
STEPS = {
    "constant": ("h[0] * T.{0}(113) + X[b, t]", lambda h, c, k, g, x: h * k + x),
    "shift": ("T.shift_left(h[0], T.{0}(7)) + X[b, t]", lambda h, c, k, g, x: (h << 7) + x),
    "varying": ("h[0] * G[b, t] + X[b, t]", lambda h, c, k, g, x: h * g + x),
    "matrix": (
        "h[0] * G[b, t] + c[0] * T.{0}(113) + X[b, t]",
        lambda h, c, k, g, x: h * g + c * k + x,
    ),
}
CPU_PLANS = (
    "cpu/sequential()",
    "cpu/lanes(lane_block=2, vectorize=True)",
    "cpu/lanes(time_vector=16)",
    "cpu/lanes(time_vector=16, time_runs=True)",
    "cpu/three_phase(chunks=4)",
)
CUDA_PLANS = (
    "cuda/serial_tiles(threads_per_block=8, items_per_thread=2)",
    "cuda/three_phase(threads_per_block=8, items_per_thread=3)",
)


def source(dtype, step):
    return tvm.script.from_source(
        f"""
@T.prim_func(s_tir=True)
def main(
    G: T.Buffer(({ROWS}, {LENGTH}), "{dtype}"),
    X: T.Buffer(({ROWS}, {LENGTH}), "{dtype}"),
    H: T.Buffer(({ROWS}, {LENGTH}), "{dtype}"),
):
    for b in range({ROWS}):
        h = T.sblock_alloc_buffer((1,), "{dtype}")
        c = T.sblock_alloc_buffer((1,), "{dtype}")
        n = T.sblock_alloc_buffer((1,), "{dtype}")
        h[0] = T.{dtype}({START[0]})
        c[0] = T.{dtype}({START[1]})
        for t in range({LENGTH}):
            n[0] = {STEPS[step][0].format(dtype)}
            c[0] = h[0]
            h[0] = n[0]
            H[b, t] = h[0]
""",
        {"T": T},
    )


def inputs(dtype):
    """Any integers, the gates odd, so that products of them do not vanish."""
    info, rng = np.iinfo(dtype), np.random.default_rng(7)
    g, x = rng.integers(info.min, info.max, (2, ROWS, LENGTH), dtype, endpoint=True)
    return g | 1, x


def wanted(dtype, step):
    """NumPy's integers, one step after another."""
    gates, xs = inputs(dtype)
    h, c = (np.full(ROWS, start, dtype) for start in START)
    out = np.zeros_like(xs)
    for t in range(LENGTH):
        new = STEPS[step][1](h, c, np.asarray(GATE, dtype), gates[:, t], xs[:, t])
        h, c = new.astype(dtype), h
        out[:, t] = h
    return out


CASES = [(dtype, "constant") for dtype in DTYPES]
#: The other steps in narrow and wide ones, of either sign.
_SOME = {
    "shift": ("int8", "uint64"),
    "varying": ("uint16", "int32"),
    "matrix": ("uint16", "int32"),
}
_ALL = ("int8", "uint16", "int32", "uint64")
CASES += [(dtype, step) for step, some in _SOME.items() for dtype in longer(some, _ALL)]


def module(plan, target):
    """One function for every case, under a plan."""
    chosen, funcs = ScanPlan.parse(plan), {}
    for case in CASES:
        func = parallelize(source(*case), target, chosen)
        funcs["_".join(case)] = func.with_attr("global_symbol", "_".join(case))
    return tvm.IRModule(funcs)


def differing(executable, device):
    found = []
    for case in CASES:
        want = wanted(*case)
        tensors = [tvm.runtime.tensor(a, device) for a in (*inputs(case[0]), np.zeros_like(want))]
        executable["_".join(case)](*tensors)
        if not np.array_equal(tensors[-1].numpy(), want):
            found.append(case)
    return found


@pytest.mark.parametrize("plan", CPU_PLANS)
def test_cpu(plan):
    assert differing(compile_cached(module(plan, CPU), target=CPU), tvm.cpu()) == []


@pytest.mark.parametrize("plan", CUDA_PLANS)
def test_cuda(plan):
    executable = compile_cuda(module(plan, CUDA_TARGET))
    with cusim.settings(seed=0, race=False):
        assert differing(executable, tvm.cuda()) == []
