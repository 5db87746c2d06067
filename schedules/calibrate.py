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
from functools import partial
from math import log, prod, sqrt
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.script import tirx as T
from tvm.target import Target

from tvm_scan import tir
from tvm_scan._files import write_file
from tvm_scan.errors import ScanError
from tvm_scan.extraction import extract
from tvm_scan.library import cumsum, linear_recurrence
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.cpu.chains import RUN
from tvm_scan.schedules.cpu.cost.lanes import lanes_work
from tvm_scan.schedules.cpu.cost.step import step_of
from tvm_scan.schedules.cpu.lane_streams import TILE_STEPS
from tvm_scan.schedules.cpu.lanes import Lanes
from tvm_scan.schedules.cpu.plans import CpuPlan
from tvm_scan.schedules.cpu.sequential import Sequential
from tvm_scan.schedules.machine.cpu_chip import CpuChip
from tvm_scan.schedules.machine.cpu_constants import (
    last_cache,
    machine_constants,
    processor_name,
    user_file,
    with_features,
)
from tvm_scan.schedules.machine.machine import Machine, host_cores
from tvm_scan.schedules.nests import schedule_nests
from tvm_scan.schedules.plan import ScanPlan

#: Steps of a loop whose chain is timed: its arrays are in the nearest cache.
_STEPS = 2048
#: Calls that a clock can tell apart together, few, so that some batch is undisturbed; and seconds
#: of one that it tells apart by itself.
_BATCH, _LONG = 5, 1e-4
#: Cycles of a step that multiplies and adds integers, on every common processor.
_INTEGER_STEP = 4.0
#: Lines of a cost that are followed to what was measured, how far apart two points of one are, and
#: how many times as far where the cost is the same.
_LINES, _BESIDE, _FARTHER = 8, 1.05, 4.0
#: Sets of arrays that a call is timed with.
_SETS = 3
#: How often a constant is measured at most, and how far the clock may be from what it was.
_TRIES, _DRIFT = 4, 0.05
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
#: As the loop is written.
_LOOP = Sequential()
#: Columns and steps in strips beyond the private cache; rows beyond all caches, in tiles.
_STRIPS, _OF_COLUMNS = (1040, 512), Lanes(lane_block=32, vectorize=True)
_FAR, _FAR_TILES = 96, Lanes(lane_block=16, vectorize=True, transpose=True, prefetch=1)
#: Strips of rows of memory beyond the caches, and cells of a row.
_FAR_STRIPS = [Lanes(lane_block=n, vectorize=True) for n in (64, 512)]
_WIDE = 1024
#: Steps of columns of which no prefetcher follows each, and bytes of a column.
_FEW_STEPS, _COLUMN = 20, 3 * 4 * 20
#: Rows of which LLVM gathers every cell.
_GATHERED = (128, 16)
#: Columns of which two cores write to every line, and cycles of a step that it may take.
_HALF_A_LINE = Lanes(lane_block=_LANES // 2, vectorize=True)
_OF_A_LINE = (5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
#: Shares of the last cache of which copies are timed.
_SHARES = (0.125, 0.1875, 0.25, 0.375, 0.5, 0.75, 1.0)
#: Constants that cycles and bytes are divided by.
_RATES = ("mixed_issue", "mixed_integers", "column_rate")
#: The least that any is, or one of what rates count takes: a product of integers is at least one
#: operation, no processor does more than four in a cycle, none moves a terabyte in a second.
_LEAST = 0.1
_LEASTS = {
    "integer_product": 1.0,
    "mixed_issue": 0.25,
    "mixed_integers": 0.25,
    "column_rate": 1e-12,
    "strips": 0.01,
}

#: A loop, its plan and the dtype of its arrays.
_Run = tuple[Any, CpuPlan, str]


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
    known = replace(
        known,
        cycle=clock.cycle,
        sum_latency=summed,
        product_latency=product,
        extremum_latency=max(1.0, clipped - summed),
        forward=max(1.0, clock.step(cumsum(_COLUMNS, _STEPS, axis=0)) - summed),
        window=2.0 * RUN * max(0.5, product / max(0.1, interleaved) - 1.0),
        start=clock.start,
        **_of_cores(clock, known),
        **_of_rows(clock),
        **_of_tiles(clock, known),
    )
    known = replace(known, **_of_cells(clock, known))
    for name, runs in _planned(known).items():
        agreed = partial(_agreed, clock, known, name, runs)
        known = _with(known, name, clock.steady(agreed))
    return replace(known, contested=_contested(clock, known))


class _Clock:
    """Cycles that loops take beside the call; so many seconds are spent on each.

    Attributes
    ----------
    start, cycle : float
        Seconds of a call, and of a cycle.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.start = _least(_loop(cumsum(1, 1)), seconds)
        self._integers = _loop(linear_recurrence(1, _STEPS, "int32", gate="time"), "int32")
        self.cycle = self._now()

    def _now(self) -> float:
        """Seconds of a cycle, which may be others later."""
        return self._step(self._integers, _STEPS) / _INTEGER_STEP

    def _step(self, call: Callable[[], Any], steps: int) -> float:
        """Seconds of a step of so many."""
        return max(1e-11, (_least(call, self.seconds) - self.start) / steps)

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

    def step(self, func: Any, dtype: str = "float32", steps: int = _STEPS) -> float:
        """Cycles of a step."""
        return self._step(_loop(func, dtype), steps) / self.cycle

    def cell(self, func: Any, plan: ScanPlan, dtype: str = "float32") -> float:
        """Cycles of a cell by a plan."""
        cells = prod(int(e) for e in func.params[-1].ty.shape)
        return self.step(_on_one_core(func, plan), dtype, cells)

    def least(self, func: Any, dtype: str = "float32") -> float:
        """Seconds of a call, in arrays of their own each time, of which some lie badly together."""
        runs = _loops(func, _SETS, dtype)
        return min(_least(run, self.seconds / _SETS) for run in runs)


def _of_rows(clock: _Clock) -> dict[str, Any]:
    """Measure cells that are stored from neighbouring rows, and rows that are read backwards."""
    # Of one cell in, the store is the longest.
    summed = cumsum(_LANES, _ROW)
    back, long = (
        clock.cell(cumsum(_COLUMNS, _CELLS // _COLUMNS, reverse=reverse), _BLOCKS)
        for reverse in (True, False)
    )
    return {
        "stored": min(clock.cell(summed, plan) for plan in (_ROWS, _BLOCKS)),
        "descending": max(0.01, back - long),
    }


def _of_cells(clock: _Clock, known: CpuChip) -> dict[str, Any]:
    """Measure cells that are put into a vector of eight rows, and taken out of it.

    Every step puts two or three of each row in and takes one out.
    """
    took, shares = [], []
    for func in (linear_recurrence(_LANES, _ROW), _weighed()):
        recurrence = _recurrence(func)

        def cost(apart: float, taken: float, recurrence: Recurrence = recurrence) -> float:
            chip = replace(known, apart=apart, taken=taken, stored=0.0)
            return _predicted(_ROWS, recurrence, chip)

        once = cost(1.0, 1.0)
        share = [cost(2.0, 1.0) - once, cost(1.0, 2.0) - once]
        shares.append(share)
        took.append(clock.least(_on_one_core(func, _ROWS)) - once + sum(share))
    apart, taken = np.linalg.solve(shares, took)
    return {"apart": max(0.05, float(apart)), "taken": max(0.25, float(taken))}


def _of_tiles(clock: _Clock, known: CpuChip) -> dict[str, Any]:
    """Measure what tiles take beside what is counted in them."""
    tiles = cumsum(_TILED, _TILES)
    tiled = clock.cell(tiles, _IN_TILES) * _TILED * _TILES
    chip, step = with_features(known, _target()), step_of(_recurrence(tiles))

    def cycles(tile: float) -> float:
        return lanes_work(_IN_TILES, step, replace(chip, tile=tile)).cycles

    return {"tile": max(_LEAST, _met(cycles, tiled))}


def _planned(known: CpuChip) -> dict[str, list[_Run]]:
    """Runs for each constant whose share of a plan's time its cost says, in order."""
    gated, of_integers = (
        linear_recurrence(1, _STEPS, dtype, gate="time") for dtype in ("float32", "int32")
    )
    sums = cumsum(1, _STEPS, "int64")
    # Beyond the caches, in rows that begin at lines.
    beyond = cumsum(_FAR, 2 * known.shared // (2 * 4 * _FAR) // 16 * 16)
    gathers: list[_Run] = [(linear_recurrence(*_GATHERED), _LOOP, "float32")]
    columns = linear_recurrence(2 * known.shared // _COLUMN, _FEW_STEPS, layout="ld")
    rows = cumsum(_WIDE, 2 * known.shared // (2 * 4 * _WIDE), axis=0)
    # Without AVX-512 nothing is gathered.
    of_vectors = {"gathers": gathers} if with_features(known, _target()).vector_bytes == 64 else {}
    return {
        "row": [(cumsum(_CELLS // _SHORT, _SHORT), _BLOCKS, "float32")],
        "mixed_issue": [(gated, plan, "float32") for plan in (_RUNS_OF_TIME, _VECTORS_OF_TIME)],
        # Sums, since no product of integers is known yet.
        "mixed_integers": [(sums, _VECTORS_OF_TIME, "int64")],
        "integer_product": [(of_integers, _RUNS_OF_TIME, "int32")],
        "jump": [(cumsum(*_STRIPS, axis=0), _OF_COLUMNS, "float32")],
        "late": [(beyond, _FAR_TILES, "float32")],
        "column_rate": [(columns, _LOOP, "float32")],
        "strips": [(rows, plan, "float32") for plan in _FAR_STRIPS],
        **of_vectors,
    }


def _agreed(clock: _Clock, known: CpuChip, name: str, runs: list[_Run]) -> float:
    """The constant by which plans cost what they take, amid those of some runs."""
    rate = name in _RATES

    def of(func: Any, plan: CpuPlan, dtype: str) -> float:
        took = clock.least(_on_one_core(func, plan), dtype)
        recurrence = _recurrence(func)

        def cost(value: float) -> float:
            return _predicted(plan, recurrence, _with(known, name, 1 / value if rate else value))

        return _met(cost, took)

    value = max(_LEASTS.get(name, _LEAST), fmean(of(*run) for run in runs))
    return 1 / value if rate else value


def _contested(clock: _Clock, known: CpuChip) -> float:
    """Measure a step in whose line several cores write, of arrays in half of the last cache.

    What it takes at least shows only where it is more than all else, so that this is one of a few.
    """
    cores = host_cores()
    if cores == 1:
        return known.contested
    func = cumsum(_LANES, known.shared // (2 * 2 * 4 * _LANES), axis=0)
    took = clock.least(schedule_nests(func, _target(), _HALF_A_LINE))
    recurrence = _recurrence(func)

    def missed(contested: float) -> float:
        chip = replace(known, contested=contested)
        return abs(log(_predicted(_HALF_A_LINE, recurrence, chip, cores) / took))

    return min(_OF_A_LINE, key=missed)


def _predicted(plan: CpuPlan, recurrence: Recurrence, chip: CpuChip, cores: int = 1) -> float:
    """Seconds that a plan costs on so many cores of these constants."""
    machine = replace(Machine.of(_target()), cores=cores, counting=0.0)
    return plan.cost(recurrence, replace(machine, chip=with_features(chip, _target()))).seconds


def _met(cost: Callable[[float], float], took: float) -> float:
    """The constant whose cost is what was measured; a cost is a few lines of it."""
    value, beside = 1.0, 2.0
    for _ in range(_LINES):
        once = cost(value)
        slope = (cost(beside) - once) / (beside - value)
        if slope <= 0:
            if took <= once:
                break
            beside *= _FARTHER  # where something else takes longer
            continue
        value += (took - once) / slope
        beside = _BESIDE * value
        if value <= 0:
            break
    return value


def _with(chip: CpuChip, name: str, value: float) -> CpuChip:
    changed: dict[str, Any] = {name: value}
    return replace(chip, **changed)


def _of_cores(clock: _Clock, known: CpuChip) -> dict[str, Any]:
    """Count them; measure their wake, and the rates of the caches and of memory."""
    cores, seconds = host_cores(), clock.seconds
    pooled = schedule_nests(cumsum(2, 1), _target(), ScanPlan.of("cpu", "lanes"))
    # Amid the private caches and the shared one, of which other machines' share is not known.
    said = last_cache()
    between = sqrt(known.private * cores * said)
    shared = [_copied(int(between / 2 / n), n, 3, seconds) for n in (1, cores)]
    memory = [_copied(4 * said // n, n, 3, seconds) for n in (1, cores)]
    return {
        "cores": cores,
        "wake": max(1e-8, _least(_loop(pooled), seconds) - clock.start),
        "shared": _left_to_us(said, (1 / shared[0] + 1 / memory[0]) / 2, seconds),
        "near_rate": _copied(known.nearest // 4, 1, 2, seconds),
        "private_rate": _copied(known.private // 3, 1, 2, seconds),
        "shared_rate": shared[0],
        "shared_rates": shared[1],
        "memory_rate": memory[0],
        "memory_rates": memory[1],
    }


def _left_to_us(said: int, middle: float, seconds: float) -> int:
    """Bytes that others leave of the last cache: a copy of them takes ``middle`` seconds a byte."""
    before = None
    for share in _SHARES:
        size = int(share * said)
        took = 1.0 / _copied(size // 2, 1, 3, seconds / 2)
        if took > middle:
            if before is None:
                return size
            least, quick = before
            return int(least + (size - least) * (middle - quick) / (took - quick))
        before = (size, took)
    return said


def _on_one_core(func: Any, plan: ScanPlan) -> Any:
    """A loop by a plan, whose blocks of lanes one core takes one by one."""
    planned = schedule_nests(func, _target(), plan)

    def serial(loop: tirx.For) -> tirx.For:
        shared = loop.kind == tirx.ForKind.PARALLEL
        return tir.loop_with(loop, loop.body, tirx.ForKind.SERIAL) if shared else loop

    return planned.with_body(tvm_ffi.structural_map(planned.body, (tirx.For, serial)))


def _recurrence(func: Any) -> Recurrence:
    recurrence = extract(func)
    assert isinstance(recurrence, Recurrence)
    return recurrence


def _weighed() -> Any:
    """A linear recurrence of whose input a share comes."""

    @T.prim_func(s_tir=True)
    def weighed(
        A: T.Buffer((_LANES, _ROW), "float32"),
        B: T.Buffer((_LANES, _ROW), "float32"),
        X: T.Buffer((_LANES, _ROW), "float32"),
        Y: T.Buffer((_LANES, _ROW), "float32"),
    ) -> None:
        for i, t in T.grid(_LANES, _ROW):
            Y[i, t] = A[i, t] * T.if_then_else(t > 0, Y[i, t - 1], T.float32(0)) + B[i, t] * X[i, t]

    return weighed


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
    return _loops(func, 1, dtype)[0]


def _loops(func: Any, count: int, dtype: str = "float32") -> list[Callable[[], Any]]:
    """Calls of one function, each with arrays of its own."""
    run = tvm.compile(func, target=_target())[str(func.attrs["global_symbol"])]
    shapes = [[int(e) for e in p.ty.shape] for p in func.params]
    sets = [[tvm.runtime.tensor(np.ones(s, dtype)) for s in shapes] for _ in range(count)]
    return [partial(run, *arrays) for arrays in sets]


def _least(call: Callable[[], Any], seconds: float) -> float:
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
        return _least(lambda: list(pool.map(copy, arrays)), seconds)
