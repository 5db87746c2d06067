"""Cells of rows: stored from vectors, put into them and taken out, and in tiles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from tvm.script import tirx as T

from tvm_scan.arguments import host_target
from tvm_scan.library import cumsum, linear_recurrence
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.calibration.clock import Clock, on_one_core
from tvm_scan.schedules.calibration.costs import (
    BLOCKS,
    CELLS,
    COLUMNS,
    LANES,
    LEAST,
    met,
    predicted,
    recurrence_of,
)
from tvm_scan.schedules.cpu.cost.lanes import lanes_work
from tvm_scan.schedules.cpu.cost.step import step_of
from tvm_scan.schedules.cpu.lane_streams import TILE_STEPS
from tvm_scan.schedules.cpu.lanes import Lanes
from tvm_scan.schedules.machine.cpu_chip import CpuChip
from tvm_scan.schedules.machine.cpu_constants import with_features

#: Steps of rows that do not meet in a set of the nearest cache.
_ROW = 1000
#: Lanes in a vector.
_ROWS = Lanes(lane_block=LANES, vectorize=True)
#: Lanes and steps of tiles, whole ones.
_TILED, _TILES = 32, 7 * TILE_STEPS
#: Tiles of lanes.
_IN_TILES = Lanes(lane_block=_TILED, vectorize=True, transpose=True)


def of_rows(clock: Clock) -> dict[str, Any]:
    """Measure cells that are stored from neighbouring rows, and rows that are read backwards."""
    # Of one cell in, the store is the longest.
    summed = cumsum(LANES, _ROW)
    back, long = (
        clock.cell(cumsum(COLUMNS, CELLS // COLUMNS, reverse=reverse), BLOCKS)
        for reverse in (True, False)
    )
    return {
        "stored": min(clock.cell(summed, plan) for plan in (_ROWS, BLOCKS)),
        "descending": max(0.01, back - long),
    }


def of_cells(clock: Clock, known: CpuChip) -> dict[str, Any]:
    """Measure cells that are put into a vector of eight rows, and taken out of it.

    Every step puts two or three of each row in and takes one out.
    """
    took, shares = [], []
    for func in (linear_recurrence(LANES, _ROW), _weighed()):
        recurrence = recurrence_of(func)

        def cost(apart: float, taken: float, recurrence: Recurrence = recurrence) -> float:
            chip = replace(known, apart=apart, taken=taken, stored=0.0)
            return predicted(_ROWS, recurrence, chip)

        once = cost(1.0, 1.0)
        share = [cost(2.0, 1.0) - once, cost(1.0, 2.0) - once]
        shares.append(share)
        took.append(clock.least(on_one_core(func, _ROWS)) - once + sum(share))
    apart, taken = np.linalg.solve(shares, took)
    return {"apart": max(0.05, float(apart)), "taken": max(0.25, float(taken))}


def of_tiles(clock: Clock, known: CpuChip) -> dict[str, Any]:
    """Measure what tiles take beside what is counted in them."""
    tiles = cumsum(_TILED, _TILES)
    tiled = clock.cell(tiles, _IN_TILES) * _TILED * _TILES
    chip, step = with_features(known, host_target()), step_of(recurrence_of(tiles))

    def cycles(tile: float) -> float:
        return lanes_work(_IN_TILES, step, replace(chip, tile=tile)).cycles

    return {"tile": max(LEAST, met(cycles, tiled))}


def _weighed() -> Any:
    """A linear recurrence of whose input a share comes."""

    @T.prim_func(s_tir=True)
    def weighed(
        A: T.Buffer((LANES, _ROW), "float32"),
        B: T.Buffer((LANES, _ROW), "float32"),
        X: T.Buffer((LANES, _ROW), "float32"),
        Y: T.Buffer((LANES, _ROW), "float32"),
    ) -> None:
        for i, t in T.grid(LANES, _ROW):
            Y[i, t] = A[i, t] * T.if_then_else(t > 0, Y[i, t - 1], T.float32(0)) + B[i, t] * X[i, t]

    return weighed
