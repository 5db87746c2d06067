"""Dependencies of a built kernel beside loop and plan: versions, sources, the processor."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
from importlib import metadata, util
from pathlib import Path

import tvm_scan


@functools.cache
def environment() -> tuple[str, ...]:
    """Return versions, sources, processor and threads."""
    return (
        *(metadata.version(name) for name in ("apache-tvm", "apache-tvm-ffi")),
        source_digest(),
        platform.system(),
        platform.machine(),
        _processor(),
        os.environ.get("TVM_NUM_THREADS", ""),
    )


#: What a built kernel depends on, in the package: no help text, no search, no wrapper of torch's.
KERNEL_SOURCES = (
    "*.py",
    "algebra/*.py",
    "extraction/*.py",
    "library/*.py",
    "loops/*.py",
    "relax/**/*.py",
    "schedules/**/*.py",
    "torch/private.py",
    "torch/kernels/building.py",
    "torch/kernels/devices.py",
    "torch/kernels/linking.py",
    "torch/kernels/runtime.py",
    "torch/kernels/scratch.py",
    "torch/kernels/spec.py",
    "torch/kernels/workspace.py",
    "torch/trace/graph.py",
    "torch/trace/lowered.py",
    "torch/trace/sizes.py",
)


@functools.cache
def source_digest(patterns: tuple[str, ...] = KERNEL_SOURCES) -> str:
    """Digest of this package's own code, so that a changed source never finds an old kernel.

    Parameters
    ----------
    patterns : tuple of str
        Which files; ``schedules`` is wherever tvm_scan.schedules is.

    Returns
    -------
    str
        Of the version, and of the files' names and contents.
    """
    digest = hashlib.sha256(tvm_scan.__version__.encode())
    for name, path in package_files(patterns):
        digest.update(name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def package_files(patterns: tuple[str, ...]) -> list[tuple[str, Path]]:
    """Return the package's files that match, with their names within it, in order."""
    homes = {"": Path(tvm_scan.__file__).parent}
    schedules = util.find_spec("tvm_scan.schedules")
    if schedules is not None and schedules.origin:
        homes["schedules/"] = Path(schedules.origin).parent
    by_name: dict[str, Path] = {}
    for pattern in patterns:
        prefix = "schedules/" if pattern.startswith("schedules/") else ""
        for path in homes[prefix].glob(pattern.removeprefix(prefix)):
            by_name[prefix + str(path.relative_to(homes[prefix]))] = path
    return sorted(by_name.items())


def _processor() -> str:
    """Name and instruction set of the processor, which LLVM compiles for."""
    wanted = ("model name", "flags", "Features", "CPU part")
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(line for line in lines if line.partition("\t")[0].strip() in wanted)
