"""Limits of this machine's cores: bytes of a copy, operations of a matrix product."""

from __future__ import annotations

from time import perf_counter

import numpy as np
import tvm
from tvm.script import tirx as T
from tvm.target import Target

_ROWS, _COLUMNS = 64, 1 << 18
_SIDE = 1024


@T.prim_func(s_tir=True)
def _copy(
    A: T.Buffer((_ROWS, _COLUMNS), "float32"), B: T.Buffer((_ROWS, _COLUMNS), "float32")
) -> None:
    for i in T.parallel(_ROWS):
        for j in range(_COLUMNS):
            with T.sblock("copy"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = A[vi, vj]


def measured_roof(target: Target, tries: int = 5) -> tuple[float, float]:
    """Bytes and float32 operations a second, the best of some tries.

    Parameters
    ----------
    target : tvm.target.Target
        This machine's CPU.
    tries : int
        How often each is run.

    Returns
    -------
    bytes : float
        Read and written a second by a parallel copy of 64 MiB.
    flops : float
        Operations a second in NumPy's product of matrices.
    """
    built = tvm.compile(_copy.with_attr("global_symbol", "main"), target=target)["main"]
    source = tvm.runtime.tensor(np.ones((_ROWS, _COLUMNS), "float32"))
    sink = tvm.runtime.tensor(np.ones((_ROWS, _COLUMNS), "float32"))
    left = np.ones((_SIDE, _SIDE), "float32")
    moved, multiplied = [], []
    for _ in range(tries):
        begin = perf_counter()
        built(source, sink)
        moved.append(perf_counter() - begin)
        begin = perf_counter()
        left @ left
        multiplied.append(perf_counter() - begin)
    return 2 * 4 * _ROWS * _COLUMNS / min(moved), 2 * _SIDE**3 / min(multiplied)
