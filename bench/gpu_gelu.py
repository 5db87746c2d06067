"""GELU on a GPU: the elementwise control of the ladder, whose steps concern loads alone."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import numpy as np
import tvm
from tvm.script import tirx as T
from tvm.target import Target

from bench.gpu_ours import built, cold_times, filled_tensor

__all__ = ["LADDER", "gelu", "gelu_rows"]

_THREADS = 256
#: Name of a step -> elements of a thread, elements of an access. What an exchange would bring, an
#: elementwise loop cannot show: there is none.
LADDER = {
    "thread per element": (1, 1),
    "4 items": (4, 1),
    "vector loads": (4, 4),
    "2 vectors": (8, 4),
    "4 vectors": (16, 4),
}


def gelu(count: int, items: int, width: int) -> tvm.tirx.PrimFunc:
    """``y = x/2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))``, float32.

    Parameters
    ----------
    count : int
        Elements; a multiple of 256 times ``items``.
    items, width : int
        Elements of a thread, and of one access.
    """
    part, blocks = _THREADS * width, count // (_THREADS * items)
    parts = items // width

    @T.prim_func(s_tir=True)
    def main(X: T.Buffer((count,), "float32"), Y: T.Buffer((count,), "float32")):
        for b in T.thread_binding(blocks, "blockIdx.x"):
            for t in T.thread_binding(_THREADS, "threadIdx.x"):
                with T.sblock("gelu"):
                    vb = T.axis.spatial(blocks, b)
                    vt = T.axis.spatial(_THREADS, t)
                    x = T.sblock_alloc_buffer((items,), "float32", scope="local")
                    for k in T.unroll(parts):
                        for j in T.vectorized(width):
                            x[k * width + j] = X[(vb * parts + k) * part + vt * width + j]
                    for k in T.unroll(items):
                        x[k] = (
                            x[k]
                            * T.float32(0.5)
                            * (
                                T.float32(1)
                                + T.tanh(
                                    T.float32(0.7978845608)
                                    * (x[k] + T.float32(0.044715) * x[k] * x[k] * x[k])
                                )
                            )
                        )
                    for k in T.unroll(parts):
                        for j in T.vectorized(width):
                            Y[(vb * parts + k) * part + vt * width + j] = x[k * width + j]

    return main


def gelu_rows(
    target: Target, device: Any, count: int, repeat: int, copy: float
) -> list[dict[str, Any]]:
    """Time the ladder, each step compared with float64 first.

    Parameters
    ----------
    target : tvm.target.Target
        The GPU.
    device : tvm.runtime.Device
        The same.
    count : int
        Elements.
    repeat : int
        Calls of each.
    copy : float
        Bytes per second of a copy.

    Returns
    -------
    list of dict
        Rows of the bench, with an ``error``.
    """
    case = f"gelu {count} float32"
    x = filled_tensor((count,), "float32", (-4.0, 4.0), target, device)
    y = tvm.runtime.empty((count,), "float32", device)
    sample = slice(0, 1 << 20)
    wide = x.numpy()[sample].astype("float64")
    inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)
    want = wide / 2 * (1 + np.tanh(inner))
    rows = []
    for name, (items, width) in LADDER.items():
        kernel = built(gelu(count, items, width), target)
        found = cold_times(kernel, device, repeat, [x, y])
        error = float(np.abs(y.numpy()[sample] - want).max())
        rate = 8.0 * count / found.median
        row = {"case": case, "name": name, "step": True, "error": error, **asdict(found)}
        rows.append({**row, "gbps": rate / 1e9, "of_copy": rate / copy})
    return rows
