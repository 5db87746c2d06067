"""The project's own kernels for ``bench.gpu``: built, compared with float64, and timed."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median, quantiles

import numpy as np
import tvm
from tvm.script import tirx as T
from tvm.target import Target

from bench.gpu_cases import Case
from tvm_scan import ScanPlan, default_plan, extract, parallelize

__all__ = ["Times", "copied", "device_tensors", "error_of", "plan_for", "summary", "timed"]

#: More than the second-level cache of any current GPU.
_FLUSH_BYTES = 256 << 20


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


def _filled(count: int, dtype: str, low: float, high: float) -> tvm.tirx.PrimFunc:
    """Values in ``[low, high)`` that look random, made on the device."""
    blocks = -(-count // 256)
    step = (high - low) / 65536

    @T.prim_func(s_tir=True)
    def main(X: T.Buffer((T.int64(count),), dtype)):
        for b in T.thread_binding(T.int64(blocks), "blockIdx.x"):
            for t in T.thread_binding(T.int64(256), "threadIdx.x"):
                with T.sblock("fill"):
                    i = T.axis.spatial(T.int64(blocks * 256), b * T.int64(256) + t)
                    if i < T.int64(count):
                        X[i] = T.cast(
                            T.cast((i * T.int64(40503) + T.int64(2531)) % T.int64(65536), "float32")
                            * T.float32(step)
                            + T.float32(low),
                            dtype,
                        )

    return main


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


def _built(func: tvm.tirx.PrimFunc, target: Target) -> tvm.runtime.Executable:
    with target:
        return tvm.compile(func.with_attr("global_symbol", "main"), target=target)


def _timer(
    executable: tvm.runtime.Executable, device: tvm.runtime.Device, repeat: int, cold: bool
) -> object:
    flush = _FLUSH_BYTES if cold else 0
    return executable.mod.time_evaluator(
        "main", device, number=1, repeat=repeat, cache_flush_bytes=flush
    )


def copied(target: Target, device: tvm.runtime.Device, count: int, repeat: int) -> float:
    """Bytes per second of a copy: the ceiling of everything that streams."""
    executable = _built(_copy(count), target)
    x = tvm.runtime.tensor(np.zeros(count, "float32"), device)
    y = tvm.runtime.empty((count,), "float32", device)
    found = _timer(executable, device, repeat, cold=True)(x, y)
    return 8.0 * count / median(found.results)


def plan_for(case: Case, plan: ScanPlan | None, target: Target) -> ScanPlan:
    """The plan, or the default one."""
    return plan or default_plan(target, extract(case.func))


def error_of(
    case: Case, plan: ScanPlan | None, target: Target, device: tvm.runtime.Device
) -> float:
    """Largest difference from float64 over the largest magnitude of a result.

    Infinite where a second run has other bits.
    """
    rng = np.random.default_rng(1)
    inputs = case.inputs(rng)
    want = case.expected(inputs)
    executable = _built(parallelize(case.func, target, plan), target)
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
    cold: bool = True,
) -> Times:
    """Seconds of one call, on inputs made on the device."""
    executable = _built(parallelize(case.func, target, plan), target)
    found = _timer(executable, device, repeat, cold)(*device_tensors(case, target, device))
    return summary(list(found.results))


def device_tensors(
    case: Case, target: Target, device: tvm.runtime.Device
) -> list[tvm.runtime.Tensor]:
    """Inputs made on the device, and outputs, in the order of the parameters."""
    tensors, ranges = [], case.ranges()
    for name, shape in case.shapes().items():
        tensor = tvm.runtime.empty(shape, case.dtype, device)
        if name in ranges:
            count = int(np.prod(shape))
            fill = _built(_filled(count, case.dtype, *ranges[name]), target)
            fill["main"](tensor._create_view((count,)))
        tensors.append(tensor)
    return tensors
