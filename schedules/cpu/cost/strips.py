"""Cost of strips: neighbouring lanes of rows of memory, a row from one step to the next."""

from __future__ import annotations

from math import gcd, inf, log2

from tvm_scan.schedules.cpu.cost.step import Access, Step
from tvm_scan.schedules.cpu.plans import PAGE_BYTES
from tvm_scan.schedules.machine.cpu_chip import CpuChip
from tvm_scan.tir import LINE_BYTES

#: Bytes of a row of lanes whose lines lie side by side for several cores: shorter ones are a part
#: of one line, of longer ones each core has lines of its own. Sums of 48 and 64 columns took two
#: cores of a Zen 5 half of one's time, from 0.5 to 6 MB, and those of 24 and 32 no less than one's.
_SHARED = (64, 128)
#: Cycles of a step whose lines, or the lines beside them, another core writes, too: what is beyond
#: the private caches, and beyond all of them.
_CONTESTED = (8.0, 40.0)
#: Cycles of a step at least if several cores write to its line, of arrays that the private caches
#: hold: sums of 3 integers of 8 bytes take 4.3, and moving averages, which wait 7 for themselves,
#: no more than that. Of those that fill this part of the shared cache a processor says it.
_SAME_LINE = 5.0
_PART = 0.2
#: Columns whose vectors of time do not meet there, since one core is some lines before the other,
#: and cycles of a step for each further one: moving averages of 2, 4, 8, 12 and 14 columns, 16 to
#: 24 MB, take two cores of a Zen 4 in vectors of 16 steps 0, 0, 6, 6 and 12 cycles a step more than
#: by themselves.
_UNMET, _FURTHER = 4, 1.0
#: Bytes of a longer row whose lines the prefetchers of several cores bring to all of them, where
#: each has one block and they go side by side, and cycles of a step then, amid those of cores that
#: do not meet: 32 columns of 8706 sums of 8 bytes take two cores of a Zen 4 30 or 125 us, as they
#: have begun, in blocks of 16, and 30 to 47 in blocks of 8.
_SIDE_BY_SIDE, _MEETING = 256, 20.0
#: Lines that a prefetcher brings beyond the end of a strip, each of them another core's; how many
#: times the private caches of all cores lie between what is there still and what is not; and how
#: strips meet the less the more of them a core has. Sums in two strips take two cores of a Cascade
#: Lake 17 to 23 cycles a line of up to 20 in each, 10 of 32 lines; in four strips, of which two are
#: side by side for half of the time and hardly at once, 2 to 15, in eight 1 to 5. Beyond the last
#: cache two strips are the quickest of all.
_BEYOND, _SPREAD, _APART = 20.0, 3.0, 1.5
#: Tasks of a core from which on it works on no strip at the same time as another core beside it.
#: Of strips that begin within a line both write one line at every step: sums of 145 columns of 940
#: steps take two cores of a Zen 4 27 or 138 us in two strips of 64 and one of 17, as its host has
#: placed them, in strips of 32 10 or 23, and one in whole rows 15.
_NEIGHBOURS = 2.0
#: Rows that are followed at a time from strip to strip: of 11 steps of three arrays strips of 16
#: lanes take half of the time of strips of 1024, of 17 steps twice as long.
_STREAMS = 40
#: The share of a jump within the private cache, and the lines of a strip that wait for one.
_NEAR, _FIRST = 0.25, 2.0
#: Lines of a strip that is not long, and cycles of each of the others: a line of a strip of 1 KB
#: takes 7 to 10 cycles on a Zen 4, of 4 KB 9 to 13, of 8 KB 17.
_SHORT, _LONG = 16.0, 6.0
#: Cycles of a line, for each time that a strip of few steps is twice as long as the prefetcher
#: follows without loss: moving averages of 292486 x 5 in strips of 1 KB take a Zen 5 87 us, of one
#: line 49; maxima of 157114 x 7 in strips of 128, 256 and 2048 bytes 37, 50 and 72.
_DOUBLED = 0.5
#: Cycles of a strip of up to a line, of each array, whose rows all meet in one set of the nearest
#: cache, and fewer where they meet in several, or few of them: lanes one by one, and in vectors of
#: 8, take a Zen 4 5 to 7 (48 and 256 steps of rows that are whole pages), and strips of 16 a Zen 5
#: 11 (1024 steps); of 65536 columns of 8 and 16 steps a Zen 4 2 and 3. The share of lines that are
#: pushed out of a set from which on all take so long.
_MET, _PUSHED = 7.0, 0.88
#: Cycles of a line of a strip whose load waits for the store of a step before: of their addresses
#: a core compares what is within a page. If they differ by less than a line, it waits until the
#: store has left; if by nothing, not as long. (Sums of 2050 columns of 256 steps in strips of 8,
#: 16, 32, 64 and 128 lanes take a Zen 4 97, 65, 60, 53 and 32 us, of 2176 columns 55, 26, 27, 27
#: and 30; what they lose, 2048 columns lose by 0.7, and rows of which the second or third one is
#: as far from a page by a half and a third.)
_STALLED, _ALIKE = 10.0, 0.7
#: Rows in which the store may be, and lines of a strip that wait: of longer ones it leaves sooner.
_BEHIND, _WAITING, _LEFT = 3, 3.0, 24.0


def jumping(step: Step) -> list[Access]:
    """Accesses to strips of lanes a row from the last step's, which is longer than two lines.

    Of few steps the prefetcher follows each, from a strip to the next one.
    """
    accesses = step.moving
    if step.length * len(accesses) <= _STREAMS:
        return []
    far = 2 * LINE_BYTES
    return [a for a in accesses if a.along_lane == 1 and abs(a.along_time or 0) * a.size > far]


def sets_of(row: int) -> int:
    """Sets of the nearest cache in which the lines of rows that are so many bytes apart lie."""
    return PAGE_BYTES // gcd(abs(row), PAGE_BYTES)


def ways_of(chip: CpuChip) -> int:
    """Lines of a set of the nearest cache."""
    return chip.nearest // PAGE_BYTES


def lines_of(a: Access, size: int) -> float:
    """Lines of a strip of ``size`` lanes, at least one."""
    return max(1.0, size * a.size / LINE_BYTES)


def jump_cycles(step: Step, chip: CpuChip, size: int, *, past: bool = False) -> float:
    """Cycles of a step whose strip of lanes lies a row apart from the step's before.

    Stores leave in order: one whose line is not in the nearest cache holds up those behind it. Of
    long strips, other lines are pushed out of that cache, but for those that are stored past it.
    """
    if step.touched <= chip.nearest or size >= step.lanes:
        return 0.0
    strips = [lines_of(a, size) for a in step.moving if a.along_lane == 1]
    cycles = _DOUBLED * sum(n * max(0.0, log2(n / _FIRST)) for n in strips)
    cycles += clash_cycles(step, chip, size, past=past)
    beyond = step.touched > chip.private
    lines = [lines_of(a, size) for a in jumping(step) if a.store]
    cycles += chip.jump * (1.0 if beyond else _NEAR) * sum(min(_FIRST, n) for n in lines)
    if beyond and not past:
        cycles += sum(_LONG * max(0.0, n - _SHORT) for n in lines)
    return cycles


def clash_cycles(step: Step, chip: CpuChip, size: int, *, past: bool = False) -> float:
    """Cycles of a strip whose lines, or addresses, meet those of other rows: see ``_MET``."""
    met = stalled = 0.0
    strips = [a for a in step.moving if a.along_lane == 1 and a.along_time]
    stored = any(a.store for a in strips)
    for a in strips:
        row, lines = abs(a.along_time or 0) * a.size, size * a.size / LINE_BYTES
        if stored and not a.store:
            stalled = max(stalled, _stalled(row, lines) * min(lines, _WAITING, _LEFT / lines))
        sets = sets_of(row)
        pushed = max(0.0, 1.0 - ways_of(chip) * sets / (step.length * len(strips)))
        if not (past and a.store):
            waiting = min(1.0, (pushed / _PUSHED) ** 2)
            met += waiting * _MET / sets * min(1.0, max(0.0, 2 - lines / 4))
    return max(met, stalled)


def _stalled(row: int, lines: float) -> float:
    """Cycles of a line that waits for a store in one of the rows before, so many bytes apart."""
    worst = 0.0
    for rows in range(1, _BEHIND + 1):
        beyond = row * rows % PAGE_BYTES
        apart = min(beyond, PAGE_BYTES - beyond)
        # Before a short strip is done, the next one begins.
        if apart < LINE_BYTES * min(1.0, max(0.5, lines)):
            worst = max(worst, _STALLED / rows * (_ALIKE if apart == 0 else 1.0))
    return worst


def _stored_strips(step: Step) -> list[Access]:
    """Stores whose lanes are neighbours in memory."""
    return [a for a in step.moving if a.store and a.along_lane == 1]


def beside_cycles(step: Step, chip: CpuChip, size: int, tasks: float) -> float:
    """Cycles of a block of lanes if another core stores to the lines beside it: see ``_BEYOND``.

    The less often, the more such blocks, or tasks, there are. If two of few begin within a line,
    both write it wherever a cache holds it: sums of 100 columns of 10510 steps take two cores of a
    Zen 4 116 or 839 us in strips of 64, as its host has placed them, and one in whole rows 95.
    """
    held = min(1.0, max(0.0, _SPREAD - step.touched / (chip.private * chip.cores)))
    stores = _stored_strips(step)
    lines = sum(min(_BEYOND, lines_of(a, size)) for a in stores)
    at_once: float = min(1.0, chip.cores / tasks) ** _APART
    cycles = held * at_once * chip.beside * lines
    if tasks < _NEIGHBOURS * chip.cores:
        near = 1.0 - chip.outside(step.touched)
        for a in stores:
            # The ends of long strips are seldom written at the same time.
            short = min(1.0, _SHORT / lines_of(a, size))
            cycles += near * short * chip.contested * _ends_within_a_line(a, size)
    return step.length * cycles


def border_cycles(step: Step, chip: CpuChip, lanes: int, tasks: float) -> float:
    """Cycles of all blocks for the line of each step where a core's lanes end, within it.

    Both cores write it, and each takes it from the other, however many strips they have: sums of
    205, 300 and 450 columns of 200 to 6400 steps take two cores of a Zen 4 40 to 80 cycles a step
    more in strips of 16, 32 and 64 lanes than those of 208, 304 and 448. Of so few that they write
    it at once it costs more, see ``beside_cycles``.

    Parameters
    ----------
    step : Step
        What is counted.
    chip : CpuChip
        Where.
    lanes : int
        Of the first core.
    tasks : float
        Strips of all.
    """
    if tasks < _NEIGHBOURS * chip.cores:
        return 0.0
    within = sum(_ends_within_a_line(a, lanes) for a in _stored_strips(step))
    near = 1.0 - chip.outside(step.touched)
    return 2.0 * (chip.cores - 1) * near * within * step.length * chip.contested


def _ends_within_a_line(a: Access, size: int) -> float:
    """Share of rows, of several lines, in which strips of so many lanes have a line in common."""
    row = abs(a.along_time or 0) * a.size
    if row <= _SHARED[1]:
        return 0.0
    begins = gcd(row, LINE_BYTES)
    return 1.0 if size * a.size % begins else 1.0 - begins / LINE_BYTES


def contested_cycles(
    step: Step, chip: CpuChip, otherwise: float, at_once: int = 1, tasks: float = inf
) -> float:
    """Cycles of a lane, or of a block of them, if other cores write to its lines or beside them.

    A line of several steps, or lanes, is written by one core after the other: what is written at
    once takes some cycles at least. Of lines side by side, what the private caches hold stays
    there; of the rest each core asks for the others' lines, too.

    Parameters
    ----------
    step : Step
        What is counted.
    chip : CpuChip
        Where.
    otherwise : float
        Cycles of the same without other cores.
    at_once : int
        Steps that a core computes before it writes them.
    tasks : float
        How many there are.
    """
    stores = _stored_strips(step)
    touched, (least, most) = step.touched, _SHARED
    row = step.lanes * stores[0].size if stores else 0
    if 0 < row < least:
        held = touched <= _PART * chip.shared
        if at_once > 1 and not held:
            return _FURTHER * max(0, step.lanes - _UNMET) * step.length
        cycles = _SAME_LINE / at_once if held else chip.contested
        return max(0.0, cycles * step.length - otherwise)
    beyond = touched > 2 * chip.private * tasks
    if most < row <= _SIDE_BY_SIDE and tasks <= chip.cores and beyond:
        return step.length * _MEETING
    # Halves of such a row have a line in common, unless each is one.
    cache = chip.private if row == most else chip.nearest
    if not least <= row <= most or touched <= cache:
        return 0.0
    return step.length * _CONTESTED[touched > 0.75 * chip.shared]
