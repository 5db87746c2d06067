"""Do the processors that this process may run on have cores of their own at the moment?

Two virtual processors of a rented machine are sometimes two cores, and sometimes the two threads of
one, by turns of seconds. Vectors then take up to twice as long on both, and a plan with threads is
timed as if it had none. A measurement that compares plans with and without threads waits for cores.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm.script import tirx as T

from tvm_scan.arguments import host_target
from tvm_scan.schedules.machine.machine import host_cores

__all__ = ["are_apart", "on_cores"]

#: How much longer the work of every core may take beside the others' than alone.
_APART = 1.25
#: Products and sums of one vector of 16 after another, ten side by side: about 0.1 ms.
_REPEATS, _VECTORS = 1 << 15, 10


@functools.cache
def _probe() -> Any:
    @T.prim_func(s_tir=True)
    def probe(cells: T.Buffer((64, 160), "float32"), tasks: T.int32):
        for i in T.parallel(tasks):
            for _ in range(_REPEATS):
                for u in T.unroll(_VECTORS):
                    for v in T.vectorized(16):
                        cell = u * 16 + v
                        cells[i, cell] = cells[i, cell] * T.float32(0.999) + T.float32(1)

    run = tvm.compile(probe, target=host_target())["probe"]
    return functools.partial(run, tvm.runtime.tensor(np.zeros((64, 160), "float32")))


def are_apart() -> bool:
    """Whether the work of all cores takes as long as that of one: three times in turns."""
    cores, run = host_cores(), _probe()
    if cores < 2:
        return True
    run(cores)  # wakes the pool
    times: dict[int, list[float]] = {1: [], cores: []}
    for _ in range(3):
        for tasks, samples in times.items():
            start = time.perf_counter()
            run(tasks)
            samples.append(time.perf_counter() - start)
    return min(times[cores]) < _APART * min(times[1])


def on_cores(piece: Callable[[], None], pieces: int, patience: float = 20.0) -> bool:
    """Run a piece of a measurement so many times while the cores are apart.

    Parameters
    ----------
    piece : callable
        Measures, and keeps what it measured.
    pieces : int
        How many are wanted.
    patience : float
        Seconds after which pieces run whatever the cores do.

    Returns
    -------
    bool
        Whether the cores were apart before and after each of them. Others that ran, too, do no
        harm where the least time counts.
    """
    deadline, good = time.perf_counter() + patience, 0
    while good < pieces and time.perf_counter() < deadline:
        if are_apart():
            piece()
            good += are_apart()
        else:
            time.sleep(0.1)
    for _ in range(pieces - good):
        piece()
    return good == pieces
