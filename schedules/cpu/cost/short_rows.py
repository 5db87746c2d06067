"""Cost of short rows, which LLVM takes in vectors of rows."""

from __future__ import annotations

from tvm_scan.schedules.cpu.cost.parts import FILLED, scalar_latency, vector_cycles
from tvm_scan.schedules.cpu.cost.step import Step
from tvm_scan.schedules.machine.cpu_chip import CpuChip
from tvm_scan.tir import LINE_BYTES

#: Steps of rows that LLVM takes in vectors of rows, as groups of interleaved accesses.
_INTERLEAVED = 8
#: Bytes of such rows: of 8 numbers of 8 bytes it takes three times as long as one by one; and in a
#: loop that goes backwards (0.92 and 1.4 cycles a cell of rows of 6 and 7 numbers on a Zen 4).
_INTERLEAVED_BYTES, _BACKWARDS_BYTES = 40, 56
#: The same where rows are neighbours in memory, and where a loop reads what it has written: more
#: comparisons of addresses than LLVM makes.
_NEIGHBOURING, _COMPARED = 30, 24
#: Accesses whose addresses it compares as a row begins.
_FEW = 3
#: Instructions in the time of a vector of memory there, and its bytes: LLVM takes no wider ones of
#: most processors with AVX-512. On a Zen 3 (AVX2) 23 steps of 236 neighbours take 1.1 us, on an
#: Emerald Rapids 1.3. Of 16 bytes there are more in a cycle: 12 steps of 239 neighbours take a Zen
#: 4 0.50 us under AVX2, 0.60 without.
_ACCESS, _ACCESS_SHORTER, _WIDEST = 4.5, 2.7, 32
#: Shuffles of such a vector for each step of a row, where rows are no neighbours, which deal its
#: cells out to vectors of one step. (Clamped sums, filters, restarts of rows of 2 to 8 steps take a
#: Zen 4 0.3 to 1.0 cycles a step, each step of the row 0.09 more.)
_DEALT = 0.41
#: How much longer rows that are read backwards take where vectors of 32 bytes are dealt out, and
#: the steps of a row in whose time longer ones are in vectors of 16 bytes: recurrences of 2000 rows
#: of 4 and 8 steps take a Zen 4 1.0 and 1.5 cycles a step under AVX2, without it 1.6 both.
_DEALT_BACKWARDS, _DEALT_AT_MOST = 1.3, 5
#: The share of shuffles for an even number of steps with AVX-512, cycles of a chain that they hide,
#: and the share of the others for each step beyond the third: sums, averages and recurrences of
#: 30000 rows of 8 steps take a Zen 4 19, 30 and 30 us, of 7 22, 25 and 28, of 6 13, 17 and 19.
_EVEN, _HIDDEN, _SHOWN = 0.6, 3.0, 0.012
#: Cycles of a step of the longest rows of one array, from beyond the private caches, but for sums,
#: of which LLVM deals out two lines at a time and not eight: averages of 400000 rows of 8 steps
#: take a Zen 4 725 us, in vectors of 8 rows 401, maxima 681 and 361, sums 248 and 332.
_EIGHT_LINES = 0.5
#: Steps of rows of halves that shorter vectors deal out.
_DEALT_HALVES = 4


def takes_rows_in_vectors(step: Step, loop: bool = False) -> bool:
    """Return whether LLVM takes short rows in vectors without gathering every cell.

    Parameters
    ----------
    step : Step
        What is counted.
    loop : bool
        Whether it stands in the loop as it was written; else in a schedule's, which decodes its
        lanes from one number and keeps its carries in registers.
    """
    if all(a.along_lane in (0, 1) for a in step.accesses):
        longest = _COMPARED if loop and step.history else _NEIGHBOURING
        return step.length <= longest and (loop or step.rows == step.lanes)
    most = _BACKWARDS_BYTES if loop and step.backwards else _INTERLEAVED_BYTES
    if step.length * max((a.size for a in step.accesses), default=4) > most:
        return False
    if loop:
        # Reads of what was written stay apart, but where it compares the addresses of few arrays.
        free = step.backwards or not step.history
        return step.length <= _INTERLEAVED and (free or (step.overlaps and may_reorder(step)))
    # Reads that others choose are gathered with masks.
    return step.length <= _INTERLEAVED and not step.backwards and not step.guarded


def may_reorder(step: Step) -> bool:
    """Return whether LLVM knows, or compares, that the arrays of the loop do not overlap."""
    return not step.overlaps or len(step.accesses) <= _FEW


def short_row(step: Step, chip: CpuChip, loop: bool = False) -> float | None:
    """Cycles of a row of few steps, which LLVM takes in vectors of rows; None where it does not."""
    if not takes_rows_in_vectors(step, loop) or step.body.calls or step.state or step.rows < 8:
        return None
    many = float(chip.vector_bytes)
    cycles = vector_cycles(step.body, many, chip, True, False) / many
    width = min(chip.vector_bytes, _WIDEST)
    vectors = sum(a.size for a in step.moving) / width
    if all(a.along_lane in (0, 1) for a in step.accesses):
        access = _ACCESS if width == _WIDEST else _ACCESS_SHORTER
        return step.length * (cycles + vectors * access / chip.issue)
    dealt = _DEALT * (step.length if width == _WIDEST else min(step.length, _DEALT_AT_MOST))
    plain = chip.vector_bytes == LINE_BYTES and all(a.size >= 4 for a in step.moving)
    if plain and step.length >= 4 and step.length % 2 == 0:
        dealt *= _EVEN
        chain = max(0.0, scalar_latency(step, chip) - _HIDDEN)
        cycles += _SHOWN * chain * (step.length - 3)
    sums = step.body.operations <= 1 and not step.chain.extremes
    if step.length == _INTERLEAVED and len(step.moving) <= 2 and not sums:
        cycles += _EIGHT_LINES * chip.outside(step.touched, FILLED)
    if chip.vector_bytes < LINE_BYTES:
        if step.length > _DEALT_HALVES and any(a.size < 4 for a in step.moving):
            return None
        dealt *= _DEALT_BACKWARDS if step.backwards and width == _WIDEST else 1.0
    return step.length * (cycles + vectors * dealt / chip.shuffle_issue)
