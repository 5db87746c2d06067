"""Loops that somebody bound to threads, on a CPU: ordinary loops where that is the same program."""

import numpy as np
import pytest
import tvm
from tvm.s_tir import Schedule
from tvm.script import tirx as T

from tests.programs.suite.running import CPU, run_loop
from tests.support.compiled import compile_cached
from tvm_scan import Recurrence, extract, parallel_scan, parallelize
from tvm_scan.errors import RefusalError
from tvm_scan.extraction.threads import is_bound
from tvm_scan.schedules.cpu.leftover import unbind_leftovers
from tvm_scan.schedules.machine.device import DEVICES
from tvm_scan.schedules.splice import ensure_blocks

N, L = 24, 37


@T.prim_func(s_tir=True)
def gated_sum(
    A: T.Buffer((N, L), "float32"), X: T.Buffer((N, L), "float32"), Y: T.Buffer((N, L), "float32")
):
    carry = T.alloc_buffer((1,), "float32", scope="local")
    for b in T.thread_binding(3, thread="blockIdx.x"):
        for i in T.thread_binding(8, thread="threadIdx.x"):
            carry[0] = T.float32(0)
            for t in range(L):
                carry[0] = A[b * 8 + i, t] * carry[0] + X[b * 8 + i, t]
                Y[b * 8 + i, t] = carry[0]


@T.prim_func(s_tir=True)
def running_sum(X: T.Buffer((N, L), "float32"), Y: T.Buffer((N, L), "float32")):
    for i in T.thread_binding(N, thread="blockIdx.x"):
        for t in range(L):
            with T.sblock("sum"):
                vi, vt = T.axis.spatial(N, i), T.axis.scan(L, t)
                Y[vi, vt] = T.if_then_else(vt > 0, Y[vi, vt - 1], T.float32(0)) + X[vi, vt]


@T.prim_func(s_tir=True)
def logistic_map(X: T.Buffer((N, L), "float32"), Y: T.Buffer((N, L), "float32")):
    # No family: the state is multiplied by itself.
    state = T.alloc_buffer((1,), "float32", scope="local")
    for i in T.thread_binding(N, thread="threadIdx.x"):
        state[0] = T.float32(0.5)
        for t in range(L):
            state[0] = X[i, t] * state[0] * (T.float32(1) - state[0])
            Y[i, t] = state[0]


@T.prim_func(s_tir=True)
def no_loop_of_time(X: T.Buffer((N, L), "float32"), Y: T.Buffer((N, L), "float32")):
    total = T.alloc_buffer((N,), "float32", scope="shared")
    for i in T.thread_binding(N, thread="blockIdx.x"):
        for j in T.thread_binding(L, thread="threadIdx.x"):
            with T.sblock("total"):
                vi, vj = T.axis.remap("SR", [i, j])
                with T.init():
                    total[vi] = T.float32(0)
                total[vi] = total[vi] + X[vi, vj]
        for j in T.thread_binding(L, thread="threadIdx.x"):
            with T.sblock("share"):
                vi, vj = T.axis.remap("SS", [i, j])
                Y[vi, vj] = X[vi, vj] / total[vi]


@T.prim_func(s_tir=True)
def another_threads_register(X: T.Buffer((N, L), "float32"), Y: T.Buffer((N, L), "float32")):
    # A thread's register is set in one loop over threads and read in the next one.
    last = T.alloc_buffer((1,), "float32", scope="local")
    for i in T.thread_binding(N, thread="blockIdx.x"):
        for j in T.thread_binding(L, thread="threadIdx.x"):
            last[0] = X[i, j]
        for j in T.thread_binding(L, thread="threadIdx.x"):
            Y[i, j] = last[0]


@T.prim_func(s_tir=True)
def registers_by_thread(X: T.Buffer((N, L), "float32"), Y: T.Buffer((N, L), "float32")):
    # The same with a cell for every thread.
    last = T.alloc_buffer((N, L), "float32", scope="local")
    for i in T.thread_binding(N, thread="blockIdx.x"):
        for j in T.thread_binding(L, thread="threadIdx.x"):
            last[i, j] = X[i, j]
        for j in T.thread_binding(L, thread="threadIdx.x"):
            Y[i, j] = last[i, j]


@T.prim_func(s_tir=True)
def registers_of_others(X: T.Buffer((N, L), "float32"), Y: T.Buffer((N, L), "float32")):
    # A cell for every thread, and a read of another thread's.
    last = T.alloc_buffer((N, L), "float32", scope="local")
    for i in T.thread_binding(N, thread="blockIdx.x"):
        for j in T.thread_binding(L, thread="threadIdx.x"):
            last[i, j] = X[i, j]
        for j in T.thread_binding(L, thread="threadIdx.x"):
            Y[i, j] = last[i, L - 1 - j]


@T.prim_func(s_tir=True)
def shared_by_blocks(X: T.Buffer((N, L), "float32"), Y: T.Buffer((N, L), "float32")):
    # Shared memory is one for each block, and is not set by every one before it is read.
    seen = T.alloc_buffer((L,), "float32", scope="shared")
    for i in T.thread_binding(N, thread="blockIdx.x"):
        for j in T.thread_binding(L, thread="threadIdx.x"):
            seen[j] = seen[j] + X[i, j]
            Y[i, j] = seen[j]


@T.prim_func(s_tir=True)
def sum_for_every_thread(X: T.Buffer((N, L), "float32"), Y: T.Buffer((N, L), "float32")):
    # TVM gives the sum of a declared reduction over threads to each of them.
    total = T.alloc_buffer((N,), "float32", scope="local")
    for i in T.thread_binding(N, thread="blockIdx.x"):
        for j in T.thread_binding(L, thread="threadIdx.x"):
            with T.sblock("total"):
                vi, vj = T.axis.remap("SR", [i, j])
                with T.init():
                    total[vi] = T.float32(0)
                total[vi] = total[vi] + X[vi, vj]
        for j in T.thread_binding(L, thread="threadIdx.x"):
            with T.sblock("share"):
                vi, vj = T.axis.remap("SS", [i, j])
                Y[vi, vj] = X[vi, vj] / total[vi]


@T.prim_func(s_tir=True)
def sum_of_nobody(X: T.Buffer((N, L), "float32"), Y: T.Buffer((N, L), "float32")):
    # The same without a declaration: each thread adds to a register of its own.
    total = T.alloc_buffer((N,), "float32", scope="local")
    for i in T.thread_binding(N, thread="blockIdx.x"):
        total[i] = T.float32(0)
        for j in T.thread_binding(L, thread="threadIdx.x"):
            total[i] = total[i] + X[i, j]
        for j in T.thread_binding(L, thread="threadIdx.x"):
            Y[i, j] = X[i, j] / total[i]


@T.prim_func(s_tir=True)
def one_axis_twice(X: T.Buffer((8, 8), "float32"), Y: T.Buffer((8, 8), "float32")):
    for i in T.thread_binding(8, thread="threadIdx.x"):
        for j in T.thread_binding(8, thread="threadIdx.x"):
            Y[i, j] = X[i, j]


@T.prim_func(s_tir=True)
def waits(X: T.Buffer((8, 8), "float32"), Y: T.Buffer((8, 8), "float32")):
    for i in T.thread_binding(8, thread="threadIdx.x"):
        for j in range(8):
            Y[i, j] = X[i, j]
            T.evaluate(T.tvm_storage_sync("shared"))


def arrays_of(func):
    rng = np.random.default_rng(0)
    shapes = [[int(e) for e in param.ty.shape] for param in func.params]
    return [rng.uniform(0.1, 1, shape).astype("float32") for shape in shapes]


def run(func, arrays):
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    compile_cached(func, CPU)(*tensors)
    return tensors[-1].numpy()


def without_threads(func):
    sch = Schedule(ensure_blocks(func))
    unbind_leftovers(sch, DEVICES["llvm"])
    return sch.mod["main"].with_attr("global_symbol", "main")


@pytest.mark.parametrize("plan", [None, "cpu/sequential()", "cpu/three_phase(chunks=4)"])
@pytest.mark.parametrize("func", [gated_sum, running_sum])
def test_recurrences(func, plan):
    assert isinstance(found := extract(func), Recurrence), found.message()
    scheduled = parallelize(func, CPU, plan)
    assert not is_bound(scheduled.body)
    arrays = arrays_of(func)
    np.testing.assert_allclose(run(scheduled, arrays), run_loop(func, arrays)[-1], rtol=1e-5)


def test_of_a_schedule():
    sch = Schedule(running_sum)
    parallel_scan(sch, sch.get_sblock("sum"), "cpu/sequential()", target=CPU)
    assert not is_bound(sch.mod["main"].body)


@pytest.mark.parametrize(
    "func", [logistic_map, no_loop_of_time, registers_by_thread, sum_for_every_thread]
)
def test_what_is_no_recurrence(func):
    scheduled = without_threads(func)
    assert not is_bound(scheduled.body)
    assert "T.parallel" in scheduled.script()
    arrays = arrays_of(func)
    np.testing.assert_array_equal(run(scheduled, arrays), run_loop(func, arrays)[-1])


@pytest.mark.parametrize(
    ("func", "reason"),
    [
        (another_threads_register, "last, of scope local, before it reads it"),
        (registers_of_others, "last, of scope local, before it reads it"),
        (sum_of_nobody, "total, of scope local, before it reads it"),
        (shared_by_blocks, "seen, of scope shared, before it reads it"),
        (one_axis_twice, "one loop over threadIdx.x around a statement"),
        (waits, "expected stores only"),
    ],
)
def test_what_loops_are_not(func, reason):
    with pytest.raises(RefusalError, match=reason):
        without_threads(func)
    with pytest.raises(RefusalError, match=reason):
        parallelize(func, CPU)


def test_beside_a_recurrence():
    """A function with a recurrence and another nest, both bound."""

    @T.prim_func(s_tir=True)
    def both(
        X: T.Buffer((N, L), "float32"),
        Z: T.Buffer((N, L), "float32"),
        Y: T.Buffer((N, L), "float32"),
    ):
        for i in T.thread_binding(N, thread="blockIdx.x"):
            for j in T.thread_binding(L, thread="threadIdx.x"):
                with T.sblock("twice"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    Z[vi, vj] = X[vi, vj] * T.float32(2)
        for i in T.thread_binding(N, thread="blockIdx.x"):
            for t in range(L):
                with T.sblock("sum"):
                    vi, vt = T.axis.spatial(N, i), T.axis.scan(L, t)
                    Y[vi, vt] = T.if_then_else(vt > 0, Y[vi, vt - 1], T.float32(0)) + Z[vi, vt]

    scheduled = parallelize(both, CPU)
    assert not is_bound(scheduled.body)
    arrays = arrays_of(both)
    np.testing.assert_allclose(run(scheduled, arrays), run_loop(both, arrays)[-1], rtol=1e-5)
