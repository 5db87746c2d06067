"""Cost of the loop as LLVM compiles it."""

from __future__ import annotations

from tvm_scan.schedules.cpu.cost.lane_lines import one_by_one
from tvm_scan.schedules.cpu.cost.parts import (
    FORWARD,
    GATHERED,
    LOOP,
    SCATTERED,
    UNROLLED,
    access_cycles,
    ahead_of,
    fetched_again,
    instructions_of,
    latency_of,
    memory_of,
    scalar_latency,
    step_cycles,
    takes_whole_rows,
    together,
    vector_cycles,
    with_more,
)
from tvm_scan.schedules.cpu.cost.short_rows import may_reorder, short_row
from tvm_scan.schedules.cpu.cost.step import Access, Step
from tvm_scan.schedules.machine.cpu_chip import CpuChip
from tvm_scan.schedules.machine.cpu_cost import CpuWork

#: Instructions of all steps of rows of which LLVM gathers every cell with AVX-512: it writes out as
#: many before it looks at the loop around them. Beside operations and accesses a step has some that
#: count, go round, and choose what it reads of the one before: it gathers sums of 29 steps,
#: averages and recurrences of 27, backwards of 24 and 22.
_WRITTEN_FIRST, _AROUND_CARRY, _AROUND_HISTORY, _BACKWARDS = 297, 3, 7, 2
#: The share of a store's way to a load after which the next steps of few lanes begin, whose carries
#: stay in registers for some steps: LLVM writes out as many as divide all but the first one, up to
#: eight. Where none do, it writes out some all the same, each of which reads what the last one
#: wrote. Sums of three columns take a Zen 4 7.6 cycles a step of 4095 steps (2 of 4094 at a time),
#: 6.1 of 2002, 5.2 of 402 (none of 401), 4.2 of 1001, integers 3.5 less; a Cascade Lake 9.6, of 402
#: and 2048, and 6.2 to 7.0 of 1001, 2002 and 2049.
_COLUMN = 0.75
#: More cycles of those that are many parts. LLVM writes out rows of up to ``_WRITTEN_OUT`` lanes,
#: and keeps as many parts as a vector has 16 bytes: of sums of 2 to 5 and 8 numbers of 8 bytes
#: (4 + 4, not of 4 + 2 + 1) with AVX2, of 2 and 4 of 4 bytes with SSE. (Zen 4: sums of 7, 11 and 15
#: lanes 6 to 7 cycles; 15 lanes of 8 bytes 12; others with AVX-512 15.5.)
_PARTS, _WRITTEN_OUT = 2.0, 16
#: How much longer a step waits for memory where vectors of 64 bytes cross lines: 24 to 27 cycles of
#: sums of 17 and 30 lanes, 15.5 of 24 and 32 lanes (Zen 4).
_CROSSING, _WHOLE = 1.8, 32
#: Lanes of integers of 8 bytes that LLVM writes out one by one where time goes backwards (of maxima
#: 32 are vectors), in so many times the cycles of a step: sums of 4, 8, 16 and 32 take a Cascade
#: Lake 2.1, 1.9, 1.7 and 1.9 cycles each, forwards 0.8 to 1.1.
_CELL_BY_CELL, _MORE = (32, 16), 1.5


def loop_work(step: Step, chip: CpuChip) -> CpuWork:
    """The loop as LLVM compiles it: one core, in vectors where lanes are innermost."""
    total = float(step.rows * step.length)
    if step.lanes_inside and _innermost_vectors(step):
        return _columns(step, chip)
    memory = with_more(memory_of(step, chip, 0.0), fetched_again(step, chip, 1.0, step.lanes))
    memory |= one_by_one(step, chip, memory)
    short = short_row(step, chip, loop=True)
    if short is not None:
        return CpuWork(step.rows * short, 1.0, 0.0, **memory)
    chain = scalar_latency(step, chip, step.length - 1) + (FORWARD if step.guarded else 0.0)
    loops = 0.0 if step.length <= UNROLLED else LOOP
    issued = step_cycles(step, chip, around=loops)
    if step.state:
        cells = sum(part.cells for part in step.parts)
        chain = chain / max(1, cells)
    if (
        chip.vector_bytes == 64
        and step.length <= _gathered_steps(step)
        and step.rows >= 16
        and not step.body.calls
    ):
        # LLVM takes rows as cells of vectors, whatever lies between them.
        apart = sum(SCATTERED if a.store else GATHERED for a in _along_time(step))
        apart *= chip.gathers / chip.issue
        return CpuWork(total * max(issued, apart), 1.0, 0.0, **memory)
    # The rows after this one begin while it waits, as far as the processor looks ahead.
    ahead = min(ahead_of(step, chip, step.length), float(step.rows))
    each = max(issued, chain / ahead)
    return CpuWork(total * each + step.rows * chip.row, 1.0, 0.0, **memory)


def _innermost_vectors(step: Step) -> bool:
    wide = all(a.along_lane in (0, 1) for a in step.accesses)
    return wide and step.lanes > 1 and not step.body.calls


def _along_time(step: Step) -> list[Access]:
    """Accesses that go on with time; others are those of a carry, which a row has in a register."""
    return [a for a in step.moving if a.along_time != 0]


def _gathered_steps(step: Step) -> float:
    """Steps of the longest rows that LLVM writes out, and takes as cells of vectors."""
    apart = may_reorder(step) if step.history else not step.overlaps
    if not apart:
        return 0
    # A float maximum is a comparison and a choice.
    moving = sum(a.times for a in _along_time(step))
    around = _AROUND_HISTORY + _BACKWARDS * step.backwards if step.history else _AROUND_CARRY
    return _WRITTEN_FIRST // (step.body.operations + step.chain.extremes + moving + around)


def _reads_again(length: int, chip: CpuChip) -> float:
    """Cycles that a step of so many waits for what the one before has written, of few lanes."""
    steps = together(length - 1)
    return _COLUMN * chip.forward / steps if steps > 1 else chip.reread


def _columns(step: Step, chip: CpuChip) -> CpuWork:
    """All lanes of the innermost axis in vectors at every step."""
    width, rows = step.lanes, step.rows / step.lanes
    cycles = vector_cycles(step.body, width, chip, True, False)
    cycles += sum(access_cycles(a, width, chip) for a in step.moving)
    size = max((a.size for a in step.accesses), default=4)
    whole, rest = divmod(width * size, chip.vector_bytes)
    parts = whole + (rest // size).bit_count()
    # Of the widest rows only products, maxima and integers.
    widest = _WRITTEN_OUT - (step.chain.sums > 0 or step.body.operations > 1)
    in_registers = width <= widest and parts <= chip.vector_bytes / 16
    if in_registers:
        waits = _reads_again(step.length, chip)
        waits += _PARTS if parts > 2 else 0.0
    else:
        crossing = chip.vector_bytes == 64 and width * size % _WHOLE > 0
        waits = chip.forward * (_CROSSING if crossing else 1.0)
    if width * size > chip.nearest / 2:
        # The row before has left the nearest cache when it is read again.
        cycles += width * size / (chip.private_rate * chip.cycle)
    each = max(cycles + (1.0 if in_registers else 3.0), latency_of(step.chain, chip) + waits)
    # Of one sum, product or integer in the registers of a vector the chain is all: sums of ten
    # columns of integers take a Zen 4 4.0 cycles, twelve of floats 5.6. Maxima of floats are two
    # instructions.
    single = step.body.operations <= 1 and not step.chain.extremes
    plain = in_registers and single and width * size <= chip.vector_bytes
    if width < chip.vector_bytes / 4 and not plain:
        each = max(each, width * instructions_of(step) / chip.issue)
    backwards = size == 8 and step.integers and step.backwards
    if backwards and width <= _CELL_BY_CELL[step.body.extremes > 0]:
        each = max(each, _MORE * width * step_cycles(step, chip))
    memory = memory_of(step, chip, 0.0)
    cycles, in_order = rows * step.length * each, float(takes_whole_rows(step, chip, width))
    return CpuWork(cycles, 1.0, 0.0, **memory, in_order=in_order)
