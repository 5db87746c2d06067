"""Measuring this machine: small loops and copies, some seconds in all.

What is measured are the clock, the chains of sums, products and maxima, how many chains are under
way, what operations and shuffles of vectors take together, whole ones and halves, the call, the
pool's wake and the rates of the caches and of memory, of one core and of all.
What a count cannot separate (issue widths) stays as estimated.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from tvm.script import tirx as T

from tvm_scan._files import write_file
from tvm_scan.errors import ScanError
from tvm_scan.library import cumsum, linear_recurrence
from tvm_scan.schedules.calibration.cells import of_cells, of_rows, of_tiles
from tvm_scan.schedules.calibration.clock import STEPS, Clock
from tvm_scan.schedules.calibration.costs import (
    COLUMNS,
    LANES,
    agreed,
    contested,
    planned,
    with_constant,
)
from tvm_scan.schedules.calibration.memory import of_cores
from tvm_scan.schedules.cpu.chains import RUN
from tvm_scan.schedules.machine.cpu_chip import CpuChip
from tvm_scan.schedules.machine.cpu_constants import (
    machine_constants,
    processor_name,
    user_file,
)
from tvm_scan.schedules.plan import ScanPlan

#: Columns that are no vector, whose carries stay in no register: 2047 is divided by nothing small.
_FEW = 3
#: Steps of interleaved chains, whose arrays are in the private cache.
_RUNS = 1024
_INTERLEAVED = ScanPlan.of("cpu", "lanes", lane_block=LANES)


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
    known, clock = machine_constants()[0], Clock(seconds)
    summed = clock.step(cumsum(1, STEPS))
    product = clock.step(linear_recurrence(1, STEPS))
    # A step that sums and takes a maximum, less the sum.
    clipped = clock.step(_clipped())
    # Chains that take turns in runs of steps: more are under way the more of them wait. What a
    # product and its store take then says how many wait.
    interleaved = clock.cell(linear_recurrence(LANES, _RUNS), _INTERLEAVED)
    known = replace(
        known,
        cycle=clock.cycle,
        sum_latency=summed,
        product_latency=product,
        extremum_latency=max(1.0, clipped - summed),
        forward=max(1.0, clock.step(cumsum(COLUMNS, STEPS, axis=0)) - summed),
        reread=max(0.1, clock.step(cumsum(_FEW, STEPS, axis=0)) - summed),
        window=2.0 * RUN * max(0.5, product / max(0.1, interleaved) - 1.0),
        start=clock.start,
        **of_cores(clock, known),
        **of_rows(clock),
        **of_tiles(clock, known),
    )
    known = replace(known, **of_cells(clock, known))
    for name, runs in planned(known).items():
        measure = partial(agreed, clock, known, name, runs)
        known = with_constant(known, name, clock.steady(measure))
    return replace(known, contested=contested(clock, known))


def _clipped() -> Any:
    """A sum that is held above a number at every step."""

    @T.prim_func(s_tir=True)
    def clipped(
        X: T.Buffer((1, STEPS), "float32"),
        Y: T.Buffer((1, STEPS), "float32"),
    ) -> None:
        for i, t in T.grid(1, STEPS):
            Y[i, t] = T.max(
                T.if_then_else(t > 0, Y[i, t - 1], T.float32(0)) + X[i, t], T.float32(0)
            )

    return clipped
