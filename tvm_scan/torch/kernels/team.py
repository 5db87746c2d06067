"""Tasks of kernels on torch's own threads, instead of those of TVM's pool.

Kernels stand between operators of torch, whose threads (OpenMP's) wait for the next of these in a
loop, some milliseconds long, and take the cores from another pool: 64 steps of 32 x 128 x 128 of a
delta rule, forward and backward, took 60 ms with TVM's pool beside it on two cores, 18 ms without
the waiting. So a library's pointer to the function that runs its tasks is set to one that runs them
as a parallel region of the OpenMP that torch is linked to. `building.build_launcher` makes it.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import torch

#: Of OpenMP, by the names that the launcher has for them.
_NEEDED = {
    "tvm_scan_parallel": "GOMP_parallel",
    "tvm_scan_number": "omp_get_thread_num",
    "tvm_scan_size": "omp_get_num_threads",
}
#: Where a library keeps the function that runs its tasks.
_POINTER = "__TVMBackendParallelLaunch"


def run_on_torchs_threads(library: Path, launcher: Callable[[], Path | None]) -> bool:
    """Let the tasks of a kernel run on torch's threads.

    Parameters
    ----------
    library : Path
        A kernel's, which is loaded.
    launcher : callable
        Returns the library with the function that runs tasks, or None; not asked for a kernel
        that has no tasks.

    Returns
    -------
    bool
        False where there is no launcher, torch has no such OpenMP, or the kernel no tasks: then
        nothing has changed.
    """
    try:
        pointer = ctypes.c_void_p.in_dll(ctypes.CDLL(str(library)), _POINTER)
    except (OSError, ValueError):
        return False
    path = launcher()
    address = None if path is None else _address(path)
    if address is None:
        return False
    pointer.value = address
    return True


@lru_cache(maxsize=1)
def _address(path: Path) -> int | None:
    """Return the address of the function, which knows torch's OpenMP then."""
    openmp = _openmp()
    if openmp is None:
        return None
    try:
        library = ctypes.CDLL(str(path))
        for name, function in openmp.items():
            ctypes.c_void_p.in_dll(library, name).value = function
        threads = int(os.environ.get("TVM_NUM_THREADS", "0") or 0)
        ctypes.c_int32.in_dll(library, "tvm_scan_threads").value = max(0, threads)
        return ctypes.cast(library.tvm_scan_launch, ctypes.c_void_p).value
    except (OSError, ValueError, AttributeError):
        return None


def _openmp() -> dict[str, int] | None:
    """Return the addresses of what is needed of the OpenMP that torch is linked to."""
    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    if not path.is_file() or "OpenMP" not in torch.__config__.parallel_info():
        return None
    try:
        # Names are looked up in what it is linked to, too.
        library = ctypes.CDLL(str(path))
        functions = {name: getattr(library, function) for name, function in _NEEDED.items()}
    except (OSError, AttributeError):
        return None
    addresses = {n: ctypes.cast(f, ctypes.c_void_p).value for n, f in functions.items()}
    return {name: value for name, value in addresses.items() if value}
