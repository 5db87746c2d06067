"""Asynchronous copies on the simulated device: what arrives when, and what is a race."""

import re

import numpy as np
import pytest
import tvm
from tvm.script import tirx as T

from tests.support import cusim
from tests.support.cuda_harness import check_nvcc, compile_cuda, run_cuda

pytestmark = [
    pytest.mark.skipif(not cusim.is_simulated(), reason="tests of the simulator itself"),
]

COPY, COMMIT, WAIT = "cp.async.cg.shared.global", "cp.async.commit_group", "cp.async.wait_group"
WAITS = r"\n *tvm_builtin_ptx_cp_async_wait_group\w*\(\);(?=\n *__sync)"


@T.prim_func(s_tir=True)
def rows_backwards(x: T.Buffer((6, 256), "float32"), y: T.Buffer((6, 256), "float32")):
    """Every row in turn from its end, the next one on its way."""
    for _ in T.thread_binding(1, thread="blockIdx.x"):
        for tx in T.thread_binding(64, thread="threadIdx.x"):
            with T.sblock("b"):
                v = T.axis.spatial(64, tx)
                T.reads(x[0:6, 0:256])
                T.writes(y[0:6, 0:256])
                s = T.sblock_alloc_buffer((2, 256), "float32", scope="shared")
                T.ptx[COPY](T.address_of(s[0, v * 4]), T.address_of(x[0, v * 4]), 16)
                T.ptx[COMMIT]()
                for i in range(6):
                    T.ptx[WAIT](0)
                    T.tvm_storage_sync("shared")
                    if i < 5:
                        T.ptx[COPY](
                            T.address_of(s[(i + 1) % 2, v * 4]), T.address_of(x[i + 1, v * 4]), 16
                        )
                    T.ptx[COMMIT]()
                    for j in T.vectorized(4):
                        y[i, v * 4 + j] = s[i % 2, (63 - v) * 4 + j]


def rows():
    x = np.arange(6 * 256, dtype="float32").reshape(6, 256)
    return x, x.reshape(6, 64, 4)[:, ::-1].reshape(6, 256)


def broken(change, seed, race):
    """The result of the kernel with its source changed."""
    x, _ = rows()
    with cusim.rewritten_source(change), cusim.settings(seed=seed, race=race):
        function = compile_cuda(rows_backwards)["rows_backwards"]
        device = tvm.cuda(0)
        tensors = [tvm.runtime.tensor(a, device) for a in (x, np.zeros_like(x))]
        function(*tensors)
        return tensors[1].numpy()


def test_a_pipeline_of_copies():
    x, want = rows()
    np.testing.assert_array_equal(run_cuda(rows_backwards, [x, np.zeros_like(x)])[1], want)


def test_nvcc_takes_the_same_source():
    (taken,) = check_nvcc(rows_backwards).values()
    assert taken.shared_bytes == 2 * 256 * 4


def without_waits(source):
    changed, count = re.subn(WAITS, "", source)
    assert count == 1
    return changed


def waiting_for_less(source):
    changed, count = re.subn(r"cp\.async\.wait_group 0", "cp.async.wait_group 1", source)
    assert count == 1
    return changed


def without_barriers(source):
    assert source.count("__syncthreads();") == 1
    return source.replace("__syncthreads();", ";")


def into_the_same_buffer(source):
    changed, count = re.subn(r"\(\(i \+ 1\) & 1\)", "(i & 1)", source)
    assert count == 1
    return changed


@pytest.mark.parametrize("change", [without_waits, waiting_for_less])
def test_what_was_not_waited_for_is_not_there(change):
    _, want = rows()
    assert (broken(change, 0, False) != want).any()
    with pytest.raises(
        tvm.error.InternalError, match=r"write-read race on shared memory.*cp_async"
    ):
        broken(change, 0, True)


def test_without_a_barrier_others_see_nothing():
    with pytest.raises(tvm.error.InternalError, match="race on shared memory"):
        broken(without_barriers, 0, True)


def test_a_copy_over_what_is_still_read():
    _, want = rows()
    # As late as possible the copy comes after the read; at once, before it.
    assert (broken(into_the_same_buffer, 1, False) != want).any()
    with pytest.raises(tvm.error.InternalError, match="race on shared memory"):
        broken(into_the_same_buffer, 0, True)


def test_addresses_that_are_not_aligned():
    def change(source):
        assert "&(s_ptr[" in source
        return source.replace("&(s_ptr[", "&(s_ptr[1 + ", 1)

    with pytest.raises(tvm.error.InternalError, match="no multiples of its size, of 16 bytes"):
        broken(change, 0, False)
