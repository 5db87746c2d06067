"""Lines of memory that lanes read and write: those that come again, one by one, or late."""

from __future__ import annotations

from math import log2

from tvm_scan.schedules.cpu.cost.parts import FETCHED, FILLED
from tvm_scan.schedules.cpu.cost.rows import BEGUN, COVERED, beginnings, slower, unfollowed
from tvm_scan.schedules.cpu.cost.step import Access, Step
from tvm_scan.schedules.cpu.cost.strips import jumping, lines_of
from tvm_scan.schedules.cpu.cost.tiles import tiles_beyond_caches
from tvm_scan.schedules.cpu.cost.vectors import SOONER
from tvm_scan.schedules.cpu.plans import CpuPlan
from tvm_scan.schedules.machine.cpu_chip import CpuChip
from tvm_scan.tir import LINE_BYTES

#: Lines that come one by one in the time of a line of a strip whose next one is a row apart: often
#: in another page of DRAM, which opens for it alone (three shapes on a Zen 4: 8 to 9 GB/s a core).
_OPENED = 2.2
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
#: Lines of the longest strips that are stored past the caches without loss, the share of all bytes
#: that come one by one for each time that they are twice as long, and the most: in strips of 64,
#: 128, 256, 512 and 1024 lanes, asked for 16 steps ahead, affine steps of 8 x 2048 x 1024 take a
#: Zen 4 4.3, 4.0 to 5.0, 5.8, 6.7 and 6.5 ms, sums of 4096 columns of 4096 steps 2.8, 2.7, 3.4, 3.7
#: and 4.1.
_LONG_STRIP, _OF_LONG, _MOST_OF_LONG = 8.0, 0.2, 0.5
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
    """Bytes in order, and of lines that nobody sees coming, beyond the caches."""
    if plan.transpose:
        return tiles_beyond_caches(plan, step, chip, memory, tasks)
    if not chip.is_beyond(memory["footprint"]):
        return {}
    moved, width = memory["moved"], min(plan.lane_block, step.lanes)
    far, begins = (chip.outside(memory["footprint"], over) for over in (FILLED, BEGUN))
    lost, jumps = far * unfollowed(step, chip, width), _jumping(step, chip, width)
    begun = beginnings(step, width, chip.region if plan.vectorize else COVERED)
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
    if memory["past"]:
        begun += far * _of_long_strips(step, chip, width) * memory["past"]
    opened = max(_OPENED, chip.scattered_rate / chip.column_rate)
    scattered = moved * (lost * slower(chip) + opened * jumps) + begun
    return {"moved": moved * (1.0 - lost - jumps), "scattered": scattered}


def _overrun(step: Step, width: int) -> float:
    """The share of the lines of long strips of few rows that come one by one."""
    few = width < step.lanes and step.length * len(step.moving) <= _FOLLOWED_ROWS
    return _OVERRUN if few and _longest_strip(step, width) > _SHORT_STRIP else 0.0


def _of_long_strips(step: Step, chip: CpuChip, width: int) -> float:
    """Bytes that come one by one for each that long strips store past the caches."""
    longer = max(1.0, _longest_strip(step, width) / _LONG_STRIP)
    share = min(_MOST_OF_LONG, _OF_LONG * log2(longer))
    # Where a prefetcher does not follow strips, long ones are followed best.
    return max(0.0, 1.0 - chip.strips) * share * step.touched / step.stores


def _longest_strip(step: Step, width: int) -> float:
    """Lines of the longest of its arrays' strips of so many lanes; none where they have none."""
    return max((lines_of(a, width) for a in step.moving if a.along_lane == 1), default=0.0)


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
        beyond = far if chip.usable >= 1.0 else chip.outside(step.touched, BEGUN)
        through = beyond * (_OF_OTHERS if past else _OF_SHORT_ROWS)
    return through * 2.0 * (step.stores - past) + far * _OF_PAST * (step.loads + past)


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
