"""Compile a primfunc and call it with NumPy arrays by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import tvm
from tvm.target import Target
from tvm.tirx import PrimFunc

from tvm_scan import tir
from tvm_scan.arguments import host_target
from tvm_scan.cli.support.failure import CommandError
from tvm_scan.cli.support.load import missing_device
from tvm_scan.cuda_math import build
from tvm_scan.schedules.machine.device import device_of

Prepared = tuple[Callable[[], None], dict[str, Any]]


@dataclass(frozen=True, eq=False)
class Bound:
    """Arguments of a function, in order, and which of them it writes."""

    names: tuple[str, ...]
    arrays: dict[str, np.ndarray]
    written: tuple[str, ...]


def bind(func: PrimFunc, by_name: Mapping[str, np.ndarray]) -> Bound:
    """Match arrays with parameters; allocate what the function only writes.

    Parameters
    ----------
    func : PrimFunc
        The function.
    by_name : mapping of str to ndarray
        Arrays by parameter name. Symbolic extents are solved from their shapes.

    Raises
    ------
    CommandError
        If an array is missing, unknown, or of the wrong dtype or shape.
    """
    params = {str(p.name): p for p in func.params}
    stores = tir.buffers_stored(func.body)
    written = tuple(name for name, p in params.items() if p in stores)
    unknown = sorted(set(by_name) - set(params))
    if unknown:
        raise CommandError(
            f"expected arrays named {', '.join(params)}, got also {', '.join(unknown)}; "
            "name every array after a parameter"
        )
    sizes = tir.VarMap()
    arrays: dict[str, np.ndarray] = {}
    for name, array in by_name.items():
        arrays[name] = _checked(name, array, params[name], sizes)
    for name, param in params.items():
        if name in arrays:
            continue
        if name not in written:
            raise CommandError(
                f"expected an array for the input {name}, got only {', '.join(by_name) or 'none'}; "
                "add it to the .npz file"
            )
        shape = [_extent(e, sizes, name) for e in tir.shape_of(param)]
        arrays[name] = np.zeros(shape, tir.dtype_of(param))
    return Bound(tuple(params), {name: arrays[name] for name in params}, written)


def _checked(name: str, array: np.ndarray, param: Any, sizes: tir.VarMap) -> np.ndarray:
    dtype, shape = tir.dtype_of(param), tir.shape_of(param)
    if str(array.dtype) != dtype:
        raise CommandError(
            f"expected {name} as {dtype}, got {array.dtype}; convert it with .astype({dtype!r})"
        )
    if array.ndim != len(shape):
        raise CommandError(
            f"expected {name} with {len(shape)} dimensions, got shape {array.shape}; reshape it"
        )
    for dim, (extent, size) in enumerate(zip(shape, array.shape, strict=True)):
        constant = tir.as_int(extent)
        if constant is None and extent not in sizes and isinstance(extent, tvm.ir.Var):
            sizes[extent] = size
            continue
        wanted = _extent(extent, sizes, name)
        if wanted != size:
            raise CommandError(
                f"expected {name} with {wanted} in dimension {dim}, got shape {array.shape}; "
                "give every array the extents of the function"
            )
    return np.ascontiguousarray(array)


def _extent(extent: Any, sizes: tir.VarMap, name: str) -> int:
    numbers = tir.VarMap((v, tvm.tirx.IntImm(tir.dtype_of(v), n)) for v, n in sizes.items())
    known = tir.as_int(tir.simplify(tir.substitute(extent, numbers)))
    if known is None:
        raise CommandError(
            f"expected the extent {extent} of {name} to follow from the inputs, found that it "
            f"does not; add {name} to the .npz file"
        )
    return known


def run_beside(
    loop: PrimFunc, scheduled: PrimFunc, target: Target, bound: Bound
) -> tuple[Prepared, Prepared]:
    """Run a loop on this machine's CPU once, and what was made of it on a device.

    Parameters
    ----------
    loop, scheduled : PrimFunc
        The sequential loop, and its schedule for the target.
    target : tvm.target.Target
        What the second is compiled for.
    bound : Bound
        Arguments of both.

    Returns
    -------
    tuple of (callable, dict of str to Tensor)
        Of each what runs it once more, and its arguments; the written ones hold the result.
    """
    both = _prepared(loop, host_target(), bound), _prepared(scheduled, target, bound)
    for call, _ in both:
        call()
    return both


def _prepared(func: PrimFunc, target: Target, bound: Bound) -> Prepared:
    run, device = compiled(func, target)
    tensors = {key: tvm.runtime.tensor(array, device) for key, array in bound.arrays.items()}
    return bound_call(run, device, [tensors[key] for key in bound.names]), tensors


def bound_call(run: Callable[..., None], device: Any, tensors: list[Any]) -> Callable[[], None]:
    """Make a call of a function on its device, which waits until it is done."""

    def call() -> None:
        run(*tensors)
        device.sync()

    return call


def compiled(func: PrimFunc, target: Target) -> tuple[Callable[..., None], Any]:
    """Compile a function for a device that is there, and return both.

    Raises
    ------
    CommandError
        If TVM can reach none.
    """
    row = device_of(target)
    if missing := missing_device(target):
        launched = f", or tvm-scan verify --target {row.name} to run it" if row.driver else ""
        raise CommandError(
            f"{missing}; use tvm-scan explain --target {row.name} --source to see the kernel"
            f"{launched}"
        )
    name = "main" if func.attrs is None else str(func.attrs.get("global_symbol") or "main")
    built = build(func.with_attr("global_symbol", name), target)
    return built[name], tvm.device(row.runtime, 0)


def interleaved_medians(
    calls: Mapping[str, Callable[[], Any]], seconds: float = 1.0, least: int = 5
) -> dict[str, float]:
    """Median seconds of each call; the calls take turns, so that noise hits all alike."""
    samples = interleaved_samples(calls, seconds, least)
    return {name: median(values) for name, values in samples.items()}


def interleaved_samples(
    calls: Mapping[str, Callable[[], Any]], seconds: float = 1.0, least: int = 5
) -> dict[str, list[float]]:
    """Seconds of each call in every round; in a round all are called, one after the other."""
    for call in calls.values():
        call()
    samples: dict[str, list[float]] = {name: [] for name in calls}
    begin = perf_counter()
    rounds = 0
    while rounds < least or (perf_counter() - begin < seconds and rounds < 200):
        for name, call in calls.items():
            start = perf_counter()
            call()
            samples[name].append(perf_counter() - start)
        rounds += 1
    return samples
