"""The simulated CUDA device refuses the accesses that a device refuses, and those that hit others'
memory there: misaligned ones, indices past local arrays, the host's own reads of device memory."""

import ctypes
import signal

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm.script import tirx as T

from tests.gpu.test_cusim import THREADS, LaunchError, dynamic, elementwise, run_body
from tests.support import cusim
from tests.support.children import death_of
from tests.support.cuda_harness import compile_cuda

pytestmark = [
    pytest.mark.skipif(not cusim.is_simulated(), reason="tests of the simulator itself"),
]


@pytest.mark.parametrize("race", [False, True])
@pytest.mark.parametrize(
    ("access", "message"),
    [
        ("*(int4*)(y_ptr + 1) = make_int4(1, 1, 1, 1);", "write of 'int4' .* multiple of 16"),
        ("y_ptr[0] = (*(int2*)(x_ptr + threadIdx.x)).y;", "read of 'int2' .* multiple of 8"),
        ("*(int4*)y_ptr = *(int4*)(x_ptr + 2);", "read of 'int4' .* multiple of 16"),
        (
            "y_ptr[threadIdx.x] = *(int*)((char*)x_ptr + threadIdx.x);",
            "read of 'int' .* multiple of 4",
        ),
        (
            "__shared__ __align__(16) int s[8]; *(int4*)(s + 2) = *(int4*)x_ptr; y_ptr[0] = s[3];",
            "write of 'int4' .* multiple of 16",
        ),
    ],
)
def test_misaligned_accesses(access, message, race):
    """A device ends the kernel; x86 takes most of them."""
    with pytest.raises(LaunchError, match=f"misaligned {message}"):
        run_body(access, race=race)
    assert f"`{access}`" in cusim.last_error()


def test_a_constant_distance_is_found_under_the_race_detector():
    with pytest.raises(LaunchError, match=r"misaligned read at line .* no multiple of 4"):
        run_body("y_ptr[threadIdx.x] = *(int*)((char*)x_ptr + 2);", race=True)


def test_misaligned_atomics():
    with pytest.raises(LaunchError, match=r"misaligned access at line .* no multiple of 4"):
        run_body("atomicAdd((int*)((char*)y_ptr + 2), 1);")
    assert "`atomicAdd(" in cusim.last_error()


def test_aligned_vectors_raise_no_alarm():
    y = run_body(
        "int local[8] __attribute__((aligned(16)));",
        "int at = blockIdx.x * 64 + threadIdx.x;",
        "if (threadIdx.x % 4 != 0) return;",
        "*(int4*)(local + 4) = *(int4*)(x_ptr + at);",
        "local[at % 8] = at;",
        "*(int4*)(y_ptr + at) = make_int4(local[at % 8], local[5], local[6], local[7]);",
        race=True,
    )
    np.testing.assert_array_equal(y[::4], np.arange(0, 2 * THREADS, 4))


@pytest.mark.parametrize("race", [False, True])
@pytest.mark.parametrize(
    ("access", "message"),
    [
        ("local[x_ptr[0] + 4] = 1; y_ptr[0] = local[1];", r"index 4 of 'int \[4\]'"),
        ("y_ptr[0] = local[x_ptr[0] - 1];", r"index -1 of 'int \[4\]'"),
        ("y_ptr[0] = local[threadIdx.x];", r"index 4 of 'int \[4\]'"),
        ("y_ptr[0] = (*(int2*)(local + x_ptr[0] + 4)).x;", "past the array"),
        ("y_ptr[0] = shared[threadIdx.x + 1];", r"index 64 of '.*int \[64\]'"),
    ],
)
def test_indices_past_local_and_shared_arrays(access, message, race):
    with pytest.raises(LaunchError, match=f"out-of-bounds .*{message}"):
        run_body(
            "__shared__ int shared[64]; int local[4] __attribute__((aligned(16)));",
            "shared[threadIdx.x] = threadIdx.x; local[threadIdx.x % 4] = threadIdx.x;",
            access,
            race=race,
        )
    assert f"`{access}`" in cusim.last_error()


KIB = 1024
PINNED = tvm_ffi.core._CLASS_DEVICE(tvm_ffi.DLDeviceType.kDLCUDAHost, 0)


@pytest.mark.parametrize(
    ("fixed", "size", "message"),
    [
        (8 * KIB, 40 * KIB, None),
        (8 * KIB, 100 * KIB, None),
        (8 * KIB, 219 * KIB, None),
        (12 * KIB, 40 * KIB, "too much dynamic shared memory: 40960 bytes, at most 36864 beside"),
        (12 * KIB, 220 * KIB, "allowed dynamic shared memory size"),
    ],
)
def test_static_and_dynamic_shared_memory_share_a_limit(fixed, size, message):
    """48 KiB without asking, and 227 KiB in all."""

    def with_static(source):
        start = source.index("{", source.rindex("__launch_bounds__")) + 1
        more = f"__shared__ int fixed[{fixed // 4}]; fixed[threadIdx.x] = 0;"
        return source[:start] + more + source[start:]

    with cusim.rewritten_source(with_static):
        entry = compile_cuda(dynamic(size))["main"]
    value = np.arange(THREADS, dtype="uint8")
    x, y = (tvm.runtime.tensor(a, tvm.cuda(0)) for a in (value, np.zeros_like(value)))
    if message is None:
        entry(x, y)
        np.testing.assert_array_equal(y.numpy(), value[::-1])
        return
    with pytest.raises((LaunchError, RuntimeError), match=message):
        entry(x, y)


# ---- what the host may touch ----------------------------------------------------------------


def touched(tensor, offset=0):
    """What the host finds where the tensor's address leads it."""
    return ctypes.c_int.from_address(tensor.data_ptr() + offset)


def test_the_host_cannot_reach_device_memory():
    """As on a device; here it is told why."""
    tensor = tvm.runtime.tensor(np.arange(8, dtype="int32"), tvm.cuda(0))
    for action in (lambda: touched(tensor, 8).value, lambda: setattr(touched(tensor), "value", 1)):
        ended_by, text = death_of(action)
        assert ended_by == signal.SIGSEGV
        assert "the host reads or writes device memory, at byte" in text
        assert "copy it to the host, and synchronise the stream" in text
    np.testing.assert_array_equal(tensor.numpy(), np.arange(8))


def test_pinned_memory_belongs_to_the_stream_until_it_is_synchronised():
    """A copy to it, or a kernel that writes it, may not be done when the call returns."""
    source = tvm.runtime.tensor(np.arange(8, dtype="int32"), tvm.cuda(0))
    target = tvm.runtime.empty((8,), "int32", PINNED)
    message = "pinned memory, at byte 4 of 32, before the stream that uses it is synchronised"
    source.copyto(target)
    ended_by, text = death_of(lambda: touched(target, 4).value)
    assert (ended_by, message in text) == (signal.SIGSEGV, True), text
    tvm.cuda(0).sync()
    assert touched(target, 4).value == 1
    # What a copy only reads may be read, and not written.
    target.copyto(source)
    assert touched(target, 4).value == 1
    ended_by, text = death_of(lambda: setattr(touched(target, 4), "value", 2))
    assert (ended_by, message in text) == (signal.SIGSEGV, True), text
    tvm.cuda(0).sync()
    touched(target, 4).value = 2
    assert touched(target, 4).value == 2


def test_another_fault_is_as_it_was():
    ended_by, text = death_of(lambda: ctypes.c_int.from_address(8).value)
    assert ended_by == signal.SIGSEGV
    assert "cusim" not in text.splitlines()[0]


def test_a_time_cannot_be_read_before_its_event():
    runtime = cusim._State.cudart
    events = [ctypes.c_void_p() for _ in range(2)]
    for event in events:
        runtime.cudaEventCreate(ctypes.byref(event))
        runtime.cudaEventRecord(event, None)
    time = ctypes.c_float(-1)
    assert runtime.cudaEventElapsedTime(ctypes.byref(time), *events) == 600  # cudaErrorNotReady
    runtime.cudaEventSynchronize(events[1])
    assert runtime.cudaEventElapsedTime(ctypes.byref(time), *events) == 0
    assert time.value >= 0


def test_copies_end_with_their_memory():
    runtime = cusim._State.cudart
    tensor = tvm.runtime.tensor(np.arange(8, dtype="int32"), tvm.cuda(0))
    outside = (ctypes.c_int * 16)()
    copy = [outside, ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(36), 2, None]
    assert runtime.cudaMemcpyAsync(*copy) == 1  # cudaErrorInvalidValue
    copy[2] = ctypes.c_size_t(32)
    assert runtime.cudaMemcpyAsync(*copy) == 0
    assert list(outside)[:8] == list(range(8))


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        *((f"{of}_{axis}", ctypes.c_uint) for of in ("grid", "block") for axis in "xyz"),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    )


def test_a_kernel_cannot_have_memory_of_the_host():
    driver = cusim._State.driver
    source = 'extern "C" __global__ void fill(int* y, int v) { y[threadIdx.x] = v; }'
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    image = cusim.build(source).read_bytes()
    assert driver.cuModuleLoadData(ctypes.byref(module), image) == 0
    assert driver.cuModuleGetFunction(ctypes.byref(function), module, b"fill") == 0
    tensor = tvm.runtime.tensor(np.zeros(4, "int32"), tvm.cuda(0))
    host = (ctypes.c_int * 4)()

    def launch(address):
        values = (ctypes.c_void_p(address), ctypes.c_int(7))
        given = (ctypes.c_void_p * 2)(*(ctypes.addressof(value) for value in values))
        config = LaunchConfig(1, 1, 1, 4, 1, 1, 0, None, None, 0)
        return driver.cuLaunchKernelEx(ctypes.byref(config), function, given, None)

    assert launch(tensor.data_ptr()) == 0
    np.testing.assert_array_equal(tensor.numpy(), [7] * 4)
    # In a child first: were it launched, it would end this process.
    assert death_of(lambda: launch(ctypes.addressof(host)))[0] == 0
    assert launch(ctypes.addressof(host)) != 0
    text = ctypes.c_char_p()
    driver.cuGetErrorName(719, ctypes.byref(text))
    assert text.value is not None
    assert b"argument 0 does not point to memory of the device" in text.value
    assert driver.cuModuleUnload(module) == 0


def test_kernels_of_one_name_have_their_own_parameters():
    """The second module's third parameter is a pointer, and the first one has none."""
    two = compile_cuda(elementwise("int32", lambda v: v + 1))["main"]
    x, y, z = (tvm.runtime.tensor(np.full(2 * THREADS, v, "int32"), tvm.cuda(0)) for v in range(3))
    two(x, y)

    @T.prim_func(s_tir=True)
    def add(
        a: T.Buffer((2 * THREADS,), "int32"),
        b: T.Buffer((2 * THREADS,), "int32"),
        c: T.Buffer((2 * THREADS,), "int32"),
    ):
        T.func_attr({"global_symbol": "main", "tirx.noalias": True, "tirx.is_scheduled": True})
        for i in T.thread_binding(2 * THREADS, thread="threadIdx.x"):
            with T.sblock("element"):
                v = T.axis.spatial(2 * THREADS, i)
                c[v] = a[v] + b[v]

    compile_cuda(add)["main"](y, y, z)
    two(z, x)
    assert (z.numpy() == 2).all()
    assert (x.numpy() == 3).all()
