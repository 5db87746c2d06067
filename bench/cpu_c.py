"""The workloads of ``bench.cpu`` in C: loops for the compiler, and AVX-512 by hand."""

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

from tvm_scan.arguments import host_target
from tvm_scan.schedules.machine.machine import Machine

__all__ = ["c_calls"]

Call = Callable[[], Any]
Arrays = Mapping[str, np.ndarray]

_STEPS = {
    "cumsum": ("float h = 0;", "h += x[i]"),
    "affine": ("float h = 0;", "h = a[i] * h + x[i]"),
    "cummax": ("float h = -INFINITY;", "h = h > x[i] ? h : x[i]"),
    "segmented": ("float h = 0;", "h = (a[i] > 0.99f ? 0 : h) + x[i]"),
    "order 2": (
        "float h = 0, g = 0, n;",
        "(n = x[i] + 1.6f * h - 0.7f * g, g = h, h = n)",
    ),
    "logsumexp": (
        "float h = -INFINITY;",
        "h = fmaxf(h, x[i]) + log1pf(expf(-fabsf(h - x[i])))",
    ),
}
_LOOP = """
void run_{name}(const float* a, const float* x, float* out, long rows, long length) {{
  #pragma omp parallel for if (rows > 1 && rows * length > 16384)
  for (long r = 0; r < rows; ++r) {{
    {begin}
    for (long t = 0; t < length; ++t) {{
      const long i = r * length + t;
      out[i] = {step};
    }}
  }}
}}
"""
#: Down the first axis, or the second of three: lanes side by side, in blocks for the cores.
_LANES = """
void run_{name}(const float* a, const float* x, float* out, long batch, long length, long lanes) {{
  #pragma omp parallel for collapse(2) if (batch * length * lanes > 16384)
  for (long b = 0; b < batch; ++b)
    for (long block = 0; block < lanes; block += 512) {{
      const long end = block + 512 < lanes ? block + 512 : lanes;
      for (long t = 0; t < length; ++t)
        for (long c = block; c < end; ++c) {{
          const long i = (b * length + t) * lanes + c;
          const float h = t > 0 ? out[i - lanes] : 0;
          out[i] = {step};
        }}
    }}
}}
"""
_LANE_STEPS = {"cumsum rows": "h + x[i]", "affine middle": "a[i] * h + x[i]"}


def c_calls(kind: str, arrays: Arrays) -> dict[str, Call]:
    """Calls by name; none where there is no gcc.

    Parameters
    ----------
    kind : str
        One of ``bench.cpu_loops.KINDS``.
    arrays : mapping of str to ndarray
        Inputs, and ``out`` to write to.
    """
    library = _library()
    if library is None:
        return {}
    if kind.startswith("selective scan"):
        return _selective(library, arrays)
    if kind not in _STEPS and kind not in _LANE_STEPS:
        return {}
    run, x = getattr(library, "run_" + kind.replace(" ", "_")), arrays["X"]
    pointers = [_pointer(array) for array in (arrays.get("A", x), x, arrays["out"])]
    # What walks down the first of two axes has a batch of one.
    shape = (1, *x.shape) if kind == "cumsum rows" else x.shape
    sizes = [ctypes.c_long(n) for n in shape]
    return {"C -O3": lambda: run(*pointers, *sizes)}


def _selective(library: Any, arrays: Arrays) -> dict[str, Call]:
    half = arrays["u"].dtype.name == "bfloat16"
    run = getattr(library, "selective_bf16" if half else "selective_f32", None)
    batch, channels, length = arrays["u"].shape
    if run is None or arrays["A"].shape[1] != 16 or length % 16:
        return {}
    names = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias")
    given = [np.ascontiguousarray(arrays[n]) for n in names]
    turned = [np.empty((batch, length, 16), "float32") for _ in range(2)]
    pointers = [_pointer(array) for array in (*given, *turned, arrays["out"])]
    sizes = [ctypes.c_long(n) for n in (batch, channels, length)]
    kept = (given, turned)
    return {"C AVX-512": lambda kept=kept: run(*pointers, *sizes)}


def _pointer(array: np.ndarray) -> ctypes.c_void_p:
    return array.ctypes.data_as(ctypes.c_void_p)


@cache
def _library() -> Any:
    if shutil.which("gcc") is None:
        return None
    folder = Path(tempfile.mkdtemp(prefix="tvm-scan-bench-"))
    source, library = folder / "loops.c", folder / "loops.so"
    loops = [
        _LOOP.format(name=kind.replace(" ", "_"), begin=begin, step=step)
        for kind, (begin, step) in _STEPS.items()
    ]
    loops += [
        _LANES.format(name=kind.replace(" ", "_"), step=step) for kind, step in _LANE_STEPS.items()
    ]
    parts = ["#include <math.h>\n", *loops]
    if Machine.of(host_target()).ldexp:
        parts.append(Path(__file__).with_name("selective_avx512.c").read_text())
    source.write_text("".join(parts))
    flags = ["-O3", "-march=native", "-fopenmp", "-shared", "-fPIC"]
    subprocess.run(["gcc", *flags, str(source), "-o", str(library), "-lm"], check=True)
    return ctypes.CDLL(str(library))
