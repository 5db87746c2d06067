"""The simulated CUDA device: blocks that wait for each other, and what goes wrong where they do."""

import numpy as np
import pytest
import tvm
from tvm.script import tirx as T

from tests.support import cusim
from tests.support.cuda_harness import compile_cuda, emit_cuda, run_cuda

pytestmark = [
    pytest.mark.skipif(not cusim.is_simulated(), reason="tests of the simulator itself"),
]

BLOCKS = 12
LaunchError = tvm.error.InternalError


def chain(tickets):
    """Block b adds x[b] to what block b - 1 announced, and announces the sum."""

    @T.prim_func(s_tir=True)
    def main(
        x: T.Buffer((BLOCKS, 32), "int32"),
        state: T.Buffer((2 * BLOCKS + 1,), "int32"),
        y: T.Buffer((BLOCKS, 32), "int32"),
    ):
        T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        for b in T.thread_binding(BLOCKS, thread="blockIdx.x"):
            with T.sblock("block"):
                T.reads()
                T.writes()
                shared = T.sblock_alloc_buffer((2,), "int32", scope="shared")
                for tx in T.thread_binding(32, thread="threadIdx.x"):
                    with T.sblock("thread"):
                        T.reads()
                        T.writes()
                        flag = T.sblock_alloc_buffer((1,), "int32", scope="local")
                        before = T.sblock_alloc_buffer((1,), "int32", scope="local")
                        mine = T.sblock_alloc_buffer((1,), "int32", scope="local")
                        if tx == 0:
                            shared[0] = b
                            if tickets:
                                shared[0] = T.cuda.atomic_add(
                                    T.address_of(state[2 * BLOCKS]), T.int32(1)
                                )
                        mine[0] = shared[0]
                        before[0] = 0
                        if tx == 0:
                            if mine[0] > 0:
                                flag[0] = 0
                                while flag[0] == 0:
                                    T.ptx.ld.acquire.gpu.global_.s32(
                                        flag[0], T.address_of(state[mine[0] - 1])
                                    )
                                T.ptx.ld.relaxed.gpu.global_.s32(
                                    before[0], T.address_of(state[BLOCKS + mine[0] - 1])
                                )
                            T.ptx.st.relaxed.gpu.global_.s32(
                                T.address_of(state[BLOCKS + mine[0]]), before[0] + x[mine[0], 0]
                            )
                            T.ptx.st.release.gpu.global_.s32(
                                T.address_of(state[mine[0]]), T.int32(1)
                            )
                            shared[1] = before[0]
                        y[mine[0], tx] = shared[1] + x[mine[0], tx]

    return main


X = np.arange(BLOCKS * 32, dtype="int32").reshape(BLOCKS, 32)
WANT = X + np.concatenate([[0], np.cumsum(X[:-1, 0])])[:, None]


@pytest.fixture(scope="module")
def with_tickets():
    return compile_cuda(chain(True))


def run(executable, seed, race=False):
    state = np.zeros(2 * BLOCKS + 1, "int32")
    with cusim.settings(seed=seed, race=race):
        args = [tvm.runtime.tensor(a, tvm.cuda(0)) for a in (X, state, np.zeros_like(X))]
        executable["main"](*args)
        return args[2].numpy()


@pytest.mark.parametrize("race", [False, True])
def test_blocks_that_wait_see_what_was_announced(with_tickets, race):
    """Also the detector: the shared memory of a block that stops is its own."""
    for seed in range(12):
        np.testing.assert_array_equal(run(with_tickets, seed, race), WANT)


def test_without_tickets_a_device_that_is_full_hangs():
    executable = compile_cuda(chain(False))
    np.testing.assert_array_equal(run(executable, 0), WANT)  # ascending: nobody waits
    message = (
        r"deadlock: thread \(0,0,0\) waits at line \d+ `.*acquire.*` for a value that none of the "
        r"4 blocks that have begun will write; the device holds no more, and 8 have not begun"
    )
    with pytest.raises(LaunchError, match=message):
        run(executable, 1)


def test_a_value_that_nobody_announces_is_waited_for_in_vain(with_tickets):
    executable = rebuilt(
        "st_release_gpu_global_s32((&(state_ptr[mine_ptr[0]])), 1)",
        "st_release_gpu_global_s32((&(state_ptr[mine_ptr[0]])), 0)",
    )
    for seed in (0, 1, 2):
        with pytest.raises(LaunchError, match=r"deadlock: .* will write"):
            run(executable, seed)


def rebuilt(old, new):
    def change(source):
        assert source.count(old) == 1, source
        return source.replace(old, new)

    with cusim.rewritten_source(change):
        return compile_cuda(chain(True))


def test_a_flag_that_does_not_release_is_found():
    """The flag may be seen before the data: then the sum is that of rubbish."""
    source = emit_cuda(chain(True))
    assert source.count("tvm_builtin_ptx_st_release_gpu_global_s32((") == 1
    executable = rebuilt(
        "tvm_builtin_ptx_st_release_gpu_global_s32((",
        "tvm_builtin_ptx_st_relaxed_gpu_global_s32((",
    )
    wrong = [not np.array_equal(run(executable, seed), WANT) for seed in range(2, 22)]
    assert any(wrong)


@pytest.mark.parametrize("order", ["release", "relaxed"])
def test_the_race_detector_knows_what_a_release_orders(order):
    """Data in plain memory: ordered by a release that is acquired, a race without it."""

    def change(source):
        source = source.replace(
            "tvm_builtin_ptx_ld_relaxed_gpu_global_s32(before_ptr[0], (&(state_ptr[",
            "before_ptr[0] = *((&(state_ptr[",
        )
        old = "tvm_builtin_ptx_st_relaxed_gpu_global_s32((&(state_ptr[(mine_ptr[0] + 12)])), "
        assert source.count(old) == 1, source
        source = source.replace(old, "state_ptr[(mine_ptr[0] + 12)] = (")
        if order == "relaxed":
            source = source.replace(
                "tvm_builtin_ptx_st_release_gpu_global_s32((",
                "tvm_builtin_ptx_st_relaxed_gpu_global_s32((",
            )
        return source

    with cusim.rewritten_source(change):
        executable = compile_cuda(chain(True))
    if order == "release":
        for seed in range(6):
            np.testing.assert_array_equal(run(executable, seed, race=True), WANT)
    else:
        with pytest.raises(LaunchError, match="write-read race on global memory"):
            run(executable, 3, race=True)


def test_what_only_blocks_that_wait_do_is_watched():
    """A race while a block waits: in the first order none does, and every run gives the same."""

    def change(source):
        line = next(
            line for line in source.splitlines() if "ld_acquire" in line and "state" in line
        )
        assert source.count(line) == 1, source
        return source.replace(line, line + " if (flag_ptr[0] == 0) y_ptr[0] = x_ptr[0];")

    with cusim.rewritten_source(change):
        executable = compile_cuda(chain(True))
    args = [X, np.zeros(2 * BLOCKS + 1, "int32"), np.zeros_like(X)]
    got = run_cuda(chain(True), args, executable=executable, race=False)
    np.testing.assert_array_equal(got[2], WANT)
    with pytest.raises(LaunchError, match="race on global memory"):
        run_cuda(chain(True), args, executable=executable)
