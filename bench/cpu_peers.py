"""What people would pick on a CPU instead, each at its best setting; None where it cannot run."""

from __future__ import annotations

import ctypes
import importlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["peers_of"]

Call = Callable[[], Any]
Arrays = Mapping[str, np.ndarray]


def peers_of(workload: str, arrays: Arrays) -> dict[str, Call]:
    """Peers of a workload that are installed here.

    Parameters
    ----------
    workload : {"cumsum", "cumsum rows", "affine", "cummax"}
        ``rows``: time is the first axis of (length, lanes).
    arrays : mapping of str to ndarray
        ``X`` and, for affine, ``A``; ``out`` to write to. float32, C-contiguous.

    Returns
    -------
    dict of str to callable
        Each writes, or returns, its result when called.
    """
    makers: dict[str, Callable[[str, Arrays], Call | None]] = {
        "numpy": _numpy,
        "torch": _torch,
        "numba": _numba(parallel=False),
        "numba parallel": _numba(parallel=True),
        "jax": _jax,
        "scipy lfilter": _scipy,
        "C -O3": _c,
    }
    found = {name: make(workload, arrays) for name, make in makers.items()}
    return {name: call for name, call in found.items() if call is not None}


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _axis(workload: str) -> int:
    return 0 if workload.endswith("rows") else -1


def _numpy(workload: str, arrays: Arrays) -> Call | None:
    x, out, axis = arrays["X"], arrays["out"], _axis(workload)
    if workload.startswith("cumsum"):
        return lambda: np.cumsum(x, axis=axis, out=out)
    if workload == "cummax":
        return lambda: np.maximum.accumulate(x, axis=axis, out=out)
    return None


def _torch(workload: str, arrays: Arrays) -> Call | None:
    torch = _module("torch")
    if torch is None or workload == "affine":
        return None
    x, out, axis = torch.from_numpy(arrays["X"]), torch.from_numpy(arrays["out"]), _axis(workload)
    if workload.startswith("cumsum"):
        return lambda: torch.cumsum(x, axis, out=out)
    indices = torch.empty(x.shape, dtype=torch.int64)
    return lambda: torch.cummax(x, axis, out=(out, indices))


def _numba(*, parallel: bool) -> Callable[[str, Arrays], Call | None]:
    def make(workload: str, arrays: Arrays) -> Call | None:
        if _module("numba") is None or workload.endswith("rows"):
            return None
        rows = arrays["X"].shape[0]
        if parallel and rows == 1:
            return None
        run = _numba_kernel(workload, parallel)
        a = arrays.get("A", arrays["X"])
        return lambda: run(a, arrays["X"], arrays["out"])

    return make


@cache
def _numba_kernel(workload: str, parallel: bool) -> Any:
    import numba

    def affine(a: Any, x: Any, out: Any) -> None:
        for row in numba.prange(x.shape[0]):
            h = np.float32(0)
            for t in range(x.shape[1]):
                h = a[row, t] * h + x[row, t]
                out[row, t] = h

    def cumsum(a: Any, x: Any, out: Any) -> None:
        for row in numba.prange(x.shape[0]):
            h = np.float32(0)
            for t in range(x.shape[1]):
                h += x[row, t]
                out[row, t] = h

    def cummax(a: Any, x: Any, out: Any) -> None:
        for row in numba.prange(x.shape[0]):
            h = x[row, 0]
            for t in range(x.shape[1]):
                h = max(h, x[row, t])
                out[row, t] = h

    chosen = {"affine": affine, "cumsum": cumsum, "cummax": cummax}[workload]
    return numba.njit(chosen, parallel=parallel, fastmath=False)


def _jax(workload: str, arrays: Arrays) -> Call | None:
    if (jax := _module("jax")) is None:
        return None
    lax, axis = jax.lax, _axis(workload)
    x = jax.device_put(arrays["X"])
    if workload.startswith("cumsum"):
        run = jax.jit(lambda v: jax.numpy.cumsum(v, axis=axis))
    elif workload == "cummax":
        run = jax.jit(lambda v: lax.cummax(v, axis=v.ndim + axis))
    else:
        a = jax.device_put(arrays["A"])

        def combine(left: Any, right: Any) -> Any:
            return right[0] * left[0], right[0] * left[1] + right[1]

        scan = jax.jit(lambda p, q: lax.associative_scan(combine, (p, q), axis=1)[1])
        return lambda: scan(a, x).block_until_ready()
    return lambda: run(x).block_until_ready()


def _scipy(workload: str, arrays: Arrays) -> Call | None:
    signal = _module("scipy.signal")
    if signal is None or workload != "cumsum":
        return None
    one, poles = np.ones(1, "float32"), np.array([1, -1], "float32")
    return lambda: signal.lfilter(one, poles, arrays["X"], axis=-1)


_C_SOURCE = """
#include <stddef.h>
void cumsum(const float* a, const float* x, float* out, long rows, long length) {
  #pragma omp parallel for
  for (long r = 0; r < rows; ++r) {
    float h = 0;
    for (long t = 0; t < length; ++t) out[r * length + t] = h += x[r * length + t];
  }
}
void affine(const float* a, const float* x, float* out, long rows, long length) {
  #pragma omp parallel for
  for (long r = 0; r < rows; ++r) {
    float h = 0;
    for (long t = 0; t < length; ++t)
      out[r * length + t] = h = a[r * length + t] * h + x[r * length + t];
  }
}
void cummax(const float* a, const float* x, float* out, long rows, long length) {
  #pragma omp parallel for
  for (long r = 0; r < rows; ++r) {
    float h = x[r * length];
    for (long t = 0; t < length; ++t) {
      h = h > x[r * length + t] ? h : x[r * length + t];
      out[r * length + t] = h;
    }
  }
}
"""


@cache
def _c_library() -> Any:
    if shutil.which("gcc") is None:
        return None
    folder = Path(tempfile.mkdtemp(prefix="tvm-scan-bench-"))
    source, library = folder / "loops.c", folder / "loops.so"
    source.write_text(_C_SOURCE)
    flags = ["-O3", "-march=native", "-fopenmp", "-shared", "-fPIC"]
    subprocess.run(["gcc", *flags, str(source), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


def _c(workload: str, arrays: Arrays) -> Call | None:
    library = None if workload.endswith("rows") else _c_library()
    if library is None:
        return None
    run = getattr(library, workload)
    x = arrays["X"]
    pointers = [
        array.ctypes.data_as(ctypes.c_void_p) for array in (arrays.get("A", x), x, arrays["out"])
    ]
    sizes = [ctypes.c_long(n) for n in x.shape]
    return lambda: run(*pointers, *sizes)
