"""Peers in CUDA: CUB, our kernels after published schemes, and published kernels from their source.

The sources of the last are no part of this repository: ``bench.gpu_fetch`` brings them into a
folder, and they are compiled there without PyTorch, of whose headers ``bench/gpu_headers`` holds
what they use.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from bench.gpu_cases import Case
from bench.gpu_ours import Expected, Times, affordable, succeed, summary

__all__ = [
    "OPTIONS",
    "PEERS",
    "build",
    "compiled",
    "copy_rate",
    "error_of",
    "none_of_them",
    "sources",
]

_HERE = Path(__file__).parent
_HALVES = "-U__CUDA_NO_HALF_OPERATORS__ -U__CUDA_NO_HALF_CONVERSIONS__ "
_HALVES += "-U__CUDA_NO_BFLOAT16_OPERATORS__ -U__CUDA_NO_BFLOAT16_CONVERSIONS__"
#: Library -> options beside the usual ones; those of the packages are their own.
OPTIONS = {
    "peers": "--extended-lambda",
    "mamba": "--use_fast_math --expt-relaxed-constexpr --expt-extended-lambda " + _HALVES,
    "accelerated": "--fmad=false " + _HALVES,
}
#: Library -> pattern of the file of a package that it includes.
_INCLUDES = {
    "mamba": "**/csrc/selective_scan/selective_scan_fwd_kernel.cuh",
    "accelerated": "**/accelerated_scan/warp.cuh",
}


def sources(peers: Path | None) -> dict[str, Path | None]:
    """Library -> folder of the published source that it needs, among those carried along.

    Parameters
    ----------
    peers : Path or None
        What ``bench.gpu_fetch`` made.

    Returns
    -------
    dict
        None for what needs no such source; libraries whose source is missing are left out.
    """
    found: dict[str, Path | None] = {"peers": None}
    for library, pattern in _INCLUDES.items():
        files = sorted(peers.glob(pattern)) if peers is not None else []
        if files:
            found[library] = files[0].parent
    return found


def build(
    folder: Path, arch: str, nvcc: str, peers: Path | None = None, seconds: float = 600.0
) -> dict[str, Path | str]:
    """Compile the libraries of peers, all at once.

    Parameters
    ----------
    folder : Path
        Where they go; one that was made there of the same sources is kept.
    arch : str
        Such as ``sm_90``.
    nvcc : str
        The compiler.
    peers : Path, optional
        What ``bench.gpu_fetch`` made.
    seconds : float
        When to give up those that are not done.

    Returns
    -------
    dict
        Library -> its file, or what the compiler says.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"cannot write to {folder}")
    running, made, end = {}, {}, time.monotonic() + seconds
    for library, include in sources(peers).items():
        made[library] = folder / f"{library}-{arch}-{_stamp(library):08x}.so"
        if made[library].exists():
            continue
        options = ["-std=c++17", "-O3", "-w", f"-arch={arch}", *OPTIONS[library].split()]
        includes = [f"-I{_HERE / 'gpu_headers'}", *([f"-I{include}"] if include else [])]
        command = [nvcc, *options, *includes, "-shared", "-Xcompiler", "-fPIC"]
        command += ["-o", str(made[library].with_suffix(".part")), str(_HERE / f"gpu_{library}.cu")]
        running[library] = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
    found: dict[str, Path | str] = dict(made)
    for library, process in running.items():
        try:
            said = process.communicate(timeout=max(0.1, end - time.monotonic()))[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with the compilers that it has started
            process.communicate()
            found[library] = f"gpu_{library}.cu is not compiled in {seconds:.0f} s"
            continue
        if process.returncode == 0:
            made[library].with_suffix(".part").rename(made[library])
        else:
            found[library] = f"nvcc rejects gpu_{library}.cu: {said[:1000]}"
    return found


def _stamp(library: str) -> int:
    """Checksum of what a library is made of, but for the packages' sources."""
    parts = [*_HERE.glob("gpu_*.cu*"), *(_HERE / "gpu_headers").rglob("*.*")]
    text = b"".join(part.read_bytes() for part in sorted(parts))
    return zlib.crc32(text + OPTIONS[library].encode())


def none_of_them(why: str) -> dict[str, Path | str]:
    """What ``build`` would return, were nothing there for this reason."""
    return dict.fromkeys(OPTIONS, why)


def compiled(
    folder: Path, arch: str, carried: Path | None, say: Callable[[str], None], seconds: float
) -> dict[str, Path | str]:
    """``build``, where there is a compiler; what is missing is said.

    Parameters
    ----------
    folder, arch, carried, seconds
        Of ``build``.
    say : callable
        Takes a line.

    Returns
    -------
    dict
        Of ``build``.
    """
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        say("no nvcc on the PATH: no peers in CUDA")
        return none_of_them("no nvcc on the PATH")
    end = time.monotonic() + seconds
    try:
        # A second run finds them there.
        kept = folder if carried is None else carried / "built"
        made = build(kept, arch, nvcc, carried, seconds)
    except OSError:  # a folder that nobody may write to
        made = build(folder, arch, nvcc, carried, end - time.monotonic())
    for name, found in made.items():
        if isinstance(found, str):
            say(f"peers in CUDA, {name}: {found}")
    return made


def _call(function: Any, tensors: list[Any], sizes: tuple[int, ...], repeat: int) -> Times:
    """Call one of the functions of a library on TVM's tensors; seldom, if it takes long."""
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in tensors]

    def calls(count: int) -> list[float]:
        found = (ctypes.c_float * count)()
        succeed(function(*pointers, *map(ctypes.c_size_t, sizes), ctypes.c_int(count), found))
        return [ms / 1000 for ms in found]

    first = calls(1)
    count = affordable(first[0], repeat)
    return summary(calls(count) if count > 1 else first)


def copy_rate(library: Path, device: Any, count: int, repeat: int) -> float:
    """Bytes per second of ``cudaMemcpy`` from device to device."""
    tensors = [tvm.runtime.empty((count,), "float32", device) for _ in range(2)]
    function = ctypes.CDLL(str(library)).peer_copy
    return 8.0 * count / _call(function, tensors, (count,), repeat).median


def error_of(name: str, exact: Expected, library: Path, device: Any) -> float:
    """Largest difference of a peer from float64, over the largest magnitude of a result."""
    case = exact.case
    tensors = [
        tvm.runtime.tensor(exact.inputs.get(key, np.full(shape, np.nan, case.numpy_dtype)), device)
        for key, shape in case.shapes().items()
    ]
    PEERS[case.family][name][1](case, tensors, ctypes.CDLL(str(library)), 1)
    (expected,) = exact.outputs.values()
    got = tensors[-1].numpy().astype(np.float64)
    worst = float(np.abs(got - expected).max() / np.abs(expected).max())
    return worst if np.isfinite(worst) else float("inf")


def _simple(function: str, *, halves: bool = False) -> Callable[..., Times]:
    """A peer that takes every array and every size of the case."""

    def run(case: Case, tensors: list[Any], library: Any, repeat: int) -> Times:
        if case.dtype != "float32" and not halves:
            raise NotImplementedError("written for float32")
        name = f"{function}_{case.dtype}" if halves else function
        return _call(getattr(library, name), tensors, case.sizes, repeat)

    return run


def _cub(case: Case, tensors: list[Any], library: Any, repeat: int) -> Times:
    if case.dtype != "float32":
        raise NotImplementedError("written for float32")
    if case.family == "affine":
        return _call(library.peer_cub_affine, tensors, case.sizes, repeat)
    rows, length = case.sizes
    if rows != 1:
        raise NotImplementedError("CUB scans one row")
    return _call(library.peer_cub_sum, tensors, (length,), repeat)


#: Family -> name of a peer -> its library and how it is called.
PEERS: dict[str, dict[str, tuple[str, Callable[..., Times]]]] = {
    "affine": {
        "CUB DeviceScan": ("peers", _cub),
        "accelerated-scan's kernel": ("accelerated", _simple("peer_accelerated", halves=True)),
        "block per row (scheme)": ("peers", _simple("peer_block_per_row")),
        "CUDA, sequential": ("peers", _simple("peer_thread_per_row")),
    },
    "cumsum": {"CUB DeviceScan": ("peers", _cub)},
    "selective": {
        "mamba-ssm's kernel": ("mamba", _simple("peer_mamba", halves=True)),
        "block per channel (scheme)": ("peers", _simple("peer_block_per_channel")),
    },
    "rwkv6": {"block per head (scheme)": ("peers", _simple("peer_block_per_head"))},
}
