"""Interleaved timing: methods take turns, so that a noisy minute hits all of them alike."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
from tvm.target import Target

from bench.origin import command, commit
from tvm_scan.schedules.machine.cpu_constants import cache_sizes, chip_of
from tvm_scan.schedules.machine.machine import host_processors

__all__ = [
    "GAP",
    "Times",
    "batches_of",
    "interleaved",
    "is_short",
    "machine",
    "times_of",
    "undisturbed",
]

#: Idle seconds before a turn that let the pools of threads of other methods fall asleep; without
#: them, whoever comes after a method on one core pays for waking its own.
GAP = 0.004


#: With 1, timed calls run before all else on the machine, where the user may ask for that.
_REALTIME = "TVM_SCAN_BENCH_REALTIME"


@dataclass(frozen=True)
class Times:
    """Seconds per call of one method; `least` is what a quiet machine would take."""

    median: float
    spread: float
    least: float = float("nan")


def interleaved(
    calls: Mapping[str, Callable[[], Any]],
    *,
    seconds: float = 0.4,
    least: int = 7,
    gap: float = 0.0,
) -> dict[str, Times]:
    """Time methods in turns.

    Parameters
    ----------
    calls : mapping of str to callable
        The methods; each is called once before anything is timed.
    seconds : float
        Time to spend on all of them together, in seconds.
    least : int
        Rounds to make in any case.
    gap : float
        Idle seconds before each turn, for the threads of the method before to fall asleep: several
        pools that wait by spinning slow one another down a hundredfold. A call that is not long
        is made once untimed behind it, to wake its own threads.

    Returns
    -------
    dict of str to Times
        Median, and the interquartile range over the median.
    """
    with undisturbed():
        samples = _sampled(calls, seconds, least, gap)
    return {name: times_of(values) for name, values in samples.items()}


def times_of(samples: list[float]) -> Times:
    """Median, spread and least of seconds per call."""
    low, middle, high = np.percentile(samples, [25, 50, 75])
    return Times(float(middle), float((high - low) / middle), min(samples))


def batches_of(once: Mapping[str, float]) -> dict[str, int]:
    """How many calls of each method to time at once: well above the clock's resolution.

    As many of each, or the quickest alone would be timed when its later calls have found caches
    and branches as they left them; but no more than a millisecond of them.
    """
    needed = int(2e-5 / max(min(once.values()), 1e-7))
    return {n: max(1, min(needed, int(1e-3 / max(s, 1e-7)))) for n, s in once.items()}


def is_short(best: float) -> bool:
    """Whether waking threads, up to 8 ms, counts beside a call: by the best time, not the first.

    The first time of all may have been one that found its threads asleep.
    """
    return best < 0.1


def _sampled(
    calls: Mapping[str, Callable[[], Any]], seconds: float, least: int, gap: float
) -> dict[str, list[float]]:
    once: dict[str, float] = {}
    for name, call in calls.items():
        call()
        start = time.perf_counter()
        call()
        once[name] = time.perf_counter() - start
    batches = batches_of(once)
    samples: dict[str, list[float]] = {name: [] for name in calls}
    begin = time.perf_counter()
    rounds = 0
    while rounds < least or (time.perf_counter() - begin < seconds and rounds < 1000):
        for name, call in calls.items():
            count = batches[name]
            if gap:
                time.sleep(gap)
                if not samples[name] or is_short(min(samples[name])):
                    call()  # wakes its threads, untimed
            start = time.perf_counter()
            for _ in range(count):
                call()
            samples[name].append((time.perf_counter() - start) / count)
        rounds += 1
    return samples


@contextmanager
def undisturbed() -> Iterator[None]:
    """Let the threads of this process run before all others on a machine that is shared.

    Only where ``TVM_SCAN_BENCH_REALTIME=1`` asks for it, on Linux, and as a user who may; what is
    not timed (imports, compilation) keeps its own priority and lets the others live.
    """
    if os.environ.get(_REALTIME) != "1":
        yield
        return
    try:
        _schedule_threads(os.SCHED_FIFO, 10)
        yield
    finally:  # those, too, that were started meanwhile
        _schedule_threads(os.SCHED_OTHER, 0)


def _schedule_threads(policy: int, priority: int) -> None:
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):  # it has ended
            os.sched_setscheduler(int(thread), policy, os.sched_param(priority))


def machine(target: Target) -> dict[str, Any]:
    """What a result was measured on, and how; `shared` is beside other work."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "command": command(),
        "cpu": _cpu_name() + (f" ({mcpu})" if (mcpu := target.attrs.get("mcpu")) else ""),
        "cores": host_processors(),
        "cache_bytes": max(cache_sizes().values(), default=32 << 20),
        "TVM_NUM_THREADS": os.environ.get("TVM_NUM_THREADS", ""),
        "shared": os.environ.get(_REALTIME) == "1",
        "target": str(target),
        # What default plans were chosen by: other machines choose others.
        "constants": asdict(chip_of(target)),
        "python": platform.python_version(),
        "tvm": version("apache-tvm"),
        "numpy": np.__version__,
    }


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor()
