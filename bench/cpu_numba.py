"""The workloads of ``bench.cpu`` in numba, sequential and parallel."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np

__all__ = ["numba_calls"]

Call = Callable[[], Any]


def numba_calls(kind: str, arrays: Mapping[str, np.ndarray]) -> dict[str, Call]:
    """Calls by name; none where numba is not installed.

    Parameters
    ----------
    kind : str
        One of ``bench.cpu_loops.KINDS``.
    arrays : mapping of str to ndarray
        Inputs, and ``out`` to write to.
    """
    try:
        import numba  # noqa: F401
    except ImportError:
        return {}
    out = arrays["out"]
    if kind == "selective scan":
        names = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias")
        given = [np.ascontiguousarray(arrays[n]) for n in names]
        run = _kernel(kind, True)
        return {"numba parallel": lambda: run(*given, out)}
    if kind == "selective scan bfloat16":
        return {}
    found = {}
    a, x = arrays.get("A", arrays["X"]), arrays["X"]
    for name, parallel in (("numba", False), ("numba parallel", True)):
        if not parallel or x.shape[0] > 1:
            made = _kernel(kind, parallel)
            found[name] = lambda made=made: made(a, x, out)
    return found


@cache
def _kernel(kind: str, parallel: bool) -> Any:
    import numba

    prange = numba.prange

    def affine(a: Any, x: Any, out: Any) -> None:
        for row in prange(x.shape[0]):
            h = np.float32(0)
            for t in range(x.shape[1]):
                h = a[row, t] * h + x[row, t]
                out[row, t] = h

    def middle(a: Any, x: Any, out: Any) -> None:
        for row in prange(x.shape[0]):
            out[row, 0] = x[row, 0]
            for t in range(1, x.shape[1]):
                for c in range(x.shape[2]):
                    out[row, t, c] = a[row, t, c] * out[row, t - 1, c] + x[row, t, c]

    def cumsum(a: Any, x: Any, out: Any) -> None:
        for row in prange(x.shape[0]):
            h = np.float32(0)
            for t in range(x.shape[1]):
                h += x[row, t]
                out[row, t] = h

    def rows(a: Any, x: Any, out: Any) -> None:
        length, lanes = x.shape
        for block in prange((lanes + 511) // 512):
            first = block * 512
            last = min(first + 512, lanes)
            out[0, first:last] = x[0, first:last]
            for t in range(1, length):
                for c in range(first, last):
                    out[t, c] = out[t - 1, c] + x[t, c]

    def cummax(a: Any, x: Any, out: Any) -> None:
        for row in prange(x.shape[0]):
            h = x[row, 0]
            for t in range(x.shape[1]):
                h = max(h, x[row, t])
                out[row, t] = h

    def segmented(a: Any, x: Any, out: Any) -> None:
        for row in prange(x.shape[0]):
            h = np.float32(0)
            for t in range(x.shape[1]):
                if a[row, t] > np.float32(0.99):
                    h = np.float32(0)
                h += x[row, t]
                out[row, t] = h

    def order_2(a: Any, x: Any, out: Any) -> None:
        one, two = np.float32(1.6), np.float32(-0.7)
        for row in prange(x.shape[0]):
            h = np.float32(0)
            g = np.float32(0)
            for t in range(x.shape[1]):
                new = x[row, t] + one * h + two * g
                g = h
                h = new
                out[row, t] = h

    def logsumexp(a: Any, x: Any, out: Any) -> None:
        for row in prange(x.shape[0]):
            h = np.float32(-np.inf)
            for t in range(x.shape[1]):
                v = x[row, t]
                h = max(h, v) + np.float32(math.log1p(math.exp(-abs(h - v))))
                out[row, t] = h

    def selective(
        u: Any, delta: Any, A: Any, B: Any, C: Any, D: Any, z: Any, bias: Any, out: Any
    ) -> None:
        batch, channels, length = u.shape
        states = A.shape[1]
        for task in prange(batch * channels):
            b, d = task // channels, task % channels
            h = np.zeros(states, np.float32)
            for t in range(length):
                s = delta[b, d, t] + bias[d]
                dt = max(s, np.float32(0)) + math.log1p(math.exp(-abs(s)))
                y = np.float32(0)
                for n in range(states):
                    h[n] = math.exp(dt * A[d, n]) * h[n] + dt * B[b, n, t] * u[b, d, t]
                    y += h[n] * C[b, n, t]
                gate = z[b, d, t]
                out[b, d, t] = (y + D[d] * u[b, d, t]) * gate / (1 + math.exp(-gate))

    chosen = {
        "affine": affine,
        "affine middle": middle,
        "cumsum": cumsum,
        "cumsum rows": rows,
        "cummax": cummax,
        "segmented": segmented,
        "order 2": order_2,
        "logsumexp": logsumexp,
        "selective scan": selective,
    }[kind]
    return numba.njit(chosen, parallel=parallel, fastmath=kind == "selective scan")
