"""Lines of memory that lanes read and write: those that come again, one by one, or late."""

from __future__ import annotations

from functools import lru_cache
from math import ceil, sqrt

from tvm_scan.schedules.cpu.cost.parts import FETCHED, FILLED
from tvm_scan.schedules.cpu.cost.step import Access, Step
from tvm_scan.schedules.cpu.cost.strips import jumping, lines_of, ways_of
from tvm_scan.schedules.cpu.cost.vectors import SOONER
from tvm_scan.schedules.cpu.lane_streams import TILE_STEPS
from tvm_scan.schedules.cpu.plans import PAGE_BYTES, CpuPlan
from tvm_scan.schedules.machine.cpu_chip import CpuChip
from tvm_scan.tir import LINE_BYTES

#: Lines that come one by one in the time of a line of a strip whose next one is a row apart: often
#: in another page of DRAM, which opens for it alone (three shapes on a Zen 4: 8 to 9 GB/s a core).
_OPENED = 2.2
#: Bytes of lines that come one by one as a row begins beside others in its page, and of rows that
#: take turns: of rows of 100 to 1400 cells a core takes 35 to 40 ns more for each row of an array
#: as soon as its block covers 2 KB (moving averages, affine steps, Zen 4; Zen 5 the same).
_BEGINNING, _COVERED = 768, 2048.0
#: The part of the last cache from that on which others leave to that of which all lines at the
#: beginnings of rows are late, and all those of strips: moving averages of rows of 512 bytes in
#: vectors of 8 rows take a core of a Zen 4 1.3 times as long as in vectors of time where they have
#: 10 MB, of 20 MB 4 times.
_BEGUN = 0.5
#: How much less of the lines of strips comes one by one if they are asked for some steps ahead.
_ASKED = 0.4
#: Lines of a strip until a prefetcher has seen where it goes: linear recurrences of 40000
#: columns of 40 steps take two cores of a Cascade Lake in strips of 4, 8, 16, 32 and 64 lines 1.45,
#: 1.33, 0.92, 0.73 and 0.83 ms, sums of 4096 columns of 4096 steps 14.8, 14.9, 15.7, 12.1 and 9.6.
_UNSEEN = 16.0
#: Bytes of a strip of which other shares come one by one as it is written through the caches, where
#: rows are so long and where they are longer: these lie in pages of DRAM of their own. Sums of 640
#: columns of 32000 steps take a Zen 4 in strips of 64, 128 and 256 lanes 9.8, 11.6 and 10.4 ms so,
#: past the caches 4.0, 3.6 and 4.8, and whole rows in the loop, on one core, 6.2; linear
#: recurrences of 20000 columns of 300 steps 3.7, 3.3 and 2.7, past the caches 2.1, 1.4 and 1.3. So
#: do short rows that lie in a part of the last cache: linear recurrences of 128 columns of 8000,
#: 15000 and 16384 steps take in strips of 64 lanes 0.22, 0.61 and 0.92 ms, past the caches 0.16,
#: 0.32 and 0.43.
_NARROW_STRIP, _SHORT_ROW = 256, 16384
_OF_SHORT_ROWS, _OF_LONG_ROWS, _OF_PAST = 0.6, 1.25, 0.12
#: The first share where other rows of a strip are stored past the caches: sums of 3000 columns of
#: 3000 steps take a Zen 4 in strips of 64 lanes 1.6 to 2.0 ms so, else 2.2, and in the loop 2.9.
_OF_OTHERS = 0.4
#: Rows that are followed at a time, lines of a strip of them, and the share of the lines of longer
#: strips that come one by one: of 262144 columns of 8 steps strips of 1, 2, 4, 8 and 16 lines take
#: a Zen 4 0.21, 0.20, 0.17, 0.29 and 0.33 ms, of 8 bytes 0.69, 0.74, 0.79, 1.17 and 1.06; of 14
#: steps and more all take the same.
_FOLLOWED_ROWS, _SHORT_STRIP, _OVERRUN = 24, 4.0, 0.3
#: The share of such lines of rows in tiles, which are read a line at a time: sums of 8 million
#: numbers in tiles of 16 rows took a Zen 5 0.7 ms, of rows of 26 to 250 cells 1.7 to 2.8.
_OF_TILES = 0.5
#: How many rows are followed as one is whose cells are read one by one, if lines are read whole:
#: tiles of 16 rows of two arrays lose nothing on a Zen 5, vectors of 8 rows of three a third.
_WHOLE_LINES = 2
#: Pages of the rows of a tile that a prefetcher follows one by one; of more it follows none, since
#: each drives out another: of three arrays a core of a Cascade Lake takes 3.2 million cells in
#: rows of 700, 750, 800 and 1500 in 4.4, 4.3, 7.9 and 8.2 ms.
_PAGES_FOLLOWED = 36
#: Lines of a set that are held for each of its ways in the nearest cache, and the share of those
#: beyond that come from memory again. Linear recurrences of rows of 16384 steps and of 16383 take a
#: Zen 5 in tiles of 16 rows 1.3 times as long as those of 16400, in tiles of 32 1.7 times.
#: Each takes so many cycles, of four arrays and more so many, whether it lies in a private cache or
#: beyond: linear recurrences of 100 rows of 1024 steps take 19 and 25 us in tiles of 16 and of 32,
#: of 1000 steps 12 and 14. As the mean of arrays that begin alike in a page and of others, restarts
#: of 32 rows of 16384 and of 16400 steps take a Zen 4 91 and 68 us in tiles of 16, sums of 16 rows
#: of 32768 and 32784 104 and 88, resets of 128 rows of 2048 and 2064 143 and 56.
_HELD, _PUSHED, _WAITED, _OF_FOUR_ARRAYS, _FOUR = 1.7, 0.3, 4.0, 12.0, 4
#: Bytes of arrays to which the C library gives pages of their own, all of which begin alike, until
#: it has had such a one back: one of two that a program finds does.
_OWN_PAGES = 128 << 10
#: How often rows of different arrays meet in a set: sums of 16 rows of 64 to 1024 KB in vectors of
#: 8 lanes took a Zen 4 13 to 20 cycles a cell in five of nine sizes, in the others 1.2.
_BY_CHANCE = 0.5
#: Bytes of pages whose addresses are found together, pages whose addresses the core has at hand,
#: and of how many more all lines would come again: four arrays of rows of 432 kB take 1.8 ms in
#: tiles of 16 rows, where those of 32 take 3.4. In a private cache to look for an address takes so
#: many cycles: maxima of 64 rows of 4112 steps in tiles of 16 and 32 take 17 and 36 us.
_TOGETHER, _PAGES, _MISSED, _SOUGHT = 16384.0, 48.0, 50.0, 16.0
#: Seconds until a line comes from memory. In selective scans of 27594 channels of 64 steps, strips
#: of 16 lanes wait 98 ns at each step on a Zen 4.
_MEMORY = 100e-9


def one_by_one(step: Step, chip: CpuChip, memory: dict[str, float]) -> dict[str, float]:
    """Bytes of lines that nobody sees coming where every step of a lane goes to another row.

    Linear recurrences of 20 steps over 366,066 columns take a core of a Zen 4 6.1 ms, 19 GB/s.
    """
    if not chip.is_beyond(memory["footprint"]):
        return {}
    lost = memory["moved"] * len(jumping(step)) / len(step.moving)
    scattered = lost * chip.scattered_rate / chip.column_rate
    return {"moved": memory["moved"] - lost, "scattered": scattered}


def flushed(step: Step, chip: CpuChip, past: float) -> float:
    """Bytes in whose time lines leave a last cache that holds them, to be stored past it.

    Maxima of 231853 rows of 26 steps, 48 MB, take a Zen 4 1.4 ms past the caches and 1.05 through
    them, linear recurrences of 13819 rows of 148 steps of 8 bytes 1.2 and 0.9; of 134 MB 2.6 and
    3.2. Tiles, whose lines lie apart, take less past the caches all the same.
    """
    return past * chip.past * min(1.0, max(0.0, 2.0 - step.touched / chip.shared))


def beyond_caches(
    plan: CpuPlan, step: Step, chip: CpuChip, memory: dict[str, float], tasks: float
) -> dict[str, float]:
    """Bytes in order, and of lines that nobody sees coming: of tiles beyond the private caches."""
    moved, beyond = memory["moved"], chip.is_beyond(memory["footprint"])
    width = min(plan.lane_block, step.lanes)
    if plan.transpose:
        if memory["footprint"] <= chip.private * min(chip.cores, tasks):
            lines = _SOUGHT * _unknown(step, width) * chip.cycle * chip.private_rate / LINE_BYTES
            return {"moved": moved + lines * step.touched}
        # Nobody asks for the first tiles of a block of rows.
        unasked = min(1.0, plan.prefetch * TILE_STEPS / step.length) if plan.prefetch else 1.0
        unfollowed = unasked * moved * _unfollowed(step, chip, width // _WHOLE_LINES)
        begun = _OF_TILES * _beginnings(step, width, chip.region)
        begun *= chip.outside(memory["footprint"], _BEGUN)
        again = _come_again(step, chip, width) * step.touched
        # From half of the last cache on, in which others have their lines, too: in tiles 22 MB took
        # a Zen 4 1.6 times as long as 12 MB. Short rows lie in pages that are found together:
        # products of 3163 rows of 3 KB take 0.15 ms, as 19 MB of a cache do.
        far = min(1.0, max(0.0, 4.0 * memory["footprint"] / chip.shared - 2.0))
        far *= _pages(step, width) / max(1, width * len(step.rows_apart))
        waits = far * chip.late / chip.memory_rate
        if _pages(step, width, PAGE_BYTES) > _PAGES_FOLLOWED:
            # From the last cache they come sooner.
            outside = chip.outside(memory["footprint"], FILLED)
            waits += outside * (chip.asked - 1.0) / chip.memory_rate
            waits += (1.0 - outside) * (sqrt(chip.asked) - 1.0) / chip.shared_rate
        moved -= unfollowed
        again += waits * moved * chip.scattered_rate
        return {"moved": moved, "scattered": unfollowed * _slower(chip) + begun + again}
    if not beyond:
        return {}
    far, begins = (chip.outside(memory["footprint"], over) for over in (FILLED, _BEGUN))
    lost, jumps = far * _unfollowed(step, chip, width), _jumping(step, chip, width)
    begun = _beginnings(step, width, chip.region if plan.vectorize else _COVERED)
    begun *= begins
    if width < step.lanes and jumping(step):
        if plan.vectorize:
            begun += _written_in_strips(step, chip, width, memory["past"])
        late = max(0.0, chip.strips - _ASKED) if plan.prefetch else chip.strips
        late *= _unseen(step, width)
        begun += late * begins * (moved + memory["past"])
        if plan.prefetch:
            moved -= SOONER * step.loads
    begun += _overrun(step, width) * moved
    opened = max(_OPENED, chip.scattered_rate / chip.column_rate)
    scattered = moved * (lost * _slower(chip) + opened * jumps) + begun
    return {"moved": moved * (1.0 - lost - jumps), "scattered": scattered}


def _overrun(step: Step, width: int) -> float:
    """The share of the lines of long strips of few rows that come one by one."""
    few = width < step.lanes and step.length * len(step.moving) <= _FOLLOWED_ROWS
    strips = (lines_of(a, width) for a in step.moving if a.along_lane == 1)
    return _OVERRUN if few and max(strips, default=0.0) > _SHORT_STRIP else 0.0


def _slower(chip: CpuChip) -> float:
    """Time of lines of rows that no prefetcher follows, in that of scattered ones.

    A Cascade Lake takes linear recurrences of 2451 rows of 1593 steps by 4 lanes in 2.8 ms, by 8 in
    3.6.
    """
    return max(1.0, chip.asked * chip.scattered_rate / chip.memory_rate)


def _unseen(step: Step, width: int) -> float:
    """The share of the lines of strips that come before a prefetcher follows them."""
    seen = (min(1.0, _UNSEEN / lines_of(a, width)) for a in _out_of_order(step))
    return sum(seen) / len(jumping(step))


def _out_of_order(step: Step) -> list[Access]:
    """Accesses to strips of long rows; of short ones all lines come with every pass, in order.

    Sums of 64 columns of 65536 steps take a Cascade Lake 3.3 ms in strips of 32 (past the caches
    2.4), in whole rows 3.6; of 128 columns in strips of 64 6.6.
    """
    return [a for a in jumping(step) if step.lanes * a.size > FETCHED]


def _written_in_strips(step: Step, chip: CpuChip, width: int, past: float) -> float:
    """Bytes of lines that come one by one as strips are written, so many bytes past the caches."""
    stores = [a for a in step.accesses if a.store]
    far = min(1.0, max(0.0, step.touched / chip.shared - 1.0))
    if any(width * a.size > _NARROW_STRIP for a in stores):
        return far * 2.0 * (step.stores - past)
    through = far * _OF_LONG_ROWS
    if max(abs(a.along_time or 0) * a.size for a in stores) <= _SHORT_ROW:
        # A cache that is these cores' alone holds strips until it is full.
        beyond = far if chip.usable >= 1.0 else chip.outside(step.touched, _BEGUN)
        through = beyond * (_OF_OTHERS if past else _OF_SHORT_ROWS)
    return through * 2.0 * (step.stores - past) + far * _OF_PAST * (step.loads + past)


def evicted(step: Step, chip: CpuChip, width: int, apart: int = 0) -> float:
    """Bytes of lines that rows of a block take from one another before they are used up.

    Rows of an array that are a multiple of a page apart meet in one set of the nearest cache; on a
    Zen 3, 64 of 4096 steps in vectors of 16 lanes take five times as long as in tiles. Rows of
    two arrays do if these begin equally far into a page, which nobody knows. Polynomials take
    longer than the lines: logarithms of sums of 16 rows of 131072 and of 131008 steps take a
    Cascade Lake 5.0 and 5.5 ms in vectors of 8 lanes.

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
    if step.transcendental or step.touched <= chip.nearest:
        return 0.0
    rows = _met(step, width, apart)
    together = sum(sorted((met for _, met in rows), reverse=True)[:2]) > ways_of(chip)
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
    65552 264. Small arrays begin anywhere in a page, and seldom meet. Polynomials take longer, and
    lanes in turns use up a line at a time (64 rows of 4096 87 us, in vectors of 4 158).
    """
    rows = _met(step, width)
    lines = sum(met for _, met in rows)
    large = step.touched >= _OWN_PAGES * len(step.accesses)
    if not large or lines <= ways_of(chip) or step.transcendental:
        return 0.0
    again = width * sum(a.times for a, _ in rows) * (1.0 - ways_of(chip) / lines)
    return _BY_CHANCE * again * LINE_BYTES / (chip.private_rate * chip.cycle)


def _met(step: Step, width: int, apart: int = 0) -> list[tuple[Access, int]]:
    """Accesses along time of rows, or chunks of one, and how many of ``width`` meet in a set."""
    rows = [a for a in step.moving if a.along_time in (1, -1)] if apart else step.rows_apart
    return [(a, ceil(_meeting((apart or abs(a.along_lane or 0)) * a.size, width))) for a in rows]


@lru_cache(maxsize=1024)
def _meeting(row: int, width: int, *, ends: bool = False) -> float:
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


def _unfollowed(step: Step, chip: CpuChip, width: int) -> float:
    """The share of rows along time, ``width`` lanes of them at once, that no prefetcher follows."""
    return max(0.0, 1.0 - chip.followed / max(1, width * len(step.rows_apart)))


def _come_again(step: Step, chip: CpuChip, width: int) -> float:
    """The share of lines of tiles that come from memory again before they are used."""
    missed = max(0.0, _pages(step, width) - _PAGES) / _MISSED
    return _PUSHED * _pushed_out(step, chip, width) + missed


def _pages(step: Step, width: int, size: float = _TOGETHER) -> float:
    """Pages of so many bytes that a tile's rows lie in; else those found together are one."""
    return sum(width * min(1.0, abs(a.along_lane or 0) * a.size / size) for a in step.rows_apart)


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


def _unknown(step: Step, width: int) -> float:
    """The share of them whose addresses the core has to look for."""
    return max(0.0, 1.0 - _PAGES / max(1.0, _pages(step, width)))


def _pushed_out(step: Step, chip: CpuChip, width: int) -> float:
    """The share of lines of tiles that leave the nearest cache before they are used."""
    rows = (abs(a.along_lane or 0) * a.size for a in step.rows_apart)
    met = sum(_meeting(row, width, ends=True) for row in rows)
    return max(0.0, 1.0 - _HELD * ways_of(chip) / max(1.0, met))


def _beginnings(step: Step, width: int, region: float) -> float:
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


def _jumping(step: Step, chip: CpuChip, width: int) -> float:
    """The share of lines that come from memory in strips of one or two, a row from the last one.

    Beyond the last cache, and a part of it within: 6240 x 330 maxima of 8 bytes, 33 MB, take a
    Zen 4 0.83 ms in strips of a line, 0.64 of two, and 0.40 of 16.
    """
    if width >= step.lanes:
        return 0.0
    far = chip.outside(step.touched) ** 2
    narrow = [a for a in _out_of_order(step) if width * a.size <= 2 * LINE_BYTES]
    return far * len(narrow) / len(step.moving)


def step_waits(plan: CpuPlan, step: Step, chip: CpuChip) -> float:
    """Cycles that a strip's steps wait for memory, if they are too long to look a step ahead."""
    if not jumping(step) or not step.is_long:
        return 0.0
    far = min(1.0, 2.0 * step.touched / chip.shared) if step.touched > chip.private else 0.0
    # Nobody asks for the first ones.
    steps = min(step.length, plan.prefetch + 1 if plan.prefetch else step.length)
    return far * steps * _MEMORY / chip.cycle
