"""The simulated CUDA device: what a launch finds in memory, where that ends, how large it is."""

import ctypes

import numpy as np
import pytest
import tvm

from tests.gpu.test_cusim import THREADS, LaunchError, dynamic
from tests.gpu.test_cusim_accesses import LaunchConfig
from tests.gpu.test_cusim_async import rows_backwards
from tests.support import cusim
from tests.support.cuda_harness import compile_cuda

pytestmark = [
    pytest.mark.skipif(not cusim.is_simulated(), reason="tests of the simulator itself"),
]


def test_fresh_memory_of_the_device_is_rubbish_that_differs_by_seed():
    found = []
    for seed in range(3):
        with cusim.settings(seed=seed):
            found.append(tvm.runtime.empty((64,), "float32", tvm.cuda(0)).numpy())
    bits = [values.tobytes() for values in found]
    assert len({*bits}) == 3 and bytes(256) not in bits
    assert np.isnan(np.concatenate(found)).any()


def of_dynamic(line, seed=0, race=False):
    """What a kernel with 256 bytes of dynamic shared memory makes of its second argument."""

    def rewrite(source):
        start = source.index(";", source.index("shared_ptr[]")) + 1
        return source[:start] + f"\n{line}\n}}\n"

    with cusim.rewritten_source(rewrite):
        entry = compile_cuda(dynamic(256))["main"]
    x, y = (tvm.runtime.tensor(np.zeros(THREADS, "uint8"), tvm.cuda(0)) for _ in range(2))
    with cusim.settings(seed=seed, race=race):
        entry(x, y)
    return y.numpy()


def test_dynamic_shared_memory_is_rubbish_that_differs_by_seed():
    read = "y_ptr[threadIdx.x] = shared_ptr[threadIdx.x];"
    assert len({of_dynamic(read, seed=seed).tobytes() for seed in range(3)}) == 3


@pytest.mark.parametrize("at", [256, 255 + 64, 4096])
def test_dynamic_shared_memory_ends_where_the_launch_says(at):
    of_dynamic("if (threadIdx.x == 0) shared_ptr[255] = 1;", race=True)
    with pytest.raises(LaunchError, match="out-of-bounds write of 1 bytes at line"):
        of_dynamic(f"shared_ptr[{at}] = 1;", race=True)


# ---- asynchronous copies, and launches ------------------------------------------------------


def copying(change):
    with cusim.rewritten_source(change), cusim.settings(race=True):
        function = compile_cuda(rows_backwards)["rows_backwards"]
        x = np.zeros((6, 256), "float32")
        function(*(tvm.runtime.tensor(x, tvm.cuda(0)) for _ in range(2)))


def test_what_an_asynchronous_copy_reads_belongs_to_it():
    with pytest.raises(LaunchError, match="race on global memory"):
        copying(lambda s: s.replace("__syncthreads();", "((float*)x_ptr)[0] = 1; __syncthreads();"))


def test_an_asynchronous_copy_leads_to_shared_memory():
    with pytest.raises(LaunchError, match="copy that does not lead to shared memory"):
        copying(lambda s: s.replace("&(s_ptr[", "&(y_ptr[", 1))


@pytest.mark.parametrize(
    ("grid", "block", "said"),
    [
        ((1, 1, 1), (1, 1, 64), None),
        ((1, 1, 1), (1, 1, 65), "invalid block size"),
        ((1, 1, 1), (0, 1, 1), "invalid block size"),
        ((0, 1, 1), (1, 1, 1), "invalid grid size"),
        ((1, 65536, 1), (1, 1, 1), "invalid grid size"),
        ((1, 1, 65536), (1, 1, 1), "invalid grid size"),
    ],
)
def test_the_limits_of_a_launch(grid, block, said):
    driver = cusim._State.driver
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    image = cusim.build('extern "C" __global__ void nothing() {}').read_bytes()
    assert driver.cuModuleLoadData(ctypes.byref(module), image) == 0
    assert driver.cuModuleGetFunction(ctypes.byref(function), module, b"nothing") == 0
    config = LaunchConfig(*grid, *block, 0, None, None, 0)
    cusim.clear_error()
    code = driver.cuLaunchKernelEx(ctypes.byref(config), function, None, None)
    assert (code == 0) == (said is None)
    assert said is None or said in cusim.last_error()
    assert driver.cuModuleUnload(module) == 0
