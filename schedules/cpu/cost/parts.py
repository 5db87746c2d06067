"""Parts of the costs of several schedules of CPUs: cycles and bytes of a step."""

from __future__ import annotations

from math import gcd

from tvm_scan.schedules.cpu.cost.count import Counts, Path
from tvm_scan.schedules.cpu.cost.step import Access, Step
from tvm_scan.schedules.cpu.plans import CpuPlan
from tvm_scan.schedules.machine.cpu_chip import CpuChip
from tvm_scan.tir import LINE_BYTES

#: Operations of a polynomial for an exponential, and of more where no instruction scales.
_POLYNOMIAL, _UNSCALED = 16.0, 6.0
#: Products on the longest path of one.
TERMS = 9.0
#: The least time of the vectors of one, in that of whole ones: selective scans of 4 and of 8 lanes
#: take a Zen 4 0.77 of the time of 16.
_OF_PART = 0.75
#: Instructions of a scalar maximum of integers beside one: 2 to 4 cycles a cell were measured where
#: guesses are wrong (numbers with many ties), 1.1 where they are right, of which this is the less.
_COMPARISON = 1.0
#: Sums, products or extrema of floats that begin in a cycle of scalar code: clamped sums of rows of
#: 14 steps take a Zen 4 1.55 cycles a step in blocks of 16, elements of theirs 9.
_PORTS = 2.0
#: Cycles of wrong guesses of such a step, of the first steps of a row, whose value is seldom the
#: largest one: of rows of 14 numbers a Zen 5 takes 6.5 cycles a step, in vectors of time of 4 steps
#: 0.7 and of 8, beside which 6 steps are left, 2.9; a Zen 4 4.2 in the loop, 2.5 in blocks.
_GUESSED, _UNSURE = 3.0, 16
#: Steps of which a processor learns where it guesses wrong, called again and again, and cycles of
#: those of more: maxima of up to 100000 integers take a Zen 4 1.0 to 1.3 cycles each in scalar
#: code, of 200000 and more 2.1 to 2.7.
_LEARNT, _FORGOTTEN = 1e5, 1.25
#: Steps of a row in registers, and those that vectors of time leave, in which LLVM chooses instead:
#: of 9 and 10 steps a Zen 4 takes 1.0 and 2.4 cycles each. Beside vectors of 4 it chooses in all
#: three, beside longer ones in one and up to none or six others, as processor and width have it:
#: 8000 rows of 11 maxima take a Cascade Lake 53 us in vectors of 8, of 16 maxima 31.
CHOSEN, CHOSEN_BESIDE = 9, 1
#: How much longer a half is called for in scalar code, whose carry waits in memory meanwhile, and
#: in vectors of time, whose cells do not wait for one another: moving averages of 3000 halves take
#: a Zen 4 29 cycles a step in scalar code and 15 in vectors of 16.
_CALLED, HALVES_OF_TIME = 4 / 3, 2 / 3
#: Of a call's cycles, those that do not overlap the call before it.
_CALL_SHARE = 0.28
#: Instructions that go round with a loop.
LOOP = 1.6
#: Cycles until a load finds what the store before it has written.
FORWARD = 5.0
#: Bytes of half a vector of AVX-512.
_HALF = 32
#: Shorter vectors than those of 64 bytes that are read or written in the time of one.
_SHORTER = 2.0
#: Instructions of a cell of a vector that is read, and written, where cells lie apart.
GATHERED, SCATTERED = 4.5, 12.5
#: Steps of a constant loop that LLVM unrolls fully.
UNROLLED = 3 << 5
#: The most steps of a longer one that it writes out.
_MOST_STEPS = 8
#: Bytes of rows of which all lines come with every pass, see ``fetched_again``; from what others
#: leave of a last cache to a whole one a part of them; and cycles that lines beside a strip take,
#: where all come whatever caches hold. Sums of 64 columns of 10336 steps take a Cascade Lake 235 us
#: in one and in two strips, in four 360.
FETCHED, FILLED, _EVERY_LINE = 256, 0.75, 20.0


def latency_of(path: Path, chip: CpuChip, polynomials: bool = False) -> float:
    """Cycles of a path; calls are the C library's, or polynomials, each of them a long chain."""
    return (
        path.sums * chip.sum_latency
        + path.products * chip.product_latency
        + path.fused * chip.fused
        + path.extremes * chip.extremum_latency
        + path.simple
        + path.calls * (TERMS * (chip.product_latency + chip.fused) if polynomials else chip.call)
        + path.quotients * 3 * chip.quotient
    )


def scalar_latency(step: Step, chip: CpuChip, alone: int = 0) -> float:
    """Cycles from a carry to the next one in scalar code.

    Where no instruction takes the larger of two integers, it compares them and moves one: maxima of
    10 x 605 take a Zen 4 2.0 cycles a step for the x86-64 baseline, and 1.4 with AVX-512. So it
    does where LLVM writes out two or three steps: those of 3 rows of 4233 and 4234 one by one take
    2.1, of 4232, 4235 and 4236 1.1 to 1.3.

    Parameters
    ----------
    step : Step
        What is counted.
    chip : CpuChip
        Where.
    alone : int
        Steps of a loop that goes through one lane at a time; 0 for others.
    """
    few = alone > UNROLLED and together(alone) in (2, 3)
    compared = step.body.extremes if few or chip.integer_extremum > 1.0 else 0.0
    return latency_of(step.scalar_chain, chip) + compared


def together(steps: int) -> int:
    """Steps that LLVM writes out in a loop of so many: the most that divide them, or one."""
    return max(n for n in range(1, _MOST_STEPS + 1) if steps % n == 0)


def scalar_cycles(counts: Counts, chip: CpuChip, rest: float = 0.0) -> float:
    """Cycles of scalar instructions, with some more beside them."""
    soft = _CALLED * chip.halves * counts.halves
    issued = (counts.operations + soft + rest + _COMPARISON * counts.extremes) / chip.issue
    issued = max(issued, counts.floats / _PORTS)
    return issued + counts.calls * _CALL_SHARE * chip.call + counts.quotients * chip.quotient


def step_cycles(
    step: Step, chip: CpuChip, done: float = 0.0, around: float = 0.0, *, chosen: bool = False
) -> float:
    """Cycles of the scalar instructions of a step, accesses included.

    Parameters
    ----------
    step : Step
        What is counted.
    chip : CpuChip
        Where.
    done : float
        Steps of its row before it.
    around : float
        Instructions of a loop around it.
    chosen : bool
        Whether LLVM chooses the larger number, where it would else guess.
    """
    rest = instructions_of(step) - step.body.operations + around
    backwards = sum(a.times for a in step.moving if a.store and a.along_time == -1)
    unsure = max(0.0, min(_UNSURE, step.length) - done) / max(1.0, step.length - done)
    guessed = (
        0.0 if chosen else step.body.extremes * (_GUESSED * unsure + _wrong_guesses(step, chip))
    )
    issued = scalar_cycles(step.body, chip, rest)
    stored = chip.stored * sum(a.times for a in step.moving if a.store)
    return max(stored, issued) + backwards * chip.descending + guessed


def forgotten(step: Step) -> float:
    """Share of all steps' guesses that a processor has not learnt."""
    return min(1.0, max(0.0, step.rows * step.length / _LEARNT - 1.0))


def _wrong_guesses(step: Step, chip: CpuChip) -> float:
    """Cycles of wrong guesses of a step that the processor has not learnt, if it guesses."""
    return 0.0 if chip.integer_extremum > 1.0 else _FORGOTTEN * forgotten(step)


def vector_bytes(counts: Counts, chip: CpuChip) -> float:
    """Bytes of operands of vector operations for one cell."""
    more = (chip.integer_product - 1.0) * counts.products
    if counts.extremes and chip.integer_extremum > 1.0:
        size = counts.bytes / max(1.0, counts.operations)
        more += counts.extremes * size * (chip.integer_extremum * max(1.0, size / 4) - 1.0)
    return counts.bytes + more


def simple_bytes(counts: Counts, chip: CpuChip) -> float:
    """Bytes of operations that more ports do than sums and products of floats, of these bytes."""
    return counts.simple + (chip.integer_product - 1.0) * counts.products


def more_ports(chip: CpuChip) -> float:
    """Simple operations, or shuffles, that begin in a cycle, as a multiple of those of 64 bytes.

    Where vectors of 64 bytes are worked on in halves there are ports for more shorter ones.
    (Elements of resets, which are choices, and of clamped sums take a Zen 4 half as many more.)
    """
    return (1.0 + chip.together(chip.vector_bytes)) / 2


def issued_cycles(operations: float, simple: float, chip: CpuChip) -> float:
    """Cycles in which so many vector operations begin, of which some are simple.

    Of sums and products of floats there are never more, each kind for itself.
    """
    return max(operations - simple, operations / more_ports(chip)) / chip.vector_issue


def vector_operations(
    counts: Counts,
    cells: float,
    chip: CpuChip,
    *,
    ldexp: bool,
    library: bool = False,
    halves: float = 1.0,
) -> float:
    """Operations of so many cells of vectors, in those of whole ones, but for divisions.

    What is called for a half takes ``halves`` times as long as the chip says.
    """
    each = cells / chip.vector_bytes
    # A vector that is not full takes as long as one that is.
    least = least_of(chip)
    terms = counts.calls * _POLYNOMIAL + (0.0 if ldexp else counts.scales * _UNSCALED)
    # Most of a polynomial are products with sums, which alternate with simple operations.
    calls = 0.0 if library else terms * max(least, _OF_PART, 4 * each) / more_ports(chip)
    calls += halves * chip.halves * counts.halves * max(least, 4 * each)
    return max(least * counts.operations, vector_bytes(counts, chip) * each) + calls


def quotient_cycles(counts: Counts, cells: float, chip: CpuChip) -> float:
    """Cycles of divisions: one of a vector is as many narrow ones, two at a time."""
    return counts.quotients * cells * chip.quotient / 4


def vector_cycles(counts: Counts, cells: float, chip: CpuChip, ldexp: bool, library: bool) -> float:
    """Cycles of the same on so many cells of vectors."""
    operations = vector_operations(counts, cells, chip, ldexp=ldexp, library=library)
    simple = simple_bytes(counts, chip) * cells / chip.vector_bytes
    called = counts.calls * cells * (_CALL_SHARE * chip.call + 2) if library else 0.0
    return issued_cycles(operations, simple, chip) + called + quotient_cycles(counts, cells, chip)


def takes_whole_rows(step: Step, chip: CpuChip, width: int) -> bool:
    """Return whether ``width`` lanes are a row of a few lines, and step follows step in memory."""
    sizes = [a.size for a in step.moving if a.along_lane == 1]
    neighbours = len(sizes) == len([a for a in step.moving if a.along_lane])
    return neighbours and width >= step.lanes and width * max(sizes, default=0) <= chip.nearest / 64


def memory_of(step: Step, chip: CpuChip, past: float, passes: float = 1.0) -> dict[str, float]:
    """Bytes; each line of an output is read before it is written, unless it is written past."""
    footprint = step.loads + step.stores * (1.0 - past)
    twice = 2.0 if footprint > chip.private else 1.0
    moved = passes * step.loads + twice * (1.0 - past) * step.stores
    return {"moved": moved, "past": past * step.stores, "footprint": footprint}


def past_share(plan: CpuPlan, step: Step) -> float:
    """The share of the outputs that a plan stores past the caches: of aligned lines only."""
    if not plan.nontemporal:
        return 0.0
    size = max((a.size for a in step.accesses if a.store), default=4)
    if plan.time_vector or plan.transpose:
        width = plan.time_vector or 16
        covered = step.length // width * width / step.length
        along, rows = step.length * size, step.rows
    else:
        width, line = min(plan.lane_block, step.lanes), LINE_BYTES // size
        covered = step.lanes // line * line / step.lanes
        along, rows = step.lanes * size, step.rows * step.length // step.lanes
    if width * size < LINE_BYTES:
        return 0.0
    # Of rows that begin anywhere in a line, few begin at its head.
    if along % LINE_BYTES == 0 or rows == 1:
        return covered
    return covered * (along & -along) / LINE_BYTES


def fetched_again(step: Step, chip: CpuChip, rows_at_once: float, passes: float) -> float:
    """Bytes of lines that are fetched again for every lane where lanes are neighbours.

    Of short rows beyond the caches all lines come with every pass over time, whichever are asked
    for.
    """
    columns = [a for a in step.moving if a.along_time not in (1, -1, 0, None) and a.along_lane]
    lines = step.length * LINE_BYTES * len(columns)
    if lines <= chip.nearest:
        # The lines of columns stay only where all of them fit.
        return 0.0
    extra, beyond = 0.0, chip.is_beyond(step.touched)
    for a in columns:
        cell = a.size * abs(a.along_lane or 0)
        strip = int(rows_at_once * cell)
        # A strip begins anywhere in a line, if rows do: the lines at its ends are others', too.
        begins = gcd(abs(a.along_time or 0) * a.size, strip, LINE_BYTES)
        if beyond and step.lanes * cell <= FETCHED:
            # Of strips of whole lines only what is not in the last cache, where no prefetcher
            # brings those beside a strip.
            far = chip.outside(step.touched, FILLED) if begins == LINE_BYTES else 1.0
            far = max(far, min(1.0, chip.beside / _EVERY_LINE))
            again = 1.0 + (passes - 1.0) * far
        else:
            again = min((LINE_BYTES + strip - begins) / strip, max(1.0, step.lanes / rows_at_once))
        # From a private cache that holds all of a pass they come quickly.
        near = beyond and lines * max(1.0, strip / LINE_BYTES) <= chip.private
        rate = chip.memory_rate / chip.private_rate if near else 1.0
        extra += step.rows * step.length * a.size * (again - 1) * rate
    return extra


def instructions_of(step: Step) -> float:
    """Scalar instructions of a step beside its calls."""
    accesses = sum(a.issued for a in step.moving)
    return step.body.operations + accesses + 2 * step.body.choices


def ahead_of(step: Step, chip: CpuChip, steps: float, lanes: float = 1.0) -> float:
    """Return how many runs of so many steps, each a chain, are under way at a time.

    The operations of a run's chain and the stores of its results wait in the scheduler for one
    another; others do not, which have what they need. Of so many lanes they are vectors.
    """
    operations = min(step.body.operations, step.scalar_chain.operations)
    operations = max(operations, step.body.bytes * lanes / chip.vector_bytes)
    stores = 0.0
    for a in step.moving:
        if a.store:
            stores += a.issued * (vectors_of(lanes, a.size, chip) if a.along_lane == 1 else lanes)
    return 1.0 + chip.window / max(1.0, steps * (operations + stores))


def least_of(chip: CpuChip) -> float:
    """The time of a vector of few cells, in that of a whole one: of 64 bytes there are halves."""
    return 1.0 / chip.together(_HALF) if chip.vector_bytes > _HALF else 1.0


def vectors_of(cells: float, size: float, chip: CpuChip) -> float:
    """Vectors that hold so many cells, at least one."""
    return max(1.0, cells * size / chip.vector_bytes)


def access_cycles(a: Access, cells: float, chip: CpuChip) -> float:
    """Cycles in which so many neighbouring cells are read or written in vectors."""
    # What all lanes read is an operand, and no half any more.
    size = a.size if a.along_lane else max(4, a.size)
    at_once = 1.0 if min(chip.vector_bytes, cells * size) > _HALF else _SHORTER
    return vectors_of(cells, size, chip) * a.issued / at_once


def with_more(memory: dict[str, float], extra: float) -> dict[str, float]:
    """Bytes, and more that move."""
    return {**memory, "moved": memory["moved"] + extra}
