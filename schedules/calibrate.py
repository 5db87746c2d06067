"""Measuring this machine: small loops and copies, some seconds in all.

What is measured are the clock, the chains of sums, products and maxima, how many chains are under
way, what operations and shuffles of vectors take together, the call, the pool's wake and the rates
of the caches and of memory, of one core and of all.
What a count cannot separate (issue widths) stays as estimated.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from math import prod, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm.script import tirx as T
from tvm.target import Target

from tvm_scan._files import write_file
from tvm_scan.errors import ScanError
from tvm_scan.extraction import extract
from tvm_scan.library import cumsum, linear_recurrence
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.cpu.chains import RUN
from tvm_scan.schedules.cpu.cost.lanes import around_block, lanes_work
from tvm_scan.schedules.cpu.cost.step import step_of
from tvm_scan.schedules.cpu.cost.vectors import block_counts
from tvm_scan.schedules.cpu.lane_streams import TILE_STEPS
from tvm_scan.schedules.cpu.lanes import Lanes
from tvm_scan.schedules.machine.cpu_chip import CpuChip
from tvm_scan.schedules.machine.cpu_constants import (
    machine_constants,
    processor_name,
    user_file,
    with_features,
)
from tvm_scan.schedules.machine.machine import host_cores
from tvm_scan.schedules.nests import schedule_nests
from tvm_scan.schedules.plan import ScanPlan

#: Steps of a loop whose chain is timed: its arrays are in the nearest cache.
_STEPS = 2048
#: Calls that a clock can tell apart together; few, so that some batch is undisturbed.
_BATCH = 5
#: Cycles of a step that multiplies and adds integers, on every common processor.
_INTEGER_STEP = 4.0
#: Columns of a full vector.
_COLUMNS = 16
#: Lanes and steps of interleaved chains, of which arrays are in the private cache.
_LANES, _RUNS = 8, 1024
_INTERLEAVED = ScanPlan.of("cpu", "lanes", lane_block=_LANES)
#: Steps of rows that do not meet in a set of the nearest cache.
_ROW = 1000
#: Lanes in a vector.
_ROWS = Lanes(lane_block=_LANES, vectorize=True)
#: Cells of rows in blocks of scalars, and steps of short ones.
_CELLS, _SHORT = 1536, 12
_BLOCKS = Lanes(lane_block=4)
#: Lanes and steps of tiles, whole ones.
_TILED, _TILES = 32, 7 * TILE_STEPS
#: Tiles of lanes.
_IN_TILES = Lanes(lane_block=_TILED, vectorize=True, transpose=True)
#: Vectors of time: of most shuffles for an operation, and of fewest.
_RUNS_OF_TIME = Lanes(time_vector=64, time_runs=True)
_VECTORS_OF_TIME = Lanes(time_vector=32)


def calibrate(seconds: float = 0.3) -> Path:
    """Measure this machine and keep the result for this user.

    Parameters
    ----------
    seconds : float
        To spend on each of about a dozen measurements.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    ScanError
        If no folder for it is known.
    """
    path = user_file()
    if path is None:
        raise ScanError(
            "calibrate: expected a file for this user's constants, got TVM_SCAN_MACHINE=off or no "
            "home; unset it, or name a file there"
        )
    store_constants(measured(seconds), path)
    return path


def store_constants(chip: CpuChip, path: Path) -> None:
    """Write constants to a file, whole or not at all."""
    about = {"processor": processor_name(), "date": time.strftime("%Y-%m-%d")}
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**about, "constants": asdict(chip)}, indent=1) + "\n"
    write_file(path, text.encode())


def measured(seconds: float = 0.3) -> CpuChip:
    """The constants of this machine: measured where they can be, the rest as they are now."""
    known, clock = machine_constants()[0], _Clock(seconds)
    summed = clock.step(cumsum(1, _STEPS))
    product = clock.step(linear_recurrence(1, _STEPS))
    # A step that sums and takes a maximum, less the sum.
    clipped = clock.step(_clipped())
    # Chains that take turns in runs of steps: more are under way the more of them wait. What a
    # product and its store take then says how many wait.
    interleaved = clock.cell(linear_recurrence(_LANES, _RUNS), _INTERLEAVED)
    return replace(
        known,
        cycle=clock.cycle,
        sum_latency=summed,
        product_latency=product,
        extremum_latency=max(1.0, clipped - summed),
        forward=max(1.0, clock.step(cumsum(_COLUMNS, _STEPS, axis=0)) - summed),
        window=2.0 * RUN * max(0.5, product / max(0.1, interleaved) - 1.0),
        start=clock.start,
        **_of_vectors(clock, known),
        **_of_rows(clock, known),
        **_of_tiles(clock, known),
        **_of_cores(clock, known),
    )


class _Clock:
    """Cycles that loops take beside the call; so many seconds are spent on each.

    Attributes
    ----------
    start, cycle : float
        Seconds of a call, and of a cycle.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self.cycle = seconds, 1.0
        self.start = _least(_loop(cumsum(1, 1)), seconds)
        integers = linear_recurrence(1, _STEPS, "int32", gate="time")
        self.cycle = self.step(integers, "int32") / _INTEGER_STEP

    def step(self, func: Any, dtype: str = "float32", steps: int = _STEPS) -> float:
        """Cycles of a step."""
        beside = _least(_loop(func, dtype), self.seconds) - self.start
        return max(1e-11, beside / steps) / self.cycle

    def cell(self, func: Any, plan: ScanPlan, dtype: str = "float32") -> float:
        """Cycles of a cell by a plan."""
        cells = prod(int(e) for e in func.params[-1].ty.shape)
        return self.step(schedule_nests(func, _target(), plan), dtype, cells)


def _of_vectors(clock: _Clock, known: CpuChip) -> dict[str, Any]:
    """Measure what vectors of time take beside what is counted in them."""
    chip = replace(with_features(known, _target()), integer_product=1.0)

    def block(plan: Lanes, func: Any, dtype: str = "float32") -> tuple[float, float, float]:
        """Operations and shuffles of a block, its integer products, and its cycles."""
        counted = step_of(_recurrence(func))
        once, twice = (
            block_counts(plan, counted, replace(chip, integer_product=of)) for of in (1.0, 2.0)
        )
        each = clock.cell(func, plan, dtype) * plan.time_vector
        return once.total, twice.operations - once.operations, each

    gated, of_integers = (
        linear_recurrence(1, _STEPS, dtype, gate="time") for dtype in ("float32", "int32")
    )
    counted = [block(plan, gated) for plan in (_RUNS_OF_TIME, _VECTORS_OF_TIME)]
    mixed = sum(counts / each for counts, _, each in counted) / 2
    # Sums, since no product of integers is known yet.
    counts, _, each = block(_VECTORS_OF_TIME, cumsum(1, _STEPS, "int64"), "int64")
    mixed_integers = counts / each
    counts, products, each = block(_RUNS_OF_TIME, of_integers, "int32")
    # Of 64 bytes; see ``with_features``.
    together = known.together(chip.vector_bytes)
    return {
        "mixed_issue": mixed / together,
        "mixed_integers": mixed_integers / together,
        "integer_product": max(1.0, 1.0 + (each * mixed_integers - counts) / products),
    }


def _of_rows(clock: _Clock, known: CpuChip) -> dict[str, Any]:
    """Measure cells of neighbouring rows in a vector, and what is around blocks of rows."""
    # Eight rows in a vector, of which every step puts two or three cells in and takes one out.
    gated, weighed = (clock.cell(func, _ROWS) for func in (_gated(), _gated(weighed=True)))
    apart = min(gated / 2, max(0.05, weighed - gated))
    # Of one cell in, and of four rows in turns, the store is the longest.
    stored = min(
        clock.cell(cumsum(_LANES, _ROW), _ROWS),
        clock.cell(cumsum(_LANES, _ROW, "int32"), _BLOCKS, "int32"),
    )
    # Of short rows, what is around them is more of the time.
    short, long = (clock.cell(cumsum(_CELLS // n, n), _BLOCKS) for n in (_SHORT, _CELLS // 16))
    around = (short - long) * _BLOCKS.lane_block * _SHORT
    back = clock.cell(cumsum(16, _CELLS // 16, reverse=True), _BLOCKS)
    return {
        "apart": apart,
        "taken": max(0.25, gated - 2 * apart),
        "stored": stored,
        "descending": max(0.01, back - long),
        "row": max(0.1, around / around_block(replace(known, row=1.0), _BLOCKS.lane_block)),
    }


def _of_tiles(clock: _Clock, known: CpuChip) -> dict[str, Any]:
    """Measure what tiles take beside what is counted in them."""
    tiles = cumsum(_TILED, _TILES)
    tiled = clock.cell(tiles, _IN_TILES) * _TILED * _TILES
    chip = with_features(known, _target())
    once, twice = (
        lanes_work(_IN_TILES, step_of(_recurrence(tiles)), replace(chip, tile=of)).alone
        for of in (1.0, 2.0)
    )
    return {"tile": max(0.1, 1.0 + (tiled - once) / (twice - once))}


def _of_cores(clock: _Clock, known: CpuChip) -> dict[str, Any]:
    """Count them; measure their wake, and the rates of the caches and of memory."""
    cores, seconds = host_cores(), clock.seconds
    pooled = schedule_nests(cumsum(2, 1), _target(), ScanPlan.of("cpu", "lanes"))
    # Amid the private caches and the shared one, of which other machines' share is not known.
    between = sqrt(known.private * cores * known.shared)
    shared = [_copied(int(between / 2 / n), n, 3, seconds) for n in (1, cores)]
    memory = [_copied(4 * known.shared // n, n, 3, seconds) for n in (1, cores)]
    return {
        "cores": cores,
        "wake": max(1e-8, _least(_loop(pooled), seconds) - clock.start),
        "near_rate": _copied(known.nearest // 4, 1, 2, seconds),
        "private_rate": _copied(known.private // 3, 1, 2, seconds),
        "shared_rate": shared[0],
        "shared_rates": shared[1],
        "memory_rate": memory[0],
        "memory_rates": memory[1],
    }


def _recurrence(func: Any) -> Recurrence:
    recurrence = extract(func)
    assert isinstance(recurrence, Recurrence)
    return recurrence


def _gated(*, weighed: bool = False) -> Any:
    """A linear recurrence, of whose input a share comes if it is weighed."""
    if not weighed:
        return linear_recurrence(_LANES, _ROW)

    @T.prim_func(s_tir=True)
    def gated(
        A: T.Buffer((_LANES, _ROW), "float32"),
        B: T.Buffer((_LANES, _ROW), "float32"),
        X: T.Buffer((_LANES, _ROW), "float32"),
        Y: T.Buffer((_LANES, _ROW), "float32"),
    ) -> None:
        for i, t in T.grid(_LANES, _ROW):
            Y[i, t] = A[i, t] * T.if_then_else(t > 0, Y[i, t - 1], T.float32(0)) + B[i, t] * X[i, t]

    return gated


def _clipped() -> Any:
    """A sum that is held above a number at every step."""

    @T.prim_func(s_tir=True)
    def clipped(
        X: T.Buffer((1, _STEPS), "float32"),
        Y: T.Buffer((1, _STEPS), "float32"),
    ) -> None:
        for i, t in T.grid(1, _STEPS):
            Y[i, t] = T.max(
                T.if_then_else(t > 0, Y[i, t - 1], T.float32(0)) + X[i, t], T.float32(0)
            )

    return clipped


def _target() -> Target:
    return Target.from_device("cpu")


def _loop(func: Any, dtype: str = "float32") -> Callable[[], Any]:
    run = tvm.compile(func, target=_target())[str(func.attrs["global_symbol"])]
    shapes = [[int(e) for e in p.ty.shape] for p in func.params]
    arrays = [tvm.runtime.tensor(np.ones(shape, dtype)) for shape in shapes]
    return lambda: run(*arrays)


def _least(call: Callable[[], Any], seconds: float, batch: int = _BATCH) -> float:
    """Least seconds of a call, in batches that a clock can tell apart."""
    call()
    begin, best = time.perf_counter(), float("inf")
    while time.perf_counter() - begin < seconds:
        first = time.perf_counter()
        for _ in range(batch):
            call()
        best = min(best, (time.perf_counter() - first) / batch)
    return best


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
        return _least(lambda: list(pool.map(copy, arrays)), seconds, batch=1)
