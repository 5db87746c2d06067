"""Rows against the order of memory are vectors in machine code, and the numbers of the loop."""

import re

import numpy as np
import pytest
import tvm
from tvm.script import tirx as T
from tvm.target import Target

from tests.support.compiled import compile_cached
from tvm_scan import ScanPlan, library, parallelize

CPU = Target.from_device("cpu")
PLANS = (
    "cpu/lanes(time_vector=16)",
    "cpu/lanes(time_vector=64, time_runs=True)",
    "cpu/lanes(time_vector=16, nontemporal=True)",
    "cpu/three_phase(chunks=2, time_vector=16)",
)


def machine_code(func, plan, mcpu):
    target = Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": mcpu, "num-cores": 2})
    built = tvm.compile(parallelize(func, target, ScanPlan.parse(plan)), target=target)
    texts = [module.inspect_source("asm") for module in (built.mod, *built.mod.imports)]
    return max(texts, key=len)


def instructions(text):
    """Of the block with the most vectors: the steps of one vector of time."""
    blocks = re.split(r"\n(?=\.LBB|\w+:)", text)
    lines = max(blocks, key=lambda block: len(re.findall("[yz]mm", block))).splitlines()
    return [line.split()[0] for line in lines if re.match(r"\t[a-z]", line)]


@pytest.mark.parametrize("mcpu", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("plan", [*PLANS[:2], PLANS[3]])
@pytest.mark.parametrize(("lanes", "layout"), [(2, "dl"), (1, "ld")])
def test_no_cell_is_moved_by_itself(lanes, layout, plan, mcpu):
    """Cell by cell the reversed loop had two to four times the instructions."""
    forward, backward = (
        instructions(machine_code(func, plan, mcpu))
        for func in (
            library.linear_recurrence(lanes, 4096, layout=layout, reverse=reverse)
            for reverse in (False, True)
        )
    )
    assert len(backward) <= 1.5 * len(forward)
    assert backward.count("vinsertps") <= forward.count("vinsertps") + 4


@T.prim_func(s_tir=True)
def in_place(A: T.Buffer((3, 150), "float32"), X: T.Buffer((3, 150), "float32")):
    """Each cell is read before it is written, as a scan in place does."""
    for b in range(3):
        h = T.sblock_alloc_buffer((1,), "float32")
        h[0] = T.float32(1)
        for t in range(150):
            h[0] = A[b, 149 - t] * h[0] + X[b, 149 - t]
            X[b, 149 - t] = h[0]


@T.prim_func(s_tir=True)
def mixed(
    A: T.Buffer((3, 150), "float32"),
    X: T.Buffer((151,), "float64"),
    N: T.Buffer((3, 150), "int8"),
    H: T.Buffer((3, 150), "float32"),
    G: T.Buffer((3, 150), "float64"),
):
    """Forward and backward rows, of other widths, a row that all lanes share, two outputs."""
    for b in range(3):
        h = T.sblock_alloc_buffer((1,), "float32")
        h[0] = T.float32(1)
        for t in range(150):
            h[0] = A[b, t] * h[0] + T.Cast("float32", X[150 - t]) + T.Cast("float32", N[b, 149 - t])
            H[b, 149 - t] = h[0]
            G[b, t] = T.Cast("float64", h[0]) * X[149 - t]


def filled(func):
    rng = np.random.default_rng(3)
    shapes = [[int(n) for n in param.ty.shape] for param in func.params]
    dtypes = [str(param.ty.dtype) for param in func.params]
    return [
        (rng.integers(-3, 4, s) if d == "int8" else rng.random(s) * 0.5).astype(d)
        for s, d in zip(shapes, dtypes, strict=True)
    ]


#: Past the caches go only rows in rising order.
column = library.linear_recurrence(1, 150, layout="ld", reverse=True)
RUNS = [(func, plan) for func in (in_place, mixed, column) for plan in PLANS]
RUNS = [(func, plan) for func, plan in RUNS if func is mixed or plan != PLANS[2]]


@pytest.mark.parametrize(
    ("func", "plan"), RUNS, ids=lambda v: v if isinstance(v, str) else str(v.attrs["global_symbol"])
)
def test_as_the_loop(func, plan):
    results = []
    for scheduled in (func, parallelize(func, CPU, ScanPlan.parse(plan))):
        tensors = [tvm.runtime.tensor(array) for array in filled(func)]
        compile_cached(scheduled, target=CPU)(*tensors)
        results.append([tensor.numpy() for tensor in tensors])
    for want, got in zip(*results, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-5)
