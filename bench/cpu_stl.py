"""C++'s parallel algorithms, which gcc runs on oneTBB: ``std::inclusive_scan`` and ``for_each``."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["stl_calls"]

Call = Callable[[], Any]
Arrays = Mapping[str, np.ndarray]

#: One row is scanned in parallel; of several each is a task, and so are blocks of columns.
_SOURCE = """
#include <algorithm>
#include <execution>
#include <numeric>
#include <vector>
namespace {
template <class Task> void each(long count, Task task) {
  std::vector<long> tasks(count);
  std::iota(tasks.begin(), tasks.end(), 0);
  std::for_each(std::execution::par, tasks.begin(), tasks.end(), task);
}
}
extern "C" void run_cumsum(const float* x, float* out, long rows, long length) {
  if (rows == 1) {
    std::inclusive_scan(std::execution::par_unseq, x, x + length, out);
    return;
  }
  each(rows, [=](long r) {
    std::inclusive_scan(x + r * length, x + (r + 1) * length, out + r * length);
  });
}
extern "C" void run_cumsum_rows(const float* x, float* out, long length, long lanes) {
  const long width = 512;
  each((lanes + width - 1) / width, [=](long block) {
    const long begin = block * width, end = std::min(lanes, begin + width);
    for (long t = 0; t < length; ++t)
      for (long c = begin; c < end; ++c) {
        const long i = t * lanes + c;
        out[i] = (t > 0 ? out[i - lanes] : 0) + x[i];
      }
  });
}
"""


def stl_calls(kind: str, arrays: Arrays) -> dict[str, Call]:
    """Calls by name; none where there is no g++, or no oneTBB for it.

    Parameters
    ----------
    kind : str
        One of ``bench.cpu_loops.KINDS``.
    arrays : mapping of str to ndarray
        ``X``, of two axes, and ``out`` to write to.
    """
    library = _library() if kind in ("cumsum", "cumsum rows") else None
    if library is None:
        return {}
    run = getattr(library, "run_" + kind.replace(" ", "_"))
    pointers = [arrays[name].ctypes.data_as(ctypes.c_void_p) for name in ("X", "out")]
    sizes = [ctypes.c_long(n) for n in arrays["X"].shape]
    return {"C++ STL, TBB": lambda: run(*pointers, *sizes)}


@cache
def _library() -> Any:
    if shutil.which("g++") is None:
        return None
    folder = Path(tempfile.mkdtemp(prefix="tvm-scan-bench-"))
    source, library = folder / "stl.cc", folder / "stl.so"
    source.write_text(_SOURCE)
    flags = ["-std=c++17", "-O3", "-march=native", "-shared", "-fPIC"]
    command = ["g++", *flags, str(source), "-o", str(library), "-ltbb"]
    if subprocess.run(command, capture_output=True).returncode:
        return None
    return ctypes.CDLL(str(library))
