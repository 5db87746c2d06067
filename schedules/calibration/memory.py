"""Cores, their wake, and the rates of the caches and of memory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from math import sqrt
from typing import Any

import numpy as np

from tvm_scan.arguments import host_target
from tvm_scan.library import cumsum
from tvm_scan.schedules.calibration.clock import Clock, least, loop_call
from tvm_scan.schedules.machine.cpu_chip import CpuChip
from tvm_scan.schedules.machine.cpu_constants import last_cache
from tvm_scan.schedules.machine.machine import host_cores
from tvm_scan.schedules.nests import schedule_nests
from tvm_scan.schedules.plan import ScanPlan

#: Shares of the last cache of which copies are timed.
_SHARES = (0.125, 0.1875, 0.25, 0.375, 0.5, 0.75, 1.0)


def of_cores(clock: Clock, known: CpuChip) -> dict[str, Any]:
    """Count them; measure their wake, and the rates of the caches and of memory."""
    cores, seconds = host_cores(), clock.seconds
    pooled = schedule_nests(cumsum(2, 1), host_target(), ScanPlan.of("cpu", "lanes"))
    # Amid the private caches and the shared one, of which other machines' share is not known.
    said = last_cache()
    between = sqrt(known.private * cores * said)
    shared = [_copied(int(between / 2 / n), n, 3, seconds) for n in (1, cores)]
    memory = [_copied(4 * said // n, n, 3, seconds) for n in (1, cores)]
    return {
        "cores": cores,
        "wake": max(1e-8, least(loop_call(pooled), seconds) - clock.start),
        "shared": left_to_us(said, (1 / shared[0] + 1 / memory[0]) / 2, seconds),
        "near_rate": _copied(known.nearest // 4, 1, 2, seconds),
        "private_rate": _copied(known.private // 3, 1, 2, seconds),
        "shared_rate": shared[0],
        "shared_rates": shared[1],
        "memory_rate": memory[0],
        "memory_rates": memory[1],
    }


def left_to_us(said: int, middle: float, seconds: float) -> int:
    """Bytes that others leave of the last cache: a copy of them takes ``middle`` seconds a byte."""
    before = None
    for share in _SHARES:
        size = int(share * said)
        took = 1.0 / _copied(size // 2, 1, 3, seconds / 2)
        if took > middle:
            if before is None:
                return size
            smaller, quick = before
            return int(smaller + (size - smaller) * (middle - quick) / (took - quick))
        before = (size, took)
    return said


def _copied(size: int, threads: int, moved: int, seconds: float) -> float:
    """Bytes per second of threads that each copy so many bytes again and again.

    A byte that is copied moves as ``moved`` bytes: it is read and written, and beyond the nearer
    caches the line is read before it is written.
    """
    count = max(1, (1 << 24) // size)
    # To copy what the nearest cache holds takes less time than to call NumPy.
    calls = _repeated(1, 1, count, seconds / 4) if threads == 1 else 0.0
    best = _repeated(size, threads, count, seconds)
    return moved * size * count * threads / max(best - calls, best / 8)


def _repeated(size: int, threads: int, count: int, seconds: float) -> float:
    """Least seconds in which threads each copy so many bytes ``count`` times."""
    arrays = [(np.ones(size, "uint8"), np.ones(size, "uint8")) for _ in range(threads)]

    def copy(pair: tuple[np.ndarray, np.ndarray]) -> None:
        for _ in range(count):
            np.copyto(*pair)

    with ThreadPoolExecutor(threads) as pool:
        return least(lambda: list(pool.map(copy, arrays)), seconds)
