"""What nvcc says of a kernel: registers, spills and shared memory on a real architecture."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import _toolchain

__all__ = [
    "Resources",
    "compile_ptx",
    "compile_resources",
    "nvcc_available",
    "nvcc_path",
    "nvdisasm_path",
    "sass",
]


@dataclass(frozen=True)
class Resources:
    """What one kernel takes, as ptxas reports it.

    Attributes
    ----------
    registers
        32-bit registers per thread.
    spill_stores, spill_loads
        Bytes per thread that did not fit in registers.
    shared_bytes
        Static shared memory per block.
    stack
        Bytes of stack per thread: local arrays that are indexed at run time, and spills.
    barriers
        Hardware barriers used, of 16; a kernel with any number of ``__syncthreads`` uses one.
    """

    registers: int
    spill_stores: int
    spill_loads: int
    shared_bytes: int
    stack: int
    barriers: int


@functools.cache
def nvcc_path() -> str | None:
    """The nvcc on the PATH, or of ``$CUDA_HOME``, or of /usr/local/cuda."""
    found = shutil.which("nvcc")
    if found is not None:
        return found
    for root in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        if root and (Path(root) / "bin" / "nvcc").exists():
            return str(Path(root) / "bin" / "nvcc")
    return None


@functools.cache
def nvdisasm_path() -> str | None:
    """The nvdisasm on the PATH, beside nvcc, or of the package ``nvidia-cuda-nvdisasm``."""
    found = shutil.which("nvdisasm")
    if found is not None:
        return found
    compiler = nvcc_path()
    places = [Path(compiler).parent] if compiler else []
    places += [Path(root) / "nvidia" / "cu13" / "bin" for root in sys.path]
    return next((str(p / "nvdisasm") for p in places if (p / "nvdisasm").exists()), None)


def nvcc_available() -> bool:
    """Whether there is an nvcc."""
    return nvcc_path() is not None


_ENTRY = re.compile(r"Compiling entry function '(\w+)' for")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_BARRIERS = re.compile(r"used (\d+) barriers")

#: One compilation for the machine code and for what ptxas says of it.
_CUBIN = ["-Xptxas", "-v", "-cubin"]


def parse_resources(report: str) -> dict[str, Resources]:
    """Reads the report of ``ptxas -v``: kernel name to what it takes."""
    found: dict[str, Resources] = {}
    # Each kernel's part begins with the line that names it.
    parts = _ENTRY.split(report)[1:]
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        frame, used = _FRAME.search(text), _USED.search(text)
        if frame is None or used is None:
            raise ValueError(f"nvcc: expected a ptxas report of {name}, got\n{text}")
        shared, barriers = _SHARED.search(text), _BARRIERS.search(text)
        found[name] = Resources(
            registers=int(used.group(1)),
            spill_stores=int(frame.group(2)),
            spill_loads=int(frame.group(3)),
            shared_bytes=int(shared.group(1)) if shared else 0,
            stack=int(frame.group(1)),
            barriers=int(barriers.group(1)) if barriers else 0,
        )
    return found


def compile_resources(source: str, arch: str = "sm_90") -> dict[str, Resources]:
    """Compiles emitted CUDA source to a cubin and reports what each kernel takes.

    Fast math is off, so that the numbers are those of the arithmetic that the tests check.

    Raises
    ------
    RuntimeError
        If there is no nvcc, or with its messages if it rejects the source.
    """
    return parse_resources(_compiled(source, arch, _CUBIN)[0])


def compile_ptx(source: str, arch: str = "sm_90", options: Sequence[str] = ()) -> str:
    """The PTX of emitted CUDA source: what the compiler made of its loads and stores.

    Raises
    ------
    RuntimeError
        If there is no nvcc, or with its messages if it rejects the source.
    """
    return _compiled(source, arch, ["-ptx", *options])[1].decode()


def sass(source: str, arch: str = "sm_90") -> str:
    """The machine code of emitted CUDA source, disassembled.

    Raises
    ------
    RuntimeError
        If nvcc or nvdisasm is missing, or with nvcc's messages if it rejects the source.
    """
    disassembler = nvdisasm_path()
    if disassembler is None:
        raise RuntimeError("nvdisasm: expected it on the PATH, got none; see nvdisasm_path")
    kept = _kept(_version(disassembler), _version(_nvcc()), source, arch)
    if kept.exists():
        return kept.read_text()
    with tempfile.TemporaryDirectory(prefix="cusim-nvcc-") as scratch:
        cubin = Path(scratch) / "kernel.cubin"
        cubin.write_bytes(_compiled(source, arch, _CUBIN)[1])
        done = subprocess.run([disassembler, str(cubin)], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"nvdisasm: {done.stderr[:2000]}")
    _toolchain.publish(done.stdout.encode(), kept)
    return done.stdout


def _nvcc() -> str:
    found = nvcc_path()
    if found is None:
        raise RuntimeError("nvcc: expected nvcc on the PATH or in $CUDA_HOME/bin, got none")
    return found


@functools.cache
def _version(program: str) -> str:
    return subprocess.run([program, "--version"], capture_output=True, text=True).stdout


def _kept(*parts: str) -> Path:
    """Where a result lies: named by all that it depends on, the compiler's version included."""
    folder = _toolchain.cache_directory() / "kernels"
    return folder / f"{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]}.nvcc"


def _compiled(source: str, arch: str, options: list[str]) -> tuple[str, bytes]:
    """What nvcc says, and what it writes; kept on disk, but not what it rejects."""
    nvcc = _nvcc()
    kept = _kept(_version(nvcc), source, arch, *options)
    if kept.exists():
        os.utime(kept)
        said, _, made = kept.read_bytes().partition(b"\0")
        return said.decode(), made
    with tempfile.TemporaryDirectory(prefix="cusim-nvcc-") as scratch:
        unit = Path(scratch) / "kernel.cu"
        unit.write_text(source)
        command = [nvcc, f"-arch={arch}", "-std=c++17", *options]
        outcome = subprocess.run(
            [*command, "-o", str(unit.with_suffix(".out")), str(unit)],
            capture_output=True,
            text=True,
        )
        if outcome.returncode != 0:
            raise RuntimeError(f"nvcc: the source is rejected:\n{outcome.stderr[:4000]}")
        made = unit.with_suffix(".out").read_bytes()
    said = outcome.stderr + outcome.stdout
    _toolchain.publish(said.encode() + b"\0" + made, kept)
    return said, made
