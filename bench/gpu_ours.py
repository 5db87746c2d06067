"""The project's own kernels for ``bench.gpu``: built, compared with float64, and timed."""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass
from functools import cache
from statistics import median, quantiles
from typing import Any

import numpy as np
import tvm
from tvm.script import tirx as T
from tvm.target import Target

from bench.gpu_cases import Case
from tvm_scan import ScanPlan, cuda_math, default_plan, parallelize

__all__ = [
    "Expected",
    "Times",
    "affordable",
    "built",
    "cold_times",
    "copied",
    "device_tensors",
    "error_of",
    "filled_tensor",
    "plan_for",
    "succeed",
    "summary",
    "target_of",
    "timed",
]

#: More than the second-level cache of any current GPU.
_FLUSH_BYTES = 256 << 20
#: CUDA's runtime of the major version that TVM is built with; how it calls a copy on a device.
_RUNTIME, _ON_DEVICE = "libcudart.so.13", 3
#: Seconds that the calls of one plan or peer may take together, the first ones left out.
_FOR_ONE = 2.0


@dataclass(frozen=True)
class Times:
    """Seconds of one call with a cold second-level cache.

    Attributes
    ----------
    median, spread : float
        Median, and the interquartile range over it.
    """

    median: float
    spread: float


def summary(seconds: list[float]) -> Times:
    """Median and spread of single calls."""
    middle = median(seconds)
    if len(seconds) < 4:
        return Times(middle, 0.0)
    low, _, high = quantiles(seconds, n=4)
    return Times(middle, (high - low) / middle)


def affordable(seconds: float, repeat: int) -> int:
    """How often a call of so many seconds is repeated: at most ``repeat`` times, at least once."""
    return max(1, min(repeat, int(_FOR_ONE / max(seconds, 1e-9))))


def target_of(arch: str, model: str) -> Target:
    """The target of a GPU: its architecture, such as ``sm_90``, and what it says of its product."""
    limits = {"max_threads_per_block": 1024, "max_shared_memory_per_block": 49152}
    options = {"kind": "cuda", "arch": arch, "model": model, **limits}
    return Target(options, host={"kind": "llvm"})


@cache
def _fill(dtype: str, target: Target) -> Any:
    """Values in ``[low, low + 65536 step)`` that look random, made on the device."""

    @T.prim_func(s_tir=True)
    def main(p: T.handle, low: T.float32, step: T.float32):
        n = T.int64()
        X = T.match_buffer(p, (n,), dtype)
        for b in T.thread_binding((n + T.int64(255)) // T.int64(256), "blockIdx.x"):
            for t in T.thread_binding(T.int64(256), "threadIdx.x"):
                with T.sblock("fill"):
                    i = T.axis.spatial(
                        (n + T.int64(255)) // T.int64(256) * T.int64(256), b * T.int64(256) + t
                    )
                    if i < n:
                        X[i] = T.cast(
                            T.cast((i * T.int64(40503) + T.int64(2531)) % T.int64(65536), "float32")
                            * step
                            + low,
                            dtype,
                        )

    return built(main, target)["main"]


def filled_tensor(
    shape: tuple[int, ...],
    dtype: str,
    bounds: tuple[float, float],
    target: Target,
    device: tvm.runtime.Device,
) -> tvm.runtime.Tensor:
    """A tensor on the device with values in ``[low, high)``."""
    tensor = tvm.runtime.empty(shape, dtype, device)
    low, high = bounds
    flat = tensor._create_view((int(np.prod(shape)),))
    _fill(dtype, target)(flat, low, (high - low) / 65536)
    return tensor


def _copy(count: int) -> tvm.tirx.PrimFunc:
    blocks = count // 4096

    @T.prim_func(s_tir=True)
    def main(X: T.Buffer((count,), "float32"), Y: T.Buffer((count,), "float32")):
        for b in T.thread_binding(blocks, "blockIdx.x"):
            for t in T.thread_binding(256, "threadIdx.x"):
                with T.sblock("copy"):
                    vb = T.axis.spatial(blocks, b)
                    vt = T.axis.spatial(256, t)
                    for k in T.unroll(4):
                        for j in T.vectorized(4):
                            Y[vb * 4096 + k * 1024 + vt * 4 + j] = X[
                                vb * 4096 + k * 1024 + vt * 4 + j
                            ]

    return main


def built(func: tvm.tirx.PrimFunc, target: Target) -> tvm.runtime.Executable:
    """Compile as the library does: without fast math."""
    return cuda_math.build(func.with_attr("global_symbol", "main"), target)


@cache
def _flush(device: tvm.runtime.Device) -> tuple[Any, Any, Any]:
    """CUDA's runtime, which TVM has loaded, and two arrays that fill the second-level cache."""
    arrays = (tvm.runtime.empty((_FLUSH_BYTES,), "int8", device) for _ in range(2))
    return (ctypes.CDLL(_RUNTIME), *arrays)


def succeed(status: int) -> None:
    """Raise where a call of CUDA did not succeed.

    Raises
    ------
    RuntimeError
        With the number that it returned.
    """
    if status != 0:
        raise RuntimeError(f"CUDA error {status}")


def cold_times(
    executable: tvm.runtime.Executable, device: tvm.runtime.Device, repeat: int, tensors: list[Any]
) -> Times:
    """Times of single calls, the second-level cache cold; fewer than ``repeat`` of slow ones.

    By events around each call, as the peers' are: the host has launched its kernels while the cache
    is being filled with other data, so that none of what the host does is counted.
    """
    function = executable["main"]
    function(*tensors)  # loads the kernel
    device.sync()
    start = time.perf_counter()
    function(*tensors)
    device.sync()
    repeat = affordable(time.perf_counter() - start, repeat)
    cuda, into, source = _flush(device)
    begin, end, milliseconds = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_float()
    pointers = [ctypes.c_void_p(array.data_ptr()) for array in (into, source)]
    succeed(cuda.cudaEventCreate(ctypes.byref(begin)))
    succeed(cuda.cudaEventCreate(ctypes.byref(end)))
    found = []
    for _ in range(repeat):
        size = ctypes.c_size_t(_FLUSH_BYTES)
        succeed(cuda.cudaMemcpyAsync(*pointers, size, _ON_DEVICE, None))
        succeed(cuda.cudaEventRecord(begin, None))
        function(*tensors)
        succeed(cuda.cudaEventRecord(end, None))
        succeed(cuda.cudaEventSynchronize(end))
        succeed(cuda.cudaEventElapsedTime(ctypes.byref(milliseconds), begin, end))
        found.append(milliseconds.value / 1000)
    succeed(cuda.cudaEventDestroy(begin))
    succeed(cuda.cudaEventDestroy(end))
    return summary(found)


def copied(target: Target, device: tvm.runtime.Device, count: int, repeat: int) -> float:
    """Bytes per second of a copy: the ceiling of everything that streams."""
    executable = built(_copy(count), target)
    tensors = [filled_tensor((count,), "float32", (0.0, 1.0), target, device) for _ in range(2)]
    return 8.0 * count / cold_times(executable, device, repeat, tensors).median


def plan_for(case: Case, plan: ScanPlan | None, target: Target) -> ScanPlan:
    """The plan, or the default one."""
    return plan or default_plan(target, case.recurrence)


class Expected:
    """Inputs of a case and its float64 results, made once for all plans."""

    def __init__(self, case: Case) -> None:
        self.case, self.inputs = case, case.inputs(np.random.default_rng(1))
        self.outputs = case.expected(self.inputs)


def error_of(
    exact: Expected, plan: ScanPlan | None, target: Target, device: tvm.runtime.Device
) -> float:
    """Largest difference from float64 over the largest magnitude of a result.

    Infinite where a second run has other bits.
    """
    case, inputs, want = exact.case, exact.inputs, exact.outputs
    executable = built(parallelize(case.func, target, plan), target)
    shapes = case.shapes()
    tensors = {
        name: tvm.runtime.tensor(inputs.get(name, np.full(shape, np.nan, case.numpy_dtype)), device)
        for name, shape in shapes.items()
    }
    executable["main"](*tensors.values())
    device.sync()
    first = {name: tensors[name].numpy() for name in want}
    executable["main"](*tensors.values())
    device.sync()
    worst = 0.0
    for name, expected in want.items():
        if first[name].tobytes() != tensors[name].numpy().tobytes():
            return float("inf")
        got = first[name].astype(np.float64)
        worst = max(worst, float(np.abs(got - expected).max() / np.abs(expected).max()))
    return worst if np.isfinite(worst) else float("inf")


def timed(
    case: Case,
    plan: ScanPlan | None,
    target: Target,
    device: tvm.runtime.Device,
    repeat: int,
    tensors: list[Any],
) -> Times:
    """Seconds of one call on tensors of ``device_tensors``."""
    executable = built(parallelize(case.func, target, plan), target)
    return cold_times(executable, device, repeat, tensors)


def device_tensors(
    case: Case, target: Target, device: tvm.runtime.Device
) -> list[tvm.runtime.Tensor]:
    """Inputs made on the device, and outputs, in the order of the parameters."""
    ranges = case.ranges()
    return [
        filled_tensor(shape, case.dtype, ranges[name], target, device)
        if name in ranges
        else tvm.runtime.empty(shape, case.dtype, device)
        for name, shape in case.shapes().items()
    ]
