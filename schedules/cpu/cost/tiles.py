"""Cost of the lines of tiles: those that nobody asks for, that come again, or that are late."""

from __future__ import annotations

from math import sqrt

from tvm_scan.schedules.cpu.cost.parts import FILLED
from tvm_scan.schedules.cpu.cost.rows import BEGUN, beginnings, meeting, slower, unfollowed
from tvm_scan.schedules.cpu.cost.step import Step
from tvm_scan.schedules.cpu.cost.strips import ways_of
from tvm_scan.schedules.cpu.lane_streams import TILE_STEPS
from tvm_scan.schedules.cpu.plans import PAGE_BYTES, CpuPlan
from tvm_scan.schedules.machine.cpu_chip import CpuChip
from tvm_scan.tir import LINE_BYTES

#: The share of lines at the beginnings of rows in tiles, which are read a line at a time: sums of
#: 8 million numbers in tiles of 16 rows took a Zen 5 0.7 ms, of rows of 26 to 250 cells 1.7 to 2.8.
_OF_TILES = 1.0
#: How many rows are followed as one is whose cells are read one by one, if lines are read whole:
#: tiles of 16 rows of two arrays lose nothing on a Zen 5, vectors of 8 rows of three a third.
_WHOLE_LINES = 2
#: Pages of the rows of a tile that a prefetcher follows one by one; of more it follows none, since
#: each drives out another: of three arrays a core of a Cascade Lake takes 3.2 million cells in
#: rows of 700, 750, 800 and 1500 in 4.4, 4.3, 7.9 and 8.2 ms.
_PAGES_FOLLOWED = 36
#: The share of lines that no prefetcher follows which come late from a last cache that others use,
#: whether they are asked for or not: linear recurrences of 96 rows of 8000 and of 11000 steps take
#: a Zen 4 in tiles 109 and 193 us if they ask and 110 and 207 if not, under AVX2 156 and 298, and
#: 142 and 257.
_FROM_OTHERS = 0.5
#: How much longer late lines take backwards: linear recurrences of 209 rows of 6678 steps take a
#: Zen 4 in tiles of 16 rows 285 us forwards and 324 backwards, under AVX2 303 to 443, and 540 to
#: 710.
_BACKWARDS = 1.5
#: Lines of a set that are held for each of its ways in the nearest cache, and the share of those
#: beyond that come from memory again. Linear recurrences of rows of 16384 steps and of 16383 take a
#: Zen 5 in tiles of 16 rows 1.3 times as long as those of 16400, in tiles of 32 1.7 times.
#: Each takes so many cycles, of four arrays and more so many, whether it lies in a private cache or
#: beyond: linear recurrences of 100 rows of 1024 steps take 19 and 25 us in tiles of 16 and of 32,
#: of 1000 steps 12 and 14. As the mean of arrays that begin alike in a page and of others, restarts
#: of 32 rows of 16384 and of 16400 steps take a Zen 4 91 and 68 us in tiles of 16, sums of 16 rows
#: of 32768 and 32784 104 and 88, resets of 128 rows of 2048 and 2064 143 and 56.
_HELD, _PUSHED, _WAITED, _OF_FOUR_ARRAYS, _FOUR = 1.7, 0.3, 4.0, 12.0, 4
#: Bytes of pages whose addresses are found together, pages whose addresses the core has at hand,
#: and of how many more all lines would come again: four arrays of rows of 432 kB take 1.8 ms in
#: tiles of 16 rows, where those of 32 take 3.4. In a private cache to look for an address takes so
#: many cycles: maxima of 64 rows of 4112 steps in tiles of 16 and 32 take 17 and 36 us.
_TOGETHER, _PAGES, _MISSED, _SOUGHT = 16384.0, 48.0, 50.0, 16.0


def tiles_beyond_caches(
    plan: CpuPlan, step: Step, chip: CpuChip, memory: dict[str, float], tasks: float
) -> dict[str, float]:
    """Bytes in order, and of lines that nobody sees coming: of tiles beyond the private caches."""
    moved, width = memory["moved"], min(plan.lane_block, step.lanes)
    if memory["footprint"] <= chip.private * min(chip.cores, tasks):
        lines = _SOUGHT * _unknown(step, width) * chip.cycle * chip.private_rate / LINE_BYTES
        return {"moved": moved + lines * step.touched}
    # Nobody asks for the first tiles of a block of rows.
    unasked = min(1.0, plan.prefetch * TILE_STEPS / step.length) if plan.prefetch else 1.0
    far = chip.outside(memory["footprint"], BEGUN)
    if chip.usable < 1.0:
        unasked = far * unasked + (1.0 - far) * _FROM_OTHERS
    lost = unasked * moved * unfollowed(step, chip, width // _WHOLE_LINES)
    begun = far * _OF_TILES * beginnings(step, width, chip.region)
    again = _come_again(step, chip, width) * step.touched
    # Others have their lines in the last cache, too: in tiles 22 MB took a Zen 4 1.6 times as long
    # as 12 MB, and 17 MB 1.3 to 2 times. Short rows lie in pages that are found together:
    # products of 3163 rows of 3 KB take 0.15 ms, as 19 MB of a cache do.
    late = far * chip.late * _pages(step, width) / max(1, width * len(step.rows_apart))
    waits = late / chip.memory_rate * (_BACKWARDS if step.backwards else 1.0)
    if _pages(step, width, PAGE_BYTES) > _PAGES_FOLLOWED:
        # From the last cache they come sooner.
        outside = chip.outside(memory["footprint"], FILLED)
        waits += outside * (chip.asked - 1.0) / chip.memory_rate
        waits += (1.0 - outside) * (sqrt(chip.asked) - 1.0) / chip.shared_rate
    moved -= lost
    again += waits * moved * chip.scattered_rate
    return {"moved": moved, "scattered": lost * slower(chip) + begun + again}


def tile_waits(step: Step, chip: CpuChip, width: int) -> float:
    """Cycles of a step of tiles for lines that were pushed out of the nearest cache.

    Where all come from memory it makes no difference: restarts of 1024 rows of 16384 and of 16400
    steps, 200 MB, take a Zen 4 as long. Polynomials take longer than lines.
    """
    if step.transcendental or not chip.nearest < step.touched <= chip.shared:
        return 0.0
    waited = _WAITED if len(step.rows_apart) < _FOUR else _OF_FOUR_ARRAYS
    lines = width * sum(a.times * a.size for a in step.rows_apart) / LINE_BYTES
    return waited * _pushed_out(step, chip, width) * lines


def _come_again(step: Step, chip: CpuChip, width: int) -> float:
    """The share of lines of tiles that come from memory again before they are used."""
    missed = max(0.0, _pages(step, width) - _PAGES) / _MISSED
    return _PUSHED * _pushed_out(step, chip, width) + missed


def _pages(step: Step, width: int, size: float = _TOGETHER) -> float:
    """Pages of so many bytes that a tile's rows lie in; else those found together are one."""
    return sum(width * min(1.0, abs(a.along_lane or 0) * a.size / size) for a in step.rows_apart)


def _unknown(step: Step, width: int) -> float:
    """The share of them whose addresses the core has to look for."""
    return max(0.0, 1.0 - _PAGES / max(1.0, _pages(step, width)))


def _pushed_out(step: Step, chip: CpuChip, width: int) -> float:
    """The share of lines of tiles that leave the nearest cache before they are used."""
    rows = (abs(a.along_lane or 0) * a.size for a in step.rows_apart)
    met = sum(meeting(row, width, ends=True) for row in rows)
    return max(0.0, 1.0 - _HELD * ways_of(chip) / max(1.0, met))
