"""Kernels hold nothing that TVM's passes simplify again at every access: they took minutes."""

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.ir import Call
from tvm.s_tir import SBlock

from tests.programs.test_first_steps import loop_of, loops_result, run, step_of
from tvm_scan import ScanPlan, parallelize, tir

TERMS = ((3, 1, 1), (-5, 2, 2))
#: The carry of integers, which a step names, and its element, whose parts depend on one another.
PLANS = [
    "cpu/lanes(time_vector=16)",
    "cpu/three_phase(chunks=8)",
    "cpu/three_phase(chunks=8, time_vector=16)",
    "cpu/three_phase(chunks=4, time_vector=16, cache_steps=1024)",
]


def scheduled(length, plan):
    loop = loop_of(step_of(TERMS), length, symbolic=length is None)
    return parallelize(loop, "llvm", ScanPlan.parse(plan))


def indices_of(stmt):
    accesses = [*tir.nodes(stmt, tirx.BufferStore), *tir.loads(stmt)]
    return [index for access in accesses for index in access.indices]


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("length", [4096, None])
def test_no_integer_that_is_data_has_a_name(length, plan):
    """TVM's search for smaller buffers takes all named integers for indices."""
    func = scheduled(length, plan)
    used = tir.variables(indices_of(func.body))
    binds = tir.nodes(func.body, tirx.Bind)
    named = [bind.var for bind in binds if tir.dtype_of(bind.var) in ("int32", "int64")]
    assert [var.name for var in named if var not in used] == []


@pytest.mark.parametrize("plan", [plan for plan in PLANS if "chunks" in plan and "vector" in plan])
def test_no_access_in_a_loop_computes_the_borders_of_pieces(plan):
    """Borders of a length known at run time are quotients and choices: registers hold them."""
    func = scheduled(None, plan)
    length = tir.shape_of(func.params[0])[1]
    blocks = [block for block in tir.nodes(func.body, SBlock) if block.name_hint != "root"]
    found = [block.name_hint for block in blocks]
    assert {"scan_reduce", "scan_replay"} <= set(found)
    for block in blocks:
        conditions = [c.args[0] for c in tir.nodes(block.body, Call) if _chooses(c)]
        bounds = [loop.extent for loop in tir.nodes(block.body, tirx.For)]
        for expr in (*conditions, *indices_of(block.body)):
            assert not tir.contains_var(expr, [length]), (block.name_hint, expr)
        assert all(len(tir.nodes(bound, tirx.Select)) == 0 for bound in bounds)


def _chooses(call):
    return tir.call_name(call) == "prim.if_then_else"


@pytest.mark.timeout(100)
def test_a_filter_of_integers_is_the_loops():
    """Without registers this took more than two minutes to compile, now four seconds."""
    built = tvm.compile(scheduled(None, PLANS[2]), target="llvm")
    rng = np.random.default_rng(5)
    for length in (1, 40, 577, 5000):
        data = rng.integers(-(2**31), 2**31 - 1, (2, length), dtype=np.int32)
        np.testing.assert_array_equal(run(built, data), loops_result(TERMS, data))


def test_a_name_that_an_index_uses_stays_one():
    """What is read of memory to find a cell is no data."""
    from tvm.script import tirx as T

    from tvm_scan.schedules.common.data_names import with_data_in_registers

    @T.prim_func(s_tir=True)
    def gather(K: T.Buffer((8,), "int32"), X: T.Buffer((64,), "int32"), H: T.Buffer((8,), "int32")):
        for t in range(8):
            with T.sblock("one"):
                v = T.axis.spatial(8, t)
                base: T.let[T.int32] = K[v]
                place: T.let[T.int32] = base * 2
                value: T.let[T.int32] = X[place] * 3
                H[v] = value * value

    held = with_data_in_registers(gather.body)
    assert [bind.var.name for bind in tir.nodes(held, tirx.Bind)] == ["base", "place"]
    assert [b.name for s in tir.nodes(held, SBlock) for b in s.alloc_buffers] == ["value"]
