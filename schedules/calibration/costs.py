"""Constants by which plans cost what they take: each is what its runs agree on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf, log
from statistics import fmean
from typing import Any, NamedTuple

from tvm.target import Target

from tvm_scan.arguments import host_target
from tvm_scan.extraction import extract
from tvm_scan.library import cumsum, linear_recurrence
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.calibration.clock import STEPS, Clock, narrower, on_one_core
from tvm_scan.schedules.cpu.lanes import Lanes
from tvm_scan.schedules.cpu.plans import CpuPlan
from tvm_scan.schedules.cpu.sequential import Sequential
from tvm_scan.schedules.machine.cpu_chip import CpuChip
from tvm_scan.schedules.machine.cpu_constants import with_features
from tvm_scan.schedules.machine.machine import Machine, host_cores
from tvm_scan.schedules.nests import schedule_nests

#: Lines of a cost that are followed to what was measured, how far apart two points of one are, and
#: how many times as far where the cost is the same.
_LINES, _BESIDE, _FARTHER = 8, 1.05, 4.0
#: Lanes of a few chains, and columns of a full vector.
LANES, COLUMNS = 8, 16
#: Cells of rows in blocks of scalars, and steps of short ones.
CELLS, _SHORT = 1536, 12
BLOCKS = Lanes(lane_block=4)
#: Vectors of time: of most shuffles for an operation, and of fewest.
_RUNS_OF_TIME = Lanes(time_vector=64, time_runs=True)
_VECTORS_OF_TIME = Lanes(time_vector=32)
_HALF_VECTORS = Lanes(time_vector=8)
#: Of cells that lie apart.
_APART = [Lanes(time_vector=16), Lanes(time_vector=64, time_runs=True)]
#: As the loop is written.
_LOOP = Sequential()
#: Columns and steps in strips beyond the private cache; rows beyond all caches, in tiles.
_STRIPS, _OF_COLUMNS = (1040, 512), Lanes(lane_block=32, vectorize=True)
_FAR, _FAR_TILES = 96, Lanes(lane_block=16, vectorize=True, transpose=True, prefetch=1)
#: Strips of rows of memory beyond the caches that no prefetcher follows, and cells of a row.
_FAR_STRIPS = [Lanes(lane_block=n, vectorize=True) for n in (64, 128)]
_WIDE = 1024
#: Steps of columns of which no prefetcher follows each, and bytes of a column.
_FEW_STEPS, _COLUMN = 20, 3 * 4 * 20
#: Rows of which LLVM gathers every cell.
_GATHERED = (128, 16)
#: Columns of which two cores write to every line, and cycles of a step that it may take.
_HALF_A_LINE = Lanes(lane_block=LANES // 2, vectorize=True)
_OF_A_LINE = (5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
#: A strip for each core, side by side, and the share of their private caches that they fill. As a
#: host has placed two cores of a Zen 4, and arrays lie, two strips of 64 columns of 3072 steps take
#: them 0 to 40 cycles a line more than apart from each other, of 512 steps 0 to 6.
_STRIP, _FILLED = Lanes(lane_block=32, vectorize=True), 0.75
#: Constants that cycles and bytes are divided by.
_RATES = ("mixed_issue", "mixed_integers", "narrow", "column_rate")
#: The least that any is, or one of what rates count takes: a product of integers is at least one
#: operation, no processor does more than four in a cycle, none moves a terabyte in a second, no
#: line comes sooner since it is asked for. With some the most: half a vector takes no longer than a
#: whole one, nor less than half of its time.
LEAST = 0.1
_LIMITS = {
    "integer_product": (1.0, inf),
    "mixed_issue": (0.25, inf),
    "mixed_integers": (0.25, inf),
    "narrow": (0.5, 1.0),
    "column_rate": (1e-12, inf),
    "asked": (1.0, inf),
    "past_alone": (1.0, 4.0),
    "beside": (0.0, inf),
    "strips": (0.01, inf),
}


class Run(NamedTuple):
    """A loop, its plan, the dtype of its arrays, the target if that is no whole machine, cores."""

    func: Any
    plan: CpuPlan
    dtype: str = "float32"
    where: Target | None = None
    cores: int = 1


def planned(known: CpuChip) -> dict[str, list[Run]]:
    """Runs for each constant whose share of a plan's time its cost says, in order."""
    gated, of_integers = (
        linear_recurrence(1, STEPS, dtype, gate="time") for dtype in ("float32", "int32")
    )
    sums = cumsum(1, STEPS, "int64")
    # Beyond the caches, in rows that begin at lines, of two arrays and of three.
    beyond, many = (
        family(_FAR, 2 * known.shared // (arrays * 4 * _FAR) // 16 * 16)
        for family, arrays in ((cumsum, 2), (linear_recurrence, 3))
    )
    columns = linear_recurrence(2 * known.shared // _COLUMN, _FEW_STEPS, layout="ld")
    rows = cumsum(_WIDE, 2 * known.shared // (2 * 4 * _WIDE), axis=0)
    # Without AVX-512 nothing is gathered, and no vector is a half.
    of_whole_lines = {}
    if with_features(known, host_target()).vector_bytes == 64:
        halves = [Run(gated, plan, where=narrower()) for plan in (_RUNS_OF_TIME, _HALF_VECTORS)]
        gathers = [Run(linear_recurrence(*_GATHERED), _LOOP)]
        of_whole_lines = {"narrow": halves, "gathers": gathers}
    of_several = {}
    if (cores := host_cores()) > 1:
        lanes = _STRIP.lane_block * cores
        strips = cumsum(lanes, int(_FILLED * known.private * cores / (2 * 4 * lanes)), axis=0)
        of_several = {"beside": [Run(strips, _STRIP, cores=cores)]}
    return {
        "row": [Run(cumsum(CELLS // _SHORT, _SHORT), BLOCKS)],
        "mixed_issue": [Run(gated, plan) for plan in (_RUNS_OF_TIME, _VECTORS_OF_TIME)],
        **of_whole_lines,
        "strided": [Run(linear_recurrence(2, STEPS, layout="ld"), plan) for plan in _APART],
        # Sums, since no product of integers is known yet.
        "mixed_integers": [Run(sums, _VECTORS_OF_TIME, "int64")],
        "integer_product": [Run(of_integers, _RUNS_OF_TIME, "int32")],
        "jump": [Run(cumsum(*_STRIPS, axis=0), _OF_COLUMNS)],
        "late": [Run(beyond, _FAR_TILES)],
        "asked": [Run(many, _FAR_TILES)],
        "column_rate": [Run(columns, _LOOP)],
        "strips": [Run(rows, plan) for plan in _FAR_STRIPS],
        "past_alone": [Run(cumsum(1, known.shared // 2), replace(_RUNS_OF_TIME, nontemporal=True))],
        **of_several,
    }


def agreed(clock: Clock, known: CpuChip, name: str, runs: list[Run]) -> float:
    """The constant by which plans cost what they take, amid those of some runs."""
    rate = name in _RATES

    def of(run: Run) -> float:
        if run.cores == 1:
            loop = on_one_core(run.func, run.plan, run.where)
        else:
            loop = schedule_nests(run.func, run.where or host_target(), run.plan)
        took, recurrence = clock.least(loop, run.dtype, run.where), recurrence_of(run.func)

        def cost(value: float) -> float:
            chip = with_constant(known, name, 1 / value if rate else value)
            return predicted(run.plan, recurrence, chip, run.cores, run.where)

        return met(cost, took)

    least, most = _LIMITS.get(name, (LEAST, inf))
    value = min(most, max(least, fmean(map(of, runs))))
    return 1 / value if rate else value


def contested(clock: Clock, known: CpuChip) -> float:
    """Measure a step in whose line several cores write, of arrays in half of the last cache.

    What it takes at least shows only where it is more than all else, so that this is one of a few.
    """
    cores = host_cores()
    if cores == 1:
        return known.contested
    func = cumsum(LANES, known.shared // (2 * 2 * 4 * LANES), axis=0)
    took = clock.least(schedule_nests(func, host_target(), _HALF_A_LINE))
    recurrence = recurrence_of(func)

    def missed(contested: float) -> float:
        chip = replace(known, contested=contested)
        return abs(log(predicted(_HALF_A_LINE, recurrence, chip, cores) / took))

    return min(_OF_A_LINE, key=missed)


def predicted(
    plan: CpuPlan,
    recurrence: Recurrence,
    chip: CpuChip,
    cores: int = 1,
    where: Target | None = None,
) -> float:
    """Seconds that a plan costs on so many cores of these constants."""
    where = where or host_target()
    machine = replace(Machine.of(where), cores=cores, counting=0.0)
    return plan.cost(recurrence, replace(machine, chip=with_features(chip, where))).seconds


def met(cost: Callable[[float], float], took: float) -> float:
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


def with_constant(chip: CpuChip, name: str, value: float) -> CpuChip:
    """Return the constants with another value of one."""
    changed: dict[str, Any] = {name: value}
    return replace(chip, **changed)


def recurrence_of(func: Any) -> Recurrence:
    """Return what a loop of the library is."""
    recurrence = extract(func)
    assert isinstance(recurrence, Recurrence)
    return recurrence
