"""Kernels by name and sizes: planned for a range of sizes, built once, kept on disk.

A kernel is built with symbolic extents, so that one library serves all lengths. Which plan is
best depends on the sizes, up to a factor of two; the plan of a range is cached beside the
libraries, and ranges with the same plan share one library.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch

from tvm_scan._locks import ForkSafeLock
from tvm_scan.torch import entries
from tvm_scan.torch.kernels import devices, runtime
from tvm_scan.torch.kernels.building import (
    SERIAL,
    build_kernel,
    build_launcher,
    exported,
    loop_at,
    serial_plan,
)
from tvm_scan.torch.kernels.devices import CPU, Device
from tvm_scan.torch.kernels.digest import environment
from tvm_scan.torch.kernels.events import Run, note
from tvm_scan.torch.kernels.records import plan_sources, user_records
from tvm_scan.torch.kernels.runtime import launch, load_runtime, prepared
from tvm_scan.torch.kernels.scratch import QUESTION, shapes_of
from tvm_scan.torch.kernels.spec import KernelSpec
from tvm_scan.torch.kernels.team import run_on_torchs_threads

_LOG = logging.getLogger("tvm_scan")
#: Variables that decide how CUDA code is compiled begin so.
_CUDA_VARIABLES = ("TVM_CUDA_", "TVM_SCAN_FAST_MATH")


class _Built:
    """A kernel that may be called: its function, and on a GPU what it needs beside it."""

    def __init__(self, library: Any, device: Device) -> None:
        self.call: Callable[..., Any] = library["main"]
        self._shapes: Callable[..., list[tuple[tuple[int, ...], torch.dtype]]] | None = None
        if device.is_gpu:
            self._shapes = lru_cache(maxsize=4096)(partial(shapes_of, library[QUESTION]))

    def scratch(self, sizes: tuple[int, ...], device: torch.device) -> list[torch.Tensor]:
        """Memory of torch's allocator for the parameters at the end of a GPU's kernel."""
        assert self._shapes is not None, "only a GPU's kernel has scratch"
        shapes = self._shapes(sizes)
        return [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in shapes]


_CallKey = tuple[KernelSpec, tuple[int, ...], Device]


#: Another one where plans are forgotten: none is emptied.
_calls: dict[_CallKey, _Built] = {}
_libraries: dict[tuple[KernelSpec, str, Device], _Built] = {}
_building = ForkSafeLock()


def run_kernel(spec: KernelSpec, sizes: tuple[int, ...], *arguments: Any) -> None:
    """Run a kernel on tensors, which it reads and writes in place.

    Parameters
    ----------
    spec : KernelSpec
        Which kernel.
    sizes : tuple of int
        Its extents, all at least 1; they select the plan.
    *arguments : Tensor or int
        The parameters of the loop in order, a tensor last. Inputs may be strided or misaligned
        and are copied then; outputs must be contiguous and aligned.
    """
    device = devices.device_of(arguments[-1])
    key = call_key(spec, sizes, device)
    built = kernel_at(key)
    note(Run(key, arguments))
    usable = []
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            argument = prepared(argument.detach() if argument.requires_grad else argument)
        usable.append(argument)
    if device is not CPU:
        usable += built.scratch(sizes, arguments[-1].device)
    devices.run_at(device, built.call, usable)


@contextlib.contextmanager
def kernels_asked_for() -> Iterator[list[tuple[KernelSpec, tuple[int, ...]]]]:
    """Gather the kernels that are called, each with the least sizes that share its plan.

    For other threads the kernels are as they were: those that are asked for here are found on
    disk, or built, once more.
    """
    global _calls
    with _building:
        before, _calls = _calls, {}
    asked: list[tuple[KernelSpec, tuple[int, ...]]] = []
    try:
        yield asked
    finally:
        with _building:
            asked += [(spec, least_sizes(bits)) for spec, bits, _ in _calls]
            _calls = {**before, **_calls}


def forget_plans() -> None:
    """Ask for the plan of every kernel again, at its next call."""
    global _calls
    with _building:
        _calls = {}


def least_sizes(bits: tuple[int, ...]) -> tuple[int, ...]:
    """Return the least sizes that have so many bits; a plan is made for them."""
    return tuple([1 << (b - 1) for b in bits])


def call_key(spec: KernelSpec, sizes: tuple[int, ...], device: Device) -> _CallKey:
    """Return what `kernel_at` knows a kernel by; sizes up to a factor of two share it."""
    return spec, tuple([size.bit_length() for size in sizes]), device


def kernel_at(key: _CallKey) -> _Built:
    """Return a kernel, built if it is asked for the first time."""
    built = _calls.get(key)
    if built is None:
        spec, _, device = key
        devices.check_not_capturing(device, spec.text())
        with _building:
            built = _calls.get(key) or _calls.setdefault(key, _obtain(*key))
    return built


def held_kernel(key: _CallKey) -> Callable[[], Callable[..., Any]]:
    """Return what gives the function of a kernel, looked up again only where plans are forgotten.

    A key that is equal and not the same takes a microsecond to compare, as much as a small kernel.
    """
    table: dict[_CallKey, _Built] | None = None
    call: Callable[..., Any]

    def kernel() -> Callable[..., Any]:
        nonlocal table, call
        if table is not (now := _calls):
            call = kernel_at(key).call
            table = now
        # Asked here: to launch through a function takes time.
        return call if runtime.substitute is None else partial(launch, call)

    return kernel


def _obtain(spec: KernelSpec, bits: tuple[int, ...], device: Device) -> _Built:
    try:
        return _planned(spec, _plan_text(spec, bits, device), device)
    except Exception as error:
        # It imports TVM, which what is in the cache does without.
        from tvm_scan.errors import PlanError

        if not isinstance(error, PlanError):
            raise
        # What the cache had under this name is no plan, or none of this loop: planned anew, once.
        entries.remove(_plan_key(spec, bits, device))
        return _planned(spec, _plan_text(spec, bits, device), device)


def _planned(spec: KernelSpec, plan: str, device: Device) -> _Built:
    if (spec, plan, device) not in _libraries:
        _libraries[spec, plan, device] = _Built(_load(spec, plan, device), device)
    return _libraries[spec, plan, device]


def _load(spec: KernelSpec, plan: str, device: Device) -> Any:
    """The library of a kernel, from the cache where it is there."""
    import tvm_ffi

    key = _key("library", spec, plan, device)
    with entries.locked(key):
        path = entries.fetch(key, ".so")
        if path is None:
            executable = build_kernel(spec, plan, device)
            content = exported(executable) if entries.cache_folder() is not None else None
            path = entries.insert(key, ".so", content, spec.text()) if content else None
            if path is None:
                return executable
    load_runtime(device.kind if device.is_gpu else "")
    try:
        library = tvm_ffi.load_module(str(path))
    except RuntimeError:  # no library, or another process made room in the cache meanwhile
        entries.remove(key)
        return build_kernel(spec, plan, device)
    if not device.is_gpu:
        run_on_torchs_threads(path, _launcher)
    return library


@lru_cache(maxsize=1)
def _launcher() -> Path | None:
    """Return the library by which tasks run on torch's threads; None where it cannot be kept."""
    if not sys.platform.startswith("linux"):
        return None
    name = _hashed(["launcher", environment()])
    with entries.locked(name):
        path = entries.fetch(name, ".so")
        if path is None:
            content = build_launcher()
            if content is not None:
                path = entries.insert(name, ".so", content, "tasks on torch's threads")
    return path


def _plan_text(spec: KernelSpec, bits: tuple[int, ...], device: Device = CPU) -> str:
    """Return the plan of a range of sizes, from the cache where it is there."""
    if spec.no_scan and not spec.decided_by:
        return SERIAL
    key = _plan_key(spec, bits, device)
    path = entries.fetch(key, ".txt")
    with contextlib.suppress(FileNotFoundError):  # another process made room meanwhile
        if path is not None:
            return path.read_text(encoding="utf-8", errors="replace")
    text = (
        serial_plan(spec, least_sizes(bits), device, user_records())
        if spec.no_scan
        else _plan_of_scan(spec, bits, device)
    )
    tops = ", ".join(str(1 << b) for b in bits)
    entries.insert(key, ".txt", text.encode(), f"plan of {spec.text()} for sizes below {tops}")
    return text


def _plan_of_scan(spec: KernelSpec, bits: tuple[int, ...], device: Device) -> str:
    from tvm_scan import extract
    from tvm_scan.errors import PlanError, RefusalError
    from tvm_scan.recurrence import Refusal
    from tvm_scan.schedules.analysis import analyse
    from tvm_scan.schedules.choose.plan_of import plan_of

    loop, target = loop_at(spec, least_sizes(bits)), devices.target_of(device)
    accepted = analyse(loop).accepted
    try:
        if accepted:
            return str(plan_of(accepted[0], target, user_records()))
        refusal = extract(loop)
        assert isinstance(refusal, Refusal), "what is accepted was planned"
        if not spec.or_serial:
            raise RefusalError(refusal.message(), refusal)
        reason = refusal.message()
    except PlanError as error:  # no chunk of it fits the device
        if not spec.or_serial:
            raise
        reason = str(error)
    _LOG.info("one step after another: %s", reason)
    return SERIAL


def _plan_key(spec: KernelSpec, bits: tuple[int, ...], device: Device) -> str:
    return _key("plan", spec, [bits, *plan_sources()], device)


def _key(kind: str, spec: KernelSpec, detail: Any, device: Device = CPU) -> str:
    """Hash of everything that a built kernel depends on."""
    parts = [kind, spec.factory, spec.options, spec.sizes, detail, str(device), environment()]
    if device is not CPU:
        parts.append(sorted(i for i in os.environ.items() if i[0].startswith(_CUDA_VARIABLES)))
    return _hashed(parts)


def _hashed(parts: list[Any]) -> str:
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()[:40]
