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

from bench.cpu_numba import numba_calls

__all__ = ["peers_of"]

Call = Callable[[], Any]
Arrays = Mapping[str, np.ndarray]


def peers_of(kind: str, arrays: Arrays) -> dict[str, Call]:
    """Peers of a workload that are installed here.

    Parameters
    ----------
    kind : str
        One of ``bench.cpu_loops.KINDS``.
    arrays : mapping of str to ndarray
        Inputs, and ``out`` to write to. float32, C-contiguous.

    Returns
    -------
    dict of str to callable
        Each writes, or returns, its result when called.
    """
    makers: dict[str, Callable[[str, Arrays], Call | None]] = {
        "numpy": _numpy,
        "torch": _torch,
        "jax": _jax,
        "scipy lfilter": _scipy,
        "C -O3": _c,
    }
    found = {name: make(kind, arrays) for name, make in makers.items()}
    return {n: call for n, call in found.items() if call is not None} | numba_calls(kind, arrays)


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _axis(kind: str) -> int:
    return 0 if kind.endswith("rows") else -1


def _numpy(kind: str, arrays: Arrays) -> Call | None:
    axis = _axis(kind)
    functions = {"cumsum": np.cumsum, "cumsum rows": np.cumsum, "cummax": np.maximum.accumulate}
    functions["logsumexp"] = np.logaddexp.accumulate
    run = functions.get(kind)
    return None if run is None else lambda: run(arrays["X"], axis=axis, out=arrays["out"])


def _torch(kind: str, arrays: Arrays) -> Call | None:
    if (torch := _module("torch")) is None:
        return None
    if kind == "selective scan":
        return _torch_selective(torch, arrays)
    x, out, axis = torch.from_numpy(arrays["X"]), torch.from_numpy(arrays["out"]), _axis(kind)
    if kind.startswith("cumsum"):
        return lambda: torch.cumsum(x, axis, out=out)
    if kind == "logsumexp":
        return lambda: torch.logcumsumexp(x, axis, out=out)
    if kind == "cummax":
        indices = torch.empty(x.shape, dtype=torch.int64)
        return lambda: torch.cummax(x, axis, out=(out, indices))
    return None


def _torch_selective(torch: Any, arrays: Arrays) -> Call:
    """The sequential reference of mamba-ssm and transformers, one step after another."""
    u, delta, a, b, c, d, z, bias = (
        torch.from_numpy(np.ascontiguousarray(arrays[n]))
        for n in ("u", "delta", "A", "B", "C", "D", "z", "delta_bias")
    )

    def run() -> Any:
        with torch.no_grad():
            dt = torch.nn.functional.softplus(delta + bias[:, None])
            gates = torch.exp(dt[..., None] * a[:, None, :])
            inputs = (dt * u)[..., None] * b.transpose(1, 2)[:, None]
            h = torch.zeros(u.shape[0], u.shape[1], a.shape[1])
            ys = []
            for t in range(u.shape[2]):
                h = gates[:, :, t] * h + inputs[:, :, t]
                ys.append((h @ c[:, :, t, None])[..., 0])
            y = torch.stack(ys, 2) + d[:, None] * u
            return y * torch.nn.functional.silu(z)

    return run


def _jax(kind: str, arrays: Arrays) -> Call | None:
    if (jax := _module("jax")) is None or kind in ("selective scan", "segmented", "order 2"):
        return None
    lax, axis = jax.lax, _axis(kind)
    x = jax.device_put(arrays["X"])
    if kind.startswith("affine"):
        a = jax.device_put(arrays["A"])

        def combine(left: Any, right: Any) -> Any:
            return right[0] * left[0], right[0] * left[1] + right[1]

        scan = jax.jit(lambda p, q: lax.associative_scan(combine, (p, q), axis=1)[1])
        return lambda: scan(a, x).block_until_ready()
    functions = {"cummax": lax.cummax, "logsumexp": lax.cumlogsumexp}
    run = jax.jit(lambda v: functions.get(kind, lax.cumsum)(v, axis=v.ndim + axis if axis else 0))
    return lambda: run(x).block_until_ready()


def _scipy(kind: str, arrays: Arrays) -> Call | None:
    signal = _module("scipy.signal")
    poles = {"cumsum": [1, -1], "order 2": [1, -1.6, 0.7]}.get(kind)
    if signal is None or poles is None:
        return None
    taps = np.ones(1, "float32"), np.array(poles, "float32")
    return lambda: signal.lfilter(*taps, arrays["X"], axis=-1)


_C_STEPS = {
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
_C_LOOP = """
void run_{name}(const float* a, const float* x, float* out, long rows, long length) {{
  #pragma omp parallel for
  for (long r = 0; r < rows; ++r) {{
    {begin}
    for (long t = 0; t < length; ++t) {{
      const long i = r * length + t;
      out[i] = {step};
    }}
  }}
}}
"""


@cache
def _c_library() -> Any:
    if shutil.which("gcc") is None:
        return None
    folder = Path(tempfile.mkdtemp(prefix="tvm-scan-bench-"))
    source, library = folder / "loops.c", folder / "loops.so"
    loops = [
        _C_LOOP.format(name=kind.replace(" ", "_"), begin=begin, step=step)
        for kind, (begin, step) in _C_STEPS.items()
    ]
    source.write_text("#include <math.h>\n" + "".join(loops))
    flags = ["-O3", "-march=native", "-fopenmp", "-shared", "-fPIC"]
    subprocess.run(["gcc", *flags, str(source), "-o", str(library), "-lm"], check=True)
    return ctypes.CDLL(str(library))


def _c(kind: str, arrays: Arrays) -> Call | None:
    library = _c_library() if kind in _C_STEPS else None
    if library is None:
        return None
    run = getattr(library, "run_" + kind.replace(" ", "_"))
    x = arrays["X"]
    pointers = [
        array.ctypes.data_as(ctypes.c_void_p) for array in (arrays.get("A", x), x, arrays["out"])
    ]
    sizes = [ctypes.c_long(n) for n in x.shape]
    return lambda: run(*pointers, *sizes)
