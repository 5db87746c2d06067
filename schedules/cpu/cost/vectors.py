"""Cost of vectors of time, of one lane or of a chunk of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import log2

from tvm_scan.schedules.cpu.cost.count import Counts
from tvm_scan.schedules.cpu.cost.parts import (
    CHOSEN,
    CHOSEN_BESIDE,
    GATHERED,
    HALVES_OF_TIME,
    issued_cycles,
    latency_of,
    least_of,
    more_ports,
    quotient_cycles,
    simple_bytes,
    step_cycles,
    vector_bytes,
    vector_operations,
    vectors_of,
)
from tvm_scan.schedules.cpu.cost.short_rows import short_row
from tvm_scan.schedules.cpu.cost.step import Access, Part, Step
from tvm_scan.schedules.cpu.plans import PAGE_BYTES, CpuPlan
from tvm_scan.schedules.cpu.reversed_rows import REVERSED_BYTES
from tvm_scan.schedules.machine.cpu_chip import CpuChip
from tvm_scan.tir import LINE_BYTES

#: Instructions that ask for a line, and the share of what is read beyond the caches whose time is
#: won if lines are asked for some pages ahead: sums of 2^24 numbers take a Zen 5 3.0 to 3.2 ms, and
#: 2.5 to 2.6 so (1.8 and 1.6 in quiet times); 64 rows of them 1.2 and 1.0.
_ASKING, SOONER = 3.0, 0.35
#: Cycles of a cell of a vector of time that is read or written backwards, one by one.
_BACKWARDS = 1.0
#: Shuffles that reverse a vector of 16 or 64 bytes, and one of 32: sums of 16 x 4578 numbers by
#: vectors of 32 take a Zen 5 6.3 us forwards and 6.4 backwards (integers of 8 bytes), 7.4 and 7.8
#: (floats); linear recurrences of 64 x 1000 under AVX2, by 64 with runs, 11.2 and 13.5.
_REVERSED, _REVERSED_SHORTER = 1.0, 2.0
#: Instructions of a cell of a vector of time that is stored where cells lie apart: sums and linear
#: recurrences of 2 to 8 columns of 9000 steps take a Zen 4 2.4 to 2.9 and 3.5 to 4.2 cycles a cell.
_STORED_APART = 6.5
#: Steps of a vector whose cells take so long, how much longer they take each time that it is twice
#: as long, and those of runs: averages of 2 columns of 33868 steps take a Zen 4 27, 28, 31 and 32
#: us in vectors of 4 to 32 steps, with runs 33, 34 and 26, recurrences of 20000 18, 21, 25 and 30.
_PLAIN, _DOUBLED, _OF_RUNS = 8, 0.14, 1.1
#: Cycles around a vector of time; cycles until its last cell is the next one's carry.
_AROUND, _PASSED = 1.7, 3.0
#: The share of what is around a row that vectors of time have.
_ROW = 0.6
#: Share of more cycles of vectors of time whose elements have several parts: they leave the
#: registers, for which shorter vectors of a processor that works on halves wait less.
_SPILLED = 0.5
#: Vectors of a block's elements of two parts beyond which they leave the registers, and the power
#: of their number in which the block then takes longer: linear recurrences of 30000 steps of 8
#: bytes take a Zen 4 in vectors of 8, 16, 32 steps without AVX 28, 36 and 53 us.
#: Half of it is left of runs, of which many take longer anyway.
_REGISTERS, _LEAVING = 8, 0.2
#: Vectors of steps with runs that stay in registers, with AVX and without, and how much longer more
#: take: 64 numbers of 8 bytes 1.2 times (products) to 1.7 times (integers) on a Zen 4, and 16 of 4
#: bytes 1.7 times on a Zen 5 without AVX.
_IN_REGISTERS, _WITHOUT_AVX, _MANY = 4, 2, 1.3


@dataclass(frozen=True)
class BlockCounts:
    """Vector instructions of a block of time.

    Attributes
    ----------
    operations, shuffles : float
        Of whole vectors.
    simple : float
        Of the operations, those that more ports do than sums and products of floats.
    """

    operations: float = 0.0
    shuffles: float = 0.0
    simple: float = 0.0

    @property
    def total(self) -> float:
        """Operations and shuffles."""
        return self.operations + self.shuffles

    def __add__(self, other: BlockCounts) -> BlockCounts:
        return BlockCounts(
            self.operations + other.operations,
            self.shuffles + other.shuffles,
            self.simple + other.simple,
        )


def vector_scan(plan: CpuPlan, step: Step, chip: CpuChip, length: float) -> float:
    """Cycles of some steps of one lane: vectors of them, and what is left one by one."""
    width = plan.time_vector
    full, rest = divmod(length, width)
    block, instructions = _block(width, plan.time_runs, plan.prefetch > 0, step, chip)
    chain = max(latency_of(part.apply_chain, chip) + _PASSED for part in step.parts)
    short = short_row(step, chip) if not full and length == step.length else None
    if short is not None:
        return short
    chosen = rest <= (CHOSEN_BESIDE if full and width > 4 else CHOSEN)
    single = step_cycles(step, chip, full * width, chosen=chosen)
    around = _ROW * chip.row
    busy = full * block + rest * single + around
    waits = full * max(block, chain) + rest * max(single, latency_of(step.chain, chip)) + around
    # The next row begins while this one waits, as far as the processor looks ahead.
    inside = full * instructions + rest * step.body.operations + 20.0
    return max(busy, waits / (1.0 + chip.window / inside))


# A choice asks for the same vectors with and without whatever else is decided.
@lru_cache(maxsize=1024)
def _block(width: int, runs: bool, asks: bool, step: Step, chip: CpuChip) -> tuple[float, float]:
    """Cycles of a vector of time, and its operations and shuffles."""
    counts = block_counts(width, runs, step, chip)
    counts += BlockCounts(shuffles=sum(_reversed(a, width, chip) for a in step.moving))
    memory = sum(_moved(a, width, chip, runs) for a in step.moving)
    wide = runs and any(size == 8 for part in step.parts for size in part.sizes)
    block = max(_issue_cycles(counts, step, chip, wide), memory) + _AROUND
    block += width * _asking_cycles(asks, step, chip)
    most = _IN_REGISTERS if chip.vector_bytes > 16 else _WITHOUT_AVX
    if runs and width * max(step.parts[0].sizes, default=4) > most * chip.vector_bytes:
        block *= _MANY
    pairs = [sum(part.sizes) for part in step.parts if len(part.sizes) == 2]
    if pairs:
        vectors = max(pairs) * width / chip.vector_bytes
        block *= max(1.0, vectors / _REGISTERS) ** (_LEAVING / 2 if runs else _LEAVING)
    return block, counts.total


def _issue_cycles(counts: BlockCounts, step: Step, chip: CpuChip, wide: bool = False) -> float:
    """Cycles of operations and shuffles, which have ports of their own and some in common.

    Where runs of cells of 8 bytes are `wide`, their shuffles take two vectors each, and integers
    have no more ports for these than floats: sums in vectors of 32 and 64 take a Zen 4 1.16 and
    1.2 cycles a step, which are 0.84 and 0.97 if they have.
    """
    several = any(len(part.sizes) > 2 for part in step.parts)
    spilled = 1.0 + several * _SPILLED / chip.together(chip.vector_bytes)
    simple = counts.simple
    if step.integers and not step.body.extremes:
        # Maxima have no more ports than floats.
        simple = counts.operations
    shuffled = counts.shuffles / chip.shuffle_issue / more_ports(chip)
    apart = max(issued_cycles(counts.operations, simple, chip), shuffled)
    if step.integers:
        simple += 0.0 if wide else counts.shuffles
    mixed = (counts.total - simple) / chip.mixed_issue + simple / chip.mixed_integers
    return max(spilled * apart, mixed)


def _moved(a: Access, width: int, chip: CpuChip, runs: bool = False) -> float:
    """Cycles of the cells that a vector of time reads or writes."""
    if a.along_time == 1 or _reversed(a, width, chip):
        return vectors_of(width, a.size, chip) * (1.0 if a.store else 0.5)
    if a.along_time == -1:
        return _BACKWARDS * width
    longer = _OF_RUNS if runs else 1.0 + _DOUBLED * log2(width / _PLAIN)
    return longer * chip.strided * (_STORED_APART if a.store else GATHERED) / chip.issue * width


def _reversed(a: Access, width: int, chip: CpuChip) -> float:
    """Shuffles that put the cells of a vector of time in the order of memory, or of time."""
    if a.along_time != -1 or a.size not in REVERSED_BYTES:
        return 0.0
    # Within vectors of 16 bytes any cells change places at once.
    each = _REVERSED_SHORTER if chip.vector_bytes == 32 else _REVERSED
    return each * vectors_of(width, a.size, chip)


def block_counts(width: int, runs: bool, step: Step, chip: CpuChip) -> BlockCounts:
    """Count a vector of so many steps of time, with runs of steps in every cell or without."""
    scan = _run_scan if runs else _scan
    total = _of_cells(step.body, width, chip)
    for part in step.parts:
        total += scan(part, width, chip) + _of_cells(part.lift, width, chip)
    return total


def _of_cells(counts: Counts, cells: float, chip: CpuChip) -> BlockCounts:
    """Operations of so many cells."""
    each = cells / chip.vector_bytes
    operations = vector_operations(counts, cells, chip, ldexp=True, halves=HALVES_OF_TIME)
    operations += quotient_cycles(counts, cells, chip) * chip.vector_issue
    return BlockCounts(operations, simple=simple_bytes(counts, chip) * each)


def _vectors(width: float, sizes: tuple[int, ...], chip: CpuChip) -> float:
    """Vectors of so many cells of some parts, in the time of whole ones."""
    return sum(max(_least(chip), width * size / chip.vector_bytes) for size in sizes)


def _least(chip: CpuChip) -> float:
    """The time of a vector that is not full, of which the next one waits for this."""
    return (1.0 + least_of(chip)) / 2


def _scan(part: Part, width: int, chip: CpuChip) -> BlockCounts:
    """Vectors: doubling distances, then the carries before."""
    each = width / chip.vector_bytes
    combine, simple = vector_bytes(part.combine, chip) * each, 0.0
    vectors, carries = (_vectors(width, sizes, chip) for sizes in (part.sizes, part.carries))
    operations = vector_bytes(part.apply, chip) * each + carries
    shuffles = vectors + carries
    for distance in (1 << level for level in range(round(log2(width)))):
        if distance * max(part.sizes, default=1) < chip.vector_bytes:
            # Vectors of 64 bytes are shuffled under masks, others are blended after it.
            blends = 0.0 if chip.vector_bytes == 64 else vectors
            operations, shuffles = operations + combine + blends, shuffles + vectors
            simple += simple_bytes(part.combine, chip) * each
        else:
            # Whole vectors move, which is no instruction.
            operations += combine * (1.0 - distance / width)
            simple += simple_bytes(part.combine, chip) * each * (1.0 - distance / width)
    return BlockCounts(operations, shuffles, simple + simple_bytes(part.apply, chip) * each)


def _run_scan(part: Part, width: int, chip: CpuChip) -> BlockCounts:
    """Vectors with runs of four steps in every cell."""
    quarter = width // 4
    each = max(quarter / chip.vector_bytes, _least(chip) / 4)
    vectors, carries = (_vectors(quarter, sizes, chip) for sizes in (part.sizes, part.carries))
    combine = vector_bytes(part.combine, chip) * each
    levels, size = log2(quarter), max(part.sizes, default=4)
    # Over longer distances whole vectors move, which is no instruction.
    inside = sum(1 << level < chip.vector_bytes / size for level in range(round(levels)))
    operations = (3 + levels) * combine + inside * vectors
    operations += vector_bytes(part.apply, chip) * each * 4
    rounds = 4 * _rounds(size, chip)
    shuffles = rounds * vectors + (inside + 1) * vectors + rounds * carries
    simple = ((3 + levels) * part.combine.simple + 4 * part.apply.simple) * each
    return BlockCounts(operations, shuffles, simple)


def _rounds(size: int, chip: CpuChip) -> float:
    """Shuffles of each vector in which blocks of 4 by 4 steps are transposed, one way.

    Vectors of 32 bytes exchange their halves by shuffles apart from those inside of halves; of two
    cells to a vector the second round moves whole ones.
    """
    if chip.vector_bytes == 32:
        return 2.5
    return 1.0 if size * 2 == chip.vector_bytes else 2.0


def asked_ahead(
    plan: CpuPlan, step: Step, chip: CpuChip, memory: dict[str, float]
) -> dict[str, float]:
    """Bytes that move where vectors of time ask for lines some pages ahead, in vain beyond rows.

    What lies in the caches is not won by it.
    """
    if not plan.prefetch or not chip.is_beyond(memory["footprint"]):
        return memory
    far = plan.prefetch * PAGE_BYTES / max((a.size for a in step.moving if not a.store), default=4)
    share = max(0.0, 1.0 - far / step.length)
    return {**memory, "moved": memory["moved"] - SOONER * share * step.loads}


def _asking_cycles(asks: bool, step: Step, chip: CpuChip) -> float:
    """Cycles of a step that asks for the lines of others."""
    read = [a for a in step.moving if not a.store and a.along_time in (1, -1)]
    lines = sum(a.times * a.size / LINE_BYTES for a in read)
    return lines * _ASKING / chip.issue if asks else 0.0


def vector_reduction(plan: CpuPlan, step: Step, chip: CpuChip, length: float) -> float:
    """The element of some steps: pairs of neighbours, batches of vectors at once."""
    batch = _batch(plan.time_vector, plan.prefetch > 0, step, chip)
    return 20.0 + length / plan.time_vector * (batch + 4.0)


@lru_cache(maxsize=1024)
def _batch(width: int, asks: bool, step: Step, chip: CpuChip) -> float:
    """Cycles of a vector of a batch."""
    each = 1.25 * width / chip.vector_bytes
    counts = BlockCounts()
    for part in step.parts:
        counts += _of_cells(part.lift, width, chip)
        vectors = sum(vectors_of(width, size, chip) for size in part.sizes)
        counts += BlockCounts(
            vector_bytes(part.combine, chip) * each,
            2.5 * vectors,
            simple_bytes(part.combine, chip) * each,
        )
    read = [a for a in step.moving if not a.store]
    counts += BlockCounts(shuffles=sum(_reversed(a, width, chip) for a in read))
    loads = sum(_moved(a, width, chip) for a in read)
    batch = max(_issue_cycles(counts, step, chip), loads)
    return batch + width * _asking_cycles(asks, step, chip)
