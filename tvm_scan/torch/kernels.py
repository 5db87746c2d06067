"""Kernels by name and sizes: planned for a range of sizes, built once, kept on disk.

A kernel is built with symbolic extents, so that one library serves all lengths. Which plan is
best depends on the sizes, up to a factor of two; the plan of a range is cached beside the
libraries, and ranges with the same plan share one library.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import platform
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module, metadata, util
from pathlib import Path
from typing import Any

import torch

import tvm_scan
from tvm_scan._resources import shipped_text
from tvm_scan.torch import store
from tvm_scan.torch.runtime import launch, load_runtime, prepared

__all__ = ["KernelSpec", "loop_of", "run_kernel"]


@dataclass(frozen=True)
class KernelSpec:
    """One kernel of `tvm_scan.torch.loops`.

    Attributes
    ----------
    factory : str
        Name of the function in ``tvm_scan.torch.loops`` that writes the sequential loop.
    options : tuple
        Its keyword arguments as pairs, constants of the kernel.
    sizes : tuple of str
        The names of its symbolic extents, in the order in which calls give them.
    or_serial : bool
        Whether a loop that is no provable scan runs as it is, instead of being refused.
    """

    factory: str
    options: tuple[tuple[str, Any], ...]
    sizes: tuple[str, ...]
    or_serial: bool = False

    def __post_init__(self) -> None:
        # Asked at every call.
        parts = (self.factory, self.options, self.sizes, self.or_serial)
        object.__setattr__(self, "_hash", hash(parts))

    def __hash__(self) -> int:
        return self._hash  # type: ignore[attr-defined, no-any-return]

    def text(self) -> str:
        """Describe the kernel in a line."""
        shown = [f"{k}={v}" for k, v in self.options if v is not False and len(str(v)) < 40]
        return f"{self.factory}({', '.join(shown)})"


_LOG = logging.getLogger("tvm_scan")
#: Stands for the plan of a loop that runs as it is.
_SERIAL = "serial"

_calls: dict[tuple[KernelSpec, tuple[int, ...]], Callable[..., Any]] = {}
_libraries: dict[tuple[KernelSpec, str], Callable[..., Any]] = {}
_building = threading.RLock()


def run_kernel(spec: KernelSpec, sizes: tuple[int, ...], *arguments: Any) -> None:
    """Run a kernel on tensors, which it reads and writes in place.

    Parameters
    ----------
    spec : KernelSpec
        Which kernel.
    sizes : tuple of int
        Its extents, all at least 1; they select the plan.
    *arguments : Tensor or int
        The parameters of the loop in order. Inputs may be strided or misaligned and are copied
        then; outputs must be contiguous and aligned.
    """
    key = (spec, tuple([size.bit_length() for size in sizes]))
    call = _calls.get(key)
    if call is None:
        with _building:
            call = _calls.get(key) or _calls.setdefault(key, _obtain(*key))
    usable = []
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            usable.append(prepared(argument.detach() if argument.requires_grad else argument))
        else:
            usable.append(argument)
    launch(call, *usable)


def _obtain(spec: KernelSpec, bits: tuple[int, ...]) -> Callable[..., Any]:
    plan = _plan_text(spec, bits)
    found = _libraries.get((spec, plan))
    if found is None:
        found = _libraries[spec, plan] = _load(spec, plan)
    return found


def _load(spec: KernelSpec, plan: str) -> Callable[..., Any]:
    import tvm_ffi

    key = _key("library", spec, plan)
    with store.locked(key):
        path = store.fetch(key, ".so")
        if path is None:
            executable = _compile(spec, plan)
            content = _export(executable) if store.cache_folder() is not None else None
            path = content and store.insert(key, ".so", content, spec.text())
            if not path:
                return executable["main"]
    load_runtime()
    try:
        return tvm_ffi.load_module(str(path))["main"]
    except RuntimeError:  # another process made room in the cache meanwhile
        return _compile(spec, plan)["main"]


def _compile(spec: KernelSpec, plan: str) -> Any:
    import tvm

    from tvm_scan.schedules import ScanPlan, parallelize

    target = tvm.target.Target.from_device("cpu")
    loop = loop_of(spec, (None,) * len(spec.sizes))
    scheduled = loop if plan == _SERIAL else parallelize(loop, target, ScanPlan.parse(plan))
    return tvm.compile(scheduled.with_attr("global_symbol", "main"), target=target)


def _export(executable: Any) -> bytes | None:
    """Return the built library as a file's content; None without a linker."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.so"
        try:
            executable.export_library(str(path))
        except (OSError, RuntimeError):  # no C++ compiler to link with: keep it in memory
            return None
        return path.read_bytes()


def _plan_text(spec: KernelSpec, bits: tuple[int, ...]) -> str:
    """Return the plan of a range of sizes, from the cache where it is there."""
    key = _key("plan", spec, bits)
    path = store.fetch(key, ".txt")
    if path is not None:
        return path.read_text(encoding="utf-8")
    from tvm_scan import extract
    from tvm_scan.errors import RefusalError
    from tvm_scan.recurrence import Refusal
    from tvm_scan.schedules.shipped import chosen_plan

    found = extract(loop_of(spec, tuple(1 << (b - 1) for b in bits)))
    if not isinstance(found, Refusal):
        text = str(chosen_plan(None, found))
    elif spec.or_serial:
        _LOG.info("one step after another: %s", found.message())
        text = _SERIAL
    else:
        raise RefusalError(found.message(), found)
    tops = ", ".join(str(1 << b) for b in bits)
    store.insert(key, ".txt", text.encode(), f"plan of {spec.text()} for sizes below {tops}")
    return text


def loop_of(spec: KernelSpec, extents: tuple[int | None, ...]) -> Any:
    """Return the sequential loop of a kernel; extents that are None are symbolic."""
    from tvm_scan.library.arguments import make_extent

    loops = import_module("tvm_scan.torch.loops")
    made = {
        name: make_extent(spec.factory, name, extent)
        for name, extent in zip(spec.sizes, extents, strict=True)
    }
    return getattr(loops, spec.factory)(**made, **dict(spec.options))


def _key(kind: str, spec: KernelSpec, detail: Any) -> str:
    """Hash of everything that a built kernel depends on."""
    parts = [kind, spec.factory, spec.options, spec.sizes, detail, _environment()]
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()[:40]


@functools.cache
def _environment() -> tuple[str, ...]:
    """Versions, sources, processor and threads."""
    return (
        *(metadata.version(name) for name in ("apache-tvm", "apache-tvm-ffi")),
        _sources(),
        platform.system(),
        platform.machine(),
        _processor(),
        os.environ.get("TVM_NUM_THREADS", ""),
        os.environ.get("TVM_SCAN_RECORDS", ""),
        hashlib.sha256("".join(shipped_text()).encode()).hexdigest(),
    )


def _sources() -> str:
    """Digest of this package's own code, so that a changed source never finds an old kernel."""
    digest = hashlib.sha256(tvm_scan.__version__.encode())
    homes = [Path(tvm_scan.__file__).parent]
    schedules = util.find_spec("tvm_scan.schedules")
    if schedules is not None and schedules.origin:
        homes.append(Path(schedules.origin).parent)
    for home in homes:
        for path in sorted(home.rglob("*.py")):
            digest.update(str(path.relative_to(home)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _processor() -> str:
    """Name and instruction set of the processor, which LLVM compiles for."""
    wanted = ("model name", "flags", "Features", "CPU part")
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(line for line in lines if line.partition("\t")[0].strip() in wanted)
