"""Small rewrites, before and after: the scheduled function is structurally what one would write."""

import tvm
from tvm.script import tirx as T
from tvm.target import Target

from tests.support.cuda_harness import CUDA_TARGET
from tvm_scan import ScanPlan, parallelize

CPU = Target.from_device("cpu")


@T.prim_func(s_tir=True)
def before(X: T.Buffer((2, 8), "float32"), Y: T.Buffer((2, 8), "float32")):
    for b, t in T.grid(2, 8):
        with T.sblock("scan"):
            vb = T.axis.spatial(2, b)
            vt = T.axis.scan(8, t)
            T.reads(X[vb, vt], Y[vb, vt - 1])
            T.writes(Y[vb, vt])
            Y[vb, vt] = T.if_then_else(vt > 0, Y[vb, vt - 1], T.float32(0)) + X[vb, vt]


@T.prim_func(s_tir=True)
def lanes_over_cores(X: T.Buffer((2, 8), "float32"), Y: T.Buffer((2, 8), "float32")):
    T.func_attr({"tirx.is_scheduled": True})
    for row in T.parallel(2):
        with T.sblock("scan_lanes"):
            v_row = T.axis.spatial(2, row)
            T.reads(X[0:2, 0:8])
            T.writes(Y[0:2, 0:8])
            new = T.sblock_alloc_buffer((1, 1), "float32")
            old = T.sblock_alloc_buffer((1, 1), "float32")
            old[0, 0] = T.float32(0)
            for t in range(8):
                new[0, 0] = old[0, 0] + X[v_row, t]
                Y[v_row, t] = new[0, 0]
                old[0, 0] = new[0, 0]


@T.prim_func(s_tir=True)
def two_chunks(X: T.Buffer((2, 8), "float32"), Y: T.Buffer((2, 8), "float32")):
    T.func_attr({"tirx.is_scheduled": True})
    chunk = T.sblock_alloc_buffer((2, 2), "float32")
    carry = T.sblock_alloc_buffer((2, 2), "float32")
    for task in T.parallel(4):
        with T.sblock("scan_reduce"):
            v_row = T.axis.spatial(2, task // 2)
            v_group = T.axis.spatial(2, task % 2)
            T.reads(Y[0:2, 0:8], X[0:2, 0:8])
            T.writes(chunk[0:2, 0:2])
            new = T.sblock_alloc_buffer((1, 1), "float32")
            old = T.sblock_alloc_buffer((1, 1), "float32")
            held = T.sblock_alloc_buffer((1,), "float32")
            held[0] = T.float32(0)
            for n in range(4):
                held[0] = held[0] + X[v_row, v_group * 4 + n]
            chunk[v_row, v_group] = held[0]
    for row in T.parallel(2):
        with T.sblock("scan_carries"):
            v_row = T.axis.spatial(2, row)
            T.reads(Y[0:2, 0:8], X[0:2, 0:8], chunk[0:2, 0:2])
            T.writes(carry[0:2, 0:2])
            new = T.sblock_alloc_buffer((1, 1), "float32")
            old = T.sblock_alloc_buffer((1, 1), "float32")
            old[0, 0] = T.float32(0)
            for c in range(2):
                carry[v_row, c] = old[0, 0]
                old[0, 0] = old[0, 0] + chunk[v_row, c]
    for task in T.parallel(4):
        with T.sblock("scan_replay"):
            v_row = T.axis.spatial(2, task // 2)
            v_group = T.axis.spatial(2, task % 2)
            T.reads(X[0:2, 0:8], carry[0:2, 0:2])
            T.writes(Y[0:2, 0:8])
            new = T.sblock_alloc_buffer((1, 1), "float32")
            old = T.sblock_alloc_buffer((1, 1), "float32")
            old[0, 0] = carry[v_row, v_group]
            for n in range(4):
                new[0, 0] = old[0, 0] + X[v_row, v_group * 4 + n]
                Y[v_row, v_group * 4 + n] = new[0, 0]
                old[0, 0] = new[0, 0]


@T.prim_func(s_tir=True)
def thread_per_lane(X: T.Buffer((2, 8), "float32"), Y: T.Buffer((2, 8), "float32")):
    T.func_attr({"tirx.is_scheduled": True})
    for bx in T.thread_binding(1, thread="blockIdx.x"):
        for tx in T.thread_binding(32, thread="threadIdx.x"):
            with T.sblock("scan_lanes"):
                v_row = T.axis.spatial(32, bx * 32 + tx)
                T.reads(X[0:2, 0:8])
                T.writes(Y[0:2, 0:8])
                new = T.sblock_alloc_buffer((1, 1), "float32", scope="local")
                old = T.sblock_alloc_buffer((1, 1), "float32", scope="local")
                if v_row < 2:
                    old[0, 0] = T.float32(0)
                    for t in range(8):
                        new[0, 0] = old[0, 0] + X[v_row, t]
                        Y[v_row, t] = new[0, 0]
                        old[0, 0] = new[0, 0]


def assert_becomes(after, plan, target=CPU):
    got = parallelize(before, target, ScanPlan.parse(plan))
    tvm.ir.assert_structural_equal(
        got.without_attr("global_symbol"), after.without_attr("global_symbol")
    )


def test_lanes():
    assert_becomes(lanes_over_cores, "cpu/lanes()")


def test_three_phases():
    assert_becomes(two_chunks, "cpu/three_phase(chunks=2)")


def test_thread_per_lane():
    assert_becomes(thread_per_lane, "cuda/lanes(threads_per_block=32)", CUDA_TARGET)


def test_sequential_changes_nothing_but_the_mark():
    got = parallelize(before, CPU, ScanPlan.of("cpu", "sequential"))
    tvm.ir.assert_structural_equal(got, before.with_attr("tirx.is_scheduled", True))
