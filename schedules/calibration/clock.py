"""Loops that are timed, and the cycles that they take."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from math import log, prod
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.target import Target

from tvm_scan import tir
from tvm_scan.arguments import host_target
from tvm_scan.library import cumsum, linear_recurrence
from tvm_scan.schedules.nests import schedule_nests
from tvm_scan.schedules.plan import ScanPlan

#: Steps of a loop whose chain is timed: its arrays are in the nearest cache.
STEPS = 2048
#: Calls that a clock can tell apart together, few, so that some batch is undisturbed; and seconds
#: of one that it tells apart by itself.
_BATCH, _LONG = 5, 1e-4
#: Cycles of a step that multiplies and adds integers, on every common processor.
_INTEGER_STEP = 4.0
#: Sets of arrays that a call is timed with.
_SETS = 3
#: How often a constant is measured at most, and how far the clock may be from what it was.
_TRIES, _DRIFT = 4, 0.05


class Clock:
    """Cycles that loops take beside the call; so many seconds are spent on each.

    Attributes
    ----------
    start, cycle : float
        Seconds of a call, and of a cycle.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.start = least(loop_call(cumsum(1, 1)), seconds)
        self._integers = loop_call(linear_recurrence(1, STEPS, "int32", gate="time"), "int32")
        self.cycle = self._now()

    def _now(self) -> float:
        """Seconds of a cycle, which may be others later."""
        return self._step(self._integers, STEPS) / _INTEGER_STEP

    def _step(self, call: Callable[[], Any], steps: int) -> float:
        """Seconds of a step of so many."""
        return max(1e-11, (least(call, self.seconds) - self.start) / steps)

    def steady(self, measure: Callable[[], float]) -> float:
        """Measure while the clock goes as fast as it did first, or nearly: some times at most.

        A processor that is shared with others slows down by a third for seconds, in which a product
        of integers takes 12 or 14 operations on a Cascade Lake, else 8.3.
        """
        values: list[tuple[float, float]] = []
        while len(values) < _TRIES and (not values or values[-1][0] > _DRIFT):
            value = measure()
            values.append((abs(log(self._now() / self.cycle)), value))
        return min(values)[1]

    def step(self, func: Any, dtype: str = "float32", steps: int = STEPS) -> float:
        """Cycles of a step."""
        return self._step(loop_call(func, dtype), steps) / self.cycle

    def cell(self, func: Any, plan: ScanPlan, dtype: str = "float32") -> float:
        """Cycles of a cell by a plan."""
        cells = prod(int(e) for e in func.params[-1].ty.shape)
        return self.step(on_one_core(func, plan), dtype, cells)

    def least(self, func: Any, dtype: str = "float32", where: Target | None = None) -> float:
        """Seconds of a call, in arrays of their own each time, of which some lie badly together."""
        runs = loop_calls(func, _SETS, dtype, where)
        return min(least(run, self.seconds / _SETS) for run in runs)


def narrower() -> Target:
    """Return this machine without vectors of 64 bytes."""
    attrs = host_target().attrs
    names = {name: attrs[name] for name in ("mtriple", "mcpu") if name in attrs}
    return Target({"kind": "llvm", **names, "mattr": ["-avx512f"]})


def on_one_core(func: Any, plan: ScanPlan, where: Target | None = None) -> Any:
    """A loop by a plan, whose blocks of lanes one core takes one by one."""
    planned = schedule_nests(func, where or host_target(), plan)

    def serial(loop: tirx.For) -> tirx.For:
        shared = loop.kind == tirx.ForKind.PARALLEL
        return tir.loop_with(loop, loop.body, tirx.ForKind.SERIAL) if shared else loop

    return planned.with_body(tvm_ffi.structural_map(planned.body, (tirx.For, serial)))


def loop_call(func: Any, dtype: str = "float32") -> Callable[[], Any]:
    """Return a call of one function."""
    return loop_calls(func, 1, dtype)[0]


def loop_calls(
    func: Any, count: int, dtype: str = "float32", where: Target | None = None
) -> list[Callable[[], Any]]:
    """Calls of one function, each with arrays of its own."""
    run = tvm.compile(func, target=where or host_target())[str(func.attrs["global_symbol"])]
    shapes = [[int(e) for e in p.ty.shape] for p in func.params]
    sets = [[tvm.runtime.tensor(np.ones(s, dtype)) for s in shapes] for _ in range(count)]
    return [partial(run, *arrays) for arrays in sets]


def least(call: Callable[[], Any], seconds: float) -> float:
    """Least seconds of a call, in batches that a clock can tell apart."""
    call()
    first = time.perf_counter()
    call()
    batch = 1 if time.perf_counter() - first > _LONG else _BATCH
    begin, best = time.perf_counter(), float("inf")
    while time.perf_counter() - begin < seconds:
        first = time.perf_counter()
        for _ in range(batch):
            call()
        best = min(best, (time.perf_counter() - first) / batch)
    return best
