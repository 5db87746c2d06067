"""Cost of vectors of time, of one lane or of a chunk of it."""

from __future__ import annotations

from math import log2

from tvm_scan.schedules.cpu.cost.parts import (
    GATHERED,
    SCATTERED,
    latency_of,
    moving,
    short_row,
    step_cycles,
    vector_bytes,
    vector_cycles,
    vectors_of,
)
from tvm_scan.schedules.cpu.cost.step import Access, Part, Step
from tvm_scan.schedules.cpu.plans import PAGE_BYTES, CpuPlan
from tvm_scan.schedules.cpu.reversed_rows import REVERSED_BYTES
from tvm_scan.schedules.machine.cpu_chip import CpuChip

#: Instructions that ask for a line, and the share of what is read beyond the caches whose time is
#: won if lines are asked for some pages ahead: sums of 2^24 numbers take a Zen 5 3.0 to 3.2 ms, and
#: 2.5 to 2.6 so (1.8 and 1.6 in quiet times); 64 rows of them 1.2 and 1.0.
_ASKING, _SOONER = 3.0, 0.35
#: Cycles of a cell of a vector of time that is read or written backwards, one by one.
_BACKWARDS = 1.0
#: Shuffles that reverse a vector of 64 bytes, and a shorter one: sums of 16 x 4578 numbers by
#: vectors of 32 take a Zen 5 6.3 us forwards and 6.4 backwards (integers of 8 bytes), 7.4 and 7.8
#: (floats); linear recurrences of 64 x 1000 under AVX2, by 64 with runs, 11.2 and 13.5.
_REVERSED, _REVERSED_SHORTER = 1.0, 2.0
#: Cycles around a vector of time; cycles until its last cell is the next one's carry.
_AROUND, _PASSED = 1.7, 3.0
#: The share of what is around a row that vectors of time have.
_ROW = 0.6
#: More cycles of vectors of time whose elements have several parts: they leave the registers.
_SPILLED = 1.5
#: Vectors of steps with runs that stay in registers, with AVX and without, and how much longer more
#: take: 64 numbers of 8 bytes 1.2 times (products) to 1.7 times (integers) on a Zen 4, and 16 of 4
#: bytes 1.7 times on a Zen 5 without AVX.
_IN_REGISTERS, _WITHOUT_AVX, _MANY = 4, 2, 1.3


def vector_scan(plan: CpuPlan, step: Step, chip: CpuChip, length: float) -> float:
    """Cycles of some steps of one lane: vectors of them, and what is left one by one."""
    width = plan.time_vector
    full, rest = divmod(length, width)
    issued, shuffles = block_counts(plan, step, chip)
    shuffles += sum(_reversed(a, width, chip) for a in moving(step))
    chain = max(latency_of(part.apply_chain, chip) + _PASSED for part in step.parts)
    memory = sum(_moved(a, width, chip) for a in moving(step))
    block = max(_issue_cycles(issued, shuffles, step, chip), memory) + _AROUND
    block += width * _asking_cycles(plan, step, chip)
    most = _IN_REGISTERS if chip.vector_bytes > 16 else _WITHOUT_AVX
    if plan.time_runs and width * max(step.parts[0].sizes, default=4) > most * chip.vector_bytes:
        block *= _MANY
    short = short_row(step, chip) if not full and length == step.length else None
    if short is not None:
        return short
    single = step_cycles(step, chip, full * width)
    around = _ROW * chip.row
    busy = full * block + rest * single + around
    waits = full * max(block, chain) + rest * max(single, latency_of(step.chain, chip)) + around
    # The next row begins while this one waits, as far as the processor looks ahead.
    inside = full * (issued + shuffles) + rest * step.body.operations + 20.0
    return max(busy, waits / (1.0 + chip.window / inside))


def _issue_cycles(operations: float, shuffles: float, step: Step, chip: CpuChip) -> float:
    """Cycles of operations and shuffles, which have ports of their own and some in common."""
    spilled = _SPILLED if any(len(part.sizes) > 2 for part in step.parts) else 1.0
    apart = max(operations / chip.vector_issue, shuffles / chip.shuffle_issue)
    mixed = chip.mixed_integers if step.integers else chip.mixed_issue
    return max(spilled * apart, (operations + shuffles) / mixed)


def _moved(a: Access, width: int, chip: CpuChip) -> float:
    """Cycles of the cells that a vector of time reads or writes."""
    if a.along_time == 1 or _reversed(a, width, chip):
        return vectors_of(width, a.size, chip) * (1.0 if a.store else 0.5)
    if a.along_time == -1:
        return _BACKWARDS * width
    return (SCATTERED if a.store else GATHERED) / chip.issue * width


def _reversed(a: Access, width: int, chip: CpuChip) -> float:
    """Shuffles that put the cells of a vector of time in the order of memory, or of time."""
    if a.along_time != -1 or a.size not in REVERSED_BYTES:
        return 0.0
    each = _REVERSED if chip.vector_bytes == 64 else _REVERSED_SHORTER
    return each * vectors_of(width, a.size, chip)


def block_counts(plan: CpuPlan, step: Step, chip: CpuChip) -> tuple[float, float]:
    """Operations and shuffles of a vector of time."""
    width = plan.time_vector
    scan = _run_scan if plan.time_runs else _scan
    issued = vector_cycles(step.body, width, chip, True, False) * chip.vector_issue
    shuffles = 0.0
    for part in step.parts:
        operations, moves = scan(part, width, chip)
        operations += vector_cycles(part.lift, width, chip, True, False) * chip.vector_issue
        issued, shuffles = issued + operations, shuffles + moves
    return issued, shuffles


def _scan(part: Part, width: int, chip: CpuChip) -> tuple[float, float]:
    """Operations and shuffles of vectors: doubling distances, then the carries before."""
    combine = vector_bytes(part.combine, chip) * width / chip.vector_bytes
    vectors = sum(vectors_of(width, size, chip) for size in part.sizes)
    carries = sum(vectors_of(width, size, chip) for size in part.carries)
    operations = vector_bytes(part.apply, chip) * width / chip.vector_bytes + carries
    shuffles = vectors + carries
    for distance in (1 << level for level in range(round(log2(width)))):
        if distance * max(part.sizes, default=1) < chip.vector_bytes:
            # Blends are no shuffles where masks make them.
            operations, shuffles = operations + combine + vectors, shuffles + vectors
        else:
            # Whole vectors move, which is no instruction.
            operations += combine * (1.0 - distance / width)
    return operations, shuffles


def _run_scan(part: Part, width: int, chip: CpuChip) -> tuple[float, float]:
    """Operations and shuffles of vectors with runs of four steps in every cell."""
    quarter = width // 4
    vectors_of_quarter = quarter / chip.vector_bytes
    vectors = sum(vectors_of(quarter, size, chip) for size in part.sizes)
    carries = sum(vectors_of(quarter, size, chip) for size in part.carries)
    combine = vector_bytes(part.combine, chip) * max(vectors_of_quarter, 1 / 4)
    levels = log2(quarter)
    operations = 3 * combine + levels * (combine + vectors)
    operations += vector_bytes(part.apply, chip) * max(vectors_of_quarter, 1 / 4) * 4
    shuffles = 8 * vectors + (levels + 1) * vectors + 8 * carries
    return operations, shuffles


def asked_ahead(
    plan: CpuPlan, step: Step, chip: CpuChip, memory: dict[str, float]
) -> dict[str, float]:
    """Bytes that move where vectors of time ask for lines some pages ahead, in vain beyond rows.

    What lies in the caches is not won by it.
    """
    if not plan.prefetch or not chip.is_beyond(memory["footprint"]):
        return memory
    far = plan.prefetch * PAGE_BYTES / max((a.size for a in moving(step) if not a.store), default=4)
    share = max(0.0, 1.0 - far / step.length)
    return {**memory, "moved": memory["moved"] - _SOONER * share * step.loads}


def _asking_cycles(plan: CpuPlan, step: Step, chip: CpuChip) -> float:
    """Cycles of a step that asks for the lines of others."""
    read = [a for a in moving(step) if not a.store and a.along_time in (1, -1)]
    lines = sum(a.times * a.size / 64 for a in read)
    return lines * _ASKING / chip.issue if plan.prefetch else 0.0


def vector_reduction(plan: CpuPlan, step: Step, chip: CpuChip, length: float) -> float:
    """The element of some steps: pairs of neighbours, batches of vectors at once."""
    width = plan.time_vector
    operations, shuffles = 0.0, 0.0
    for part in step.parts:
        lifted = vector_cycles(part.lift, width, chip, True, False) * chip.vector_issue
        combined = vector_bytes(part.combine, chip) * width / chip.vector_bytes * 1.25
        operations += lifted + combined
        vectors = sum(vectors_of(width, size, chip) for size in part.sizes)
        shuffles += 2 * vectors * 1.25
    read = [a for a in moving(step) if not a.store]
    shuffles += sum(_reversed(a, width, chip) for a in read)
    loads = sum(_moved(a, width, chip) for a in read)
    batch = max(_issue_cycles(operations, shuffles, step, chip), loads)
    batch += width * _asking_cycles(plan, step, chip)
    return 20.0 + length / width * (batch + 4.0)
