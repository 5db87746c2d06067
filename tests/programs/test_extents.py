"""Loops of a negative number of iterations run none, on every schedule.

A plan that cuts a negative extent into tiles corrupts the heap, so plans run in a child process,
which is not forked from this one: TVM's threads would be missing.
"""

import ast
import sys

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.script import tirx as T
from tvm.sym import Analyzer, ConstIntBound

from tests import ROOT
from tests.programs.suite.running import CPU
from tests.support import cusim, forks
from tests.support.compiled import compile_cached
from tests.support.cuda_harness import CUDA_TARGET, compile_cuda
from tvm_scan import ScanPlan, extract, parallelize, tir
from tvm_scan.errors import PlanError
from tvm_scan.extraction import root_nests
from tvm_scan.extraction.delta import extract_delta
from tvm_scan.schedules.common.ir import loop
from tvm_scan.schedules.splice import ensure_blocks

CPU_PLANS = (
    "cpu/lanes()",
    "cpu/lanes(lane_block=4)",
    "cpu/lanes(lane_block=16, vectorize=True)",
    "cpu/lanes(lane_block=16, vectorize=True, transpose=True)",
    "cpu/lanes(time_vector=16)",
    "cpu/lanes(time_vector=64, time_runs=True)",
    "cpu/three_phase(chunks=4)",
    "cpu/three_phase(chunks=2, time_vector=16, cache_steps=1024)",
)
CUDA_PLANS = (
    "cuda/sequential(threads_per_block=32)",
    "cuda/lanes(threads_per_block=32)",
    "cuda/lanes(threads_per_block=32, chunks=4)",
    "cuda/serial_tiles(threads_per_block=8, items_per_thread=2)",
    "cuda/serial_tiles(threads_per_block=32, items_per_thread=2, block_tree=warp, "
    "block_load=transposed, stages=2, lanes_per_block=2)",
    "cuda/three_phase(threads_per_block=8, items_per_thread=3)",
    "cuda/single_pass(threads_per_block=32, items_per_thread=2, block_tree=warp)",
)

#: The lines of a loop over ``X`` and ``H`` of ``m`` rows and ``n`` columns, and a state ``S``.
LOOPS = {
    "history": """
    for b in range(m):
        for t in range(n - 9):
            H[b, t] = T.if_then_else(t > 0, H[b, t - 1], T.float32(1)) * X[b, t] + X[b, t]
""",
    "backwards, from a first step": """
    for b in range(m):
        for t in T.serial(8, n - 1):
            H[b, n - 1 - t] = T.if_then_else(t > 8, H[b, n - t], T.float32(1)) + X[b, n - 1 - t]
""",
    "state, read after time": """
    for b in range(m):
        for t in range(n - 9):
            S[b] = S[b] + X[b, t]
        H[b, 0] = S[b]
""",
    "lanes": """
    for a in range(m - 9):
        for t in range(n):
            H[a, t] = T.if_then_else(t > 0, H[a, t - 1], T.float32(1)) + X[a, t]
""",
    "rows and columns of lanes": """
    for a, b in T.grid(m - 9, n - 9):
        for t in range(2):
            G[a, b, t] = T.if_then_else(t > 0, G[a, b, t - 1], T.float32(1)) + X[a, b]
""",
    "a nest beside": """
    for b in range(m):
        for t in range(n):
            H[b, t] = T.if_then_else(t > 0, H[b, t - 1], T.float32(1)) + X[b, t]
    for a, b in T.grid(m - 9, n - 9):
        G[a, b, 0] = X[a, b]
""",
    "a number of steps": """
    for b in range(m):
        for t in range(k - 9):
            S[b] = S[b] * T.float32(-1) + X[b, t]
""",
    "a constant": """
    for b in range(m):
        for t in T.serial(9, 4):
            H[b, t] = T.if_then_else(t > 9, H[b, t - 1], T.float32(1)) + X[b, t]
""",
}
#: Rows and columns: all loops have negative extents, one has, none has.
SIZES = ((3, 1), (3, 8), (40, 1), (17, 43))


def source(lines):
    head = """
@T.prim_func(s_tir=True)
def main(x: T.handle, h: T.handle, s: T.handle, g: T.handle, k: T.int32):
    m, n = T.int32(), T.int32()
    X = T.match_buffer(x, (m, n), "float32")
    H = T.match_buffer(h, (m, n), "float32")
    S = T.match_buffer(s, (m,), "float32")
    G = T.match_buffer(g, (m, n, 2), "float32")
"""
    return tvm.script.from_source(head + lines, {"T": T})


def arguments(m, n):
    rng = np.random.default_rng(m)
    shapes = ((m, n), (m, n), (m,), (m, n, 2))
    return [rng.integers(-1, 2, shape).astype("float32") for shape in shapes]


DELTA = """
@T.prim_func(s_tir=True)
def main(k: T.handle, v: T.handle, s: T.handle, y: T.handle):
    m, n = T.int32(), T.int32()
    K = T.match_buffer(k, (m, n, 8), "float32")
    V = T.match_buffer(v, (m, n, 8), "float32")
    S = T.match_buffer(s, (m, 8, 8), "float32")
    Y = T.match_buffer(y, (m, n, 8), "float32")
    known = T.alloc_buffer((8,), "float32")
    for h, t in T.grid(m, n - 9):
        for j in range(8):
            known[j] = T.float32(0)
            for i in range(8):
                known[j] = known[j] + S[h, i, j] * K[h, t, i]
            for i in range(8):
                S[h, i, j] = S[h, i, j] + (V[h, t, j] - known[j]) * K[h, t, i]
            Y[h, t, j] = known[j]
"""


def run(compiled, m, n, device=None):
    tensors = [tvm.runtime.tensor(array, device or tvm.cpu()) for array in arguments(m, n)]
    compiled["main"](*tensors, n)
    return [tensor.numpy() for tensor in tensors]


def same(got, want):
    return all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))


def differing(name, plans):
    """Return the plans and sizes of which the scan leaves something else than the loop."""
    func, wrong = source(LOOPS[name]), []
    loop = compile_cached(func, target=CPU, plainly=True)
    scans = [
        (p, compile_cached(parallelize(func, CPU, p and ScanPlan.parse(p)), CPU, plainly=True))
        for p in plans
    ]
    for m, n in SIZES:
        want = run(loop, m, n)
        wrong += [(str(p), m, n) for p, scan in scans if not same(run(scan, m, n), want)]
    return wrong


def all_differing():
    few = (None, "cpu/lanes(time_vector=16)")
    return {n: differing(n, CPU_PLANS if n == "history" else few) for n in LOOPS}


PROGRAM = "from tests.programs import test_extents\nprint(repr(test_extents.all_differing()))"


@pytest.fixture(scope="module")
def found():
    words = [sys.executable, "-c", PROGRAM]
    done = forks.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return ast.literal_eval(done.stdout)


@pytest.mark.parametrize("name", LOOPS)
def test_cpu(name, found):
    assert found[name] == []


CUDA_CASES = [("history", plan) for plan in CUDA_PLANS]
CUDA_CASES += [(name, None) for name in ("lanes", "a nest beside", "a constant")]


@pytest.mark.parametrize(("name", "plan"), CUDA_CASES)
def test_cuda(name, plan):
    func = source(LOOPS[name])
    scan = compile_cuda(parallelize(func, CUDA_TARGET, plan and ScanPlan.parse(plan)))
    loop = compile_cached(func, target=CPU, plainly=True)
    for m, n in SIZES:
        with cusim.settings(seed=0, race=True):  # which checks bounds, too
            assert same(run(scan, m, n, tvm.cuda()), run(loop, m, n))


def extents_of(found):
    return [axis.extent for axis in (*found.lanes, found.time)]


@pytest.mark.parametrize("name", LOOPS)
def test_no_extent_is_negative(name):
    """For all sizes: what a plan cuts is a count."""
    analyzer = Analyzer()
    func = source(LOOPS[name])
    for size in tir.shape_of(func.params[0]):
        analyzer.update(size, ConstIntBound(0, ConstIntBound.POS_INF))
    for extent in extents_of(extract(func)):
        assert analyzer.can_prove(extent >= tir.zero_like(extent)), extent


def test_no_extent_of_a_delta_rule_is_negative():
    func = ensure_blocks(tvm.script.from_source(DELTA, {"T": T}))
    extent = extract_delta(func, root_nests(func)[0]).time.extent
    assert Analyzer().can_prove(extent >= tir.zero_like(extent)), extent


def test_extents_that_cannot_be_negative_stay():
    """Sizes of parameters, whatever is made of them."""
    lines = """
    for b in range((m + 15) // 16):
        for t in range(n):
            H[b, t] = T.if_then_else(t > 0, H[b, t - 1], T.float32(1)) + X[b, t]
"""
    rows, columns = extents_of(extract(source(lines)))
    assert "max" not in str(rows)
    assert isinstance(columns, tirx.Var)


@pytest.mark.parametrize("plan", CUDA_PLANS)
def test_huge_constants_on_cuda(plan):
    """The end of the last tile is a number of the time's dtype, or the plan is refused."""
    func = source(LOOPS["a constant"].replace("T.serial(9, 4)", f"range({2**31 - 1})"))
    with pytest.raises(PlanError, match=f"got {2**31 - 1} steps"):
        parallelize(func, CUDA_TARGET, ScanPlan.parse(plan))


@pytest.mark.parametrize("extent", [2**24 + 1, 2**31 - 1])
def test_huge_constants_on_cpu(extent):
    """A loop in runs, the number of which the loop's dtype holds, makes all of its steps."""
    made = loop("t", tirx.IntImm("int32", extent), lambda t: tirx.Evaluate(t))
    assert int(made.extent) == -(-extent // 2**24)
    last = tir.substitute(made.body.extent, {made.loop_var: made.extent - 1})
    assert (int(made.extent) - 1) * 2**24 + int(tir.simplify(last)) == extent
