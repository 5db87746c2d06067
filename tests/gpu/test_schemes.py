"""The bench's own kernels after published schemes: their text on the simulated device."""

import ctypes

import numpy as np
import pytest

from bench.gpu_cases import Case
from tests import ROOT
from tests.support import cusim
from tests.support.cusim import nvcc

pytestmark = [
    pytest.mark.skipif(not cusim.is_simulated(), reason="launches by the simulated driver"),
]

SOURCE = (ROOT / "bench" / "gpu_schemes.cuh").read_text()


class Launch(ctypes.Structure):
    """The grid, the block and nothing else, as ``cuLaunchKernelEx`` takes them."""

    _fields_ = [
        ("sizes", ctypes.c_uint * 7),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint),
    ]


def launched(name, grid, block, arrays, sizes, *, seed=0, race=False):
    """The arrays after a launch; the last one is the output."""
    driver = cusim._State.driver
    for function in (driver.cusim_allocate,):
        function.restype, function.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    driver.cusim_release.argtypes = [ctypes.c_void_p]
    driver.cusim_copy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    image = cusim.build(SOURCE).read_bytes()
    module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    assert driver.cuModuleLoadData(ctypes.byref(module), image) == 0, cusim.last_error()
    assert driver.cuModuleGetFunction(ctypes.byref(kernel), module, name.encode()) == 0
    with cusim.settings(seed=seed, race=race):
        places = [driver.cusim_allocate(array.nbytes) for array in arrays]
        for place, array in zip(places[:-1], arrays[:-1], strict=True):
            assert driver.cusim_copy(place, array.ctypes.data, array.nbytes)
        values = [ctypes.c_void_p(p) for p in places] + [ctypes.c_int(n) for n in sizes]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        config = Launch((grid, 1, 1, block, 1, 1, 0))
        status = driver.cuLaunchKernelEx(ctypes.byref(config), kernel, pointers, None)
        assert status == 0, cusim.last_error()
        made = np.empty_like(arrays[-1])
        assert driver.cusim_copy(made.ctypes.data, places[-1], made.nbytes)
    for place in places:
        driver.cusim_release(place)
    driver.cuModuleUnload(module)
    return made


def in_every_order(*launch):
    found = [launched(*launch, race=True)]
    found += [launched(*launch, seed=seed) for seed in (0, 1, 2)]
    assert all(other.tobytes() == found[0].tobytes() for other in found)
    return found[0]


def arguments(case):
    """Inputs, an empty output and the float64 result of a case of the bench."""
    inputs = case.inputs(np.random.default_rng(2))
    (name,) = case.outputs
    want = case.expected(inputs)[name]
    return [*inputs.values(), np.empty(want.shape, "float32")], want


@pytest.mark.skipif(not nvcc.nvcc_available(), reason="nvcc is missing: no resources to read")
def test_nothing_spills():
    found = nvcc.compile_resources(SOURCE)
    assert found.keys() == {
        "block_per_row",
        "block_per_channel",
        "block_per_head",
        "thread_per_row",
    }
    assert not any(taken.spill_stores or taken.stack for taken in found.values())


def close(got, want, steps):
    np.testing.assert_allclose(got, want, atol=8 * 2.0**-24 * steps * np.abs(want).max())


@pytest.mark.parametrize(("threads", "length"), [(32, 100), (64, 700), (128, 512)])
def test_affine_by_blocks(threads, length):
    arrays, want = arguments(Case("affine", (3, length)))
    close(in_every_order("block_per_row", 3, threads, arrays, [length]), want, length)


def test_affine_by_threads():
    arrays, want = arguments(Case("affine", (150, 17)))
    close(in_every_order("thread_per_row", 2, 128, arrays, [150, 17]), want, 17)


@pytest.mark.parametrize(("threads", "length"), [(32, 620), (64, 96)])
def test_selective_scan(threads, length):
    arrays, want = arguments(Case("selective", (2, 3, length, 4)))
    got = in_every_order("block_per_channel", 6, threads, arrays, [3, length, 4])
    close(got, want, length)


def test_rwkv():
    arrays, want = arguments(Case("rwkv6", (2, 9, 64)))
    close(in_every_order("block_per_head", 2, 64, arrays, [9]), want, 64)
