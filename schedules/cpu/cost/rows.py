"""Cost of several rows along time at once: their lines meet, and their beginnings come late."""

from __future__ import annotations

from functools import lru_cache
from math import ceil

from tvm_scan.schedules.cpu.cost.step import Access, Step
from tvm_scan.schedules.cpu.cost.strips import ways_of
from tvm_scan.schedules.cpu.plans import PAGE_BYTES
from tvm_scan.schedules.machine.cpu_chip import CpuChip
from tvm_scan.tir import LINE_BYTES

#: Bytes of lines that come one by one as a row begins beside others in its page, and of rows that
#: take turns: of rows of 100 to 1400 cells a core takes 35 to 40 ns more for each row of an array
#: as soon as its block covers 2 KB (moving averages, affine steps, Zen 4; Zen 5 the same).
_BEGINNING, COVERED = 768, 2048.0
#: The part of the last cache from that on which others leave to that of which all lines at the
#: beginnings of rows are late, and all those of strips: moving averages of rows of 512 bytes in
#: vectors of 8 rows take a core of a Zen 4 1.3 times as long as in vectors of time where they have
#: 10 MB, of 20 MB 4 times.
BEGUN = 0.5
#: How often rows of different arrays meet in a set: sums of 16 rows of 64 to 1024 KB in vectors of
#: 8 lanes took a Zen 4 13 to 20 cycles a cell in five of nine sizes, in the others 1.2.
_BY_CHANCE = 0.5


def evicted(step: Step, chip: CpuChip, width: int, apart: int = 0) -> float:
    """Bytes of lines that rows of a block take from one another before they are used up.

    Rows of an array that are a multiple of a page apart meet in one set of the nearest cache; on a
    Zen 3, 64 of 4096 steps in vectors of 16 lanes take five times as long as in tiles. Rows of
    two arrays do if these begin equally far into a page, which nobody knows. Polynomials take
    longer than their lines: logarithms of sums of 16 rows of 131072 and of 131008 steps take a
    Cascade Lake 5.0 and 5.5 ms in vectors of 8 lanes, but of 32 rows of 4096 steps a Zen 4 in those
    of 16 322 us, and in tiles 128.

    Parameters
    ----------
    step : Step
        What is counted.
    chip : CpuChip
        Where.
    width : int
        Rows of a block.
    apart : int
        Steps from one to the next where they are chunks of one row.
    """
    if step.touched <= chip.nearest:
        return 0.0
    rows = _met_in_sets(step, width, apart)
    two = sum(sorted((met for _, met in rows), reverse=True)[:2])
    together = two > ways_of(chip) and not step.transcendental
    cells = 0.0
    for a, met in rows:
        share = 1.0 if met > ways_of(chip) else _BY_CHANCE if together else 0.0
        cells += share * a.times * (LINE_BYTES - a.size)
    return step.rows * step.length * cells


def crowded_cycles(step: Step, chip: CpuChip, width: int) -> float:
    """Cycles of a step for lines of several arrays that meet in a set of the nearest cache.

    From the private cache, in which pages lie anywhere, they come again. Restarts of rows of whole
    pages, three arrays of 33 MB, take a Zen 4 in vectors of 4 lanes 2 cycles a cell more than
    others; resets of 16 rows of 65536 steps 621 us, where they begin alike in half of the cases, of
    65552 264, of 8 rows of 512 steps in vectors of 8 lanes 11.6, where they begin alike, and else
    2.5. Polynomials take longer, and lanes in turns use up a line at a time (64 rows of 4096 87 us,
    in vectors of 4 158).
    """
    if step.touched <= chip.nearest or step.transcendental:
        return 0.0
    rows = _met_in_sets(step, width)
    lines = sum(met for _, met in rows)
    if lines <= ways_of(chip):
        return 0.0
    again = width * sum(a.times for a, _ in rows) * (1.0 - ways_of(chip) / lines)
    return _BY_CHANCE * again * LINE_BYTES / (chip.private_rate * chip.cycle)


def _met_in_sets(step: Step, width: int, apart: int = 0) -> list[tuple[Access, int]]:
    """Accesses along time of rows, or chunks of one, and how many of ``width`` meet in a set."""
    rows = [a for a in step.moving if a.along_time in (1, -1)] if apart else step.rows_apart
    return [(a, ceil(meeting((apart or abs(a.along_lane or 0)) * a.size, width))) for a in rows]


@lru_cache(maxsize=1024)
def meeting(row: int, width: int, *, ends: bool = False) -> float:
    """Return how many of ``width`` rows, so many bytes apart, meet in a set.

    Those that are a few bytes from whole pages apart do, too: linear recurrences of 64 rows of
    67584 and 67585 steps of 8 bytes take a Zen 4 6.1 and 6.0 ms in vectors of 4 lanes, of 67600
    steps 2.6. Of rows that begin within a line both ``ends`` of what is read of them count.
    """
    sets = PAGE_BYTES // LINE_BYTES
    offsets = (0, LINE_BYTES - 1) if ends and row % LINE_BYTES else (0,)
    ends_of_rows = (i * row + end for i in range(min(width, sets)) for end in offsets)
    lines = {end // LINE_BYTES % sets for end in ends_of_rows}
    return width * len(offsets) / len(lines)


def unfollowed(step: Step, chip: CpuChip, width: int) -> float:
    """The share of rows along time, ``width`` lanes of them at once, that no prefetcher follows."""
    return max(0.0, 1.0 - chip.followed / max(1, width * len(step.rows_apart)))


def slower(chip: CpuChip) -> float:
    """Time of lines of rows that no prefetcher follows, in that of scattered ones.

    A Cascade Lake takes linear recurrences of 2451 rows of 1593 steps by 4 lanes in 2.8 ms, by 8 in
    3.6.
    """
    return max(1.0, chip.asked * chip.scattered_rate / chip.memory_rate)


def beginnings(step: Step, width: int, region: float) -> float:
    """Bytes of lines at the beginnings of rows, ``width`` lanes of them at once.

    A prefetcher follows one row in a page, and takes those of half a region together for one.
    """
    total, least, most = 0.0, region / 2, region
    for a in step.rows_apart if width > 1 else []:
        row = abs(a.along_lane or 0) * a.size
        confused = min(1.0, max(0.0, (width * row - least) / (most - least)))
        shared = max(0.0, 1.0 - row / PAGE_BYTES)
        total += step.rows * confused * shared * min(_BEGINNING, 1.5 * row)
    return total
