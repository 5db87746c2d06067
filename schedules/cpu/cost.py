"""What a plan for a CPU costs: counts of each schedule, and seconds of them on a machine.

A schedule's function counts what its builder emits: cycles of instructions and of the chain of
carries on one core, bytes that move, joins of the thread pool. ``predict`` takes the largest bound.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, log, log2
from typing import Any

from tvm_scan.schedules.cpu.step_counts import NONE, Counts, Part, Path, Step
from tvm_scan.schedules.machine.cpu_chip import CpuChip

__all__ = ["Work", "lanes_work", "loop_work", "seconds_of", "three_phase_work"]

#: Operations of a polynomial for an exponential, and of more where no instruction scales.
_POLYNOMIAL, _UNSCALED = 16.0, 6.0
#: Products on the longest path of one.
_TERMS = 11.0
#: Instructions that go round with a loop.
_LOOP = 2.0
#: Steps of a constant loop that LLVM unrolls fully.
_UNROLLED = 3 << 5
#: Cycles until a load finds what the store before it has written.
_FORWARD = 5.0
#: Cycles around a row.
_ROW = 20.0
#: Cycles of a branch that was guessed wrong, in the middle of others' work.
_SURPRISE = 10.0
#: Steps of rows that LLVM takes in vectors of rows, as groups of interleaved accesses.
_INTERLEAVED = 8
#: Cycles of a cell that is put into a vector, or taken out of it, by itself.
_APART = 0.75
#: Cycles of a cell that a vector of time reads, and writes, where steps lie apart.
_GATHERED, _SCATTERED = 2.0, 4.0
#: Cycles of a cell of a vector of time that is read or written backwards.
_REVERSED = 1.5
#: Cycles of a store to a line that another core writes, too.
_CONTESTED = 10.0
#: More cycles of vectors of time whose elements have several parts: they leave the registers.
_SPILLED = 1.4
#: Cycles of a store to a line that no prefetcher has brought near.
_JUMP = 30.0
#: Lanes of one vector operation, as the builder makes them.
_STRIP = 32


@dataclass(frozen=True)
class Work:
    """What a plan does, before it is known how fast.

    Attributes
    ----------
    cycles : float
        Of instructions and chains, of all tasks together.
    tasks : float
        Independent tasks that share them.
    joins : float
        Times that the pool is woken and waited for; none in a loop on one core.
    moved : float
        Bytes from and to where the arrays lie, a line that is written counted twice.
    past : float
        Bytes written past the caches.
    scattered : float
        Bytes of lines that no prefetcher sees coming.
    alone : float
        Cycles of one core while the others wait.
    """

    cycles: float
    tasks: float
    joins: float
    moved: float
    past: float = 0.0
    alone: float = 0.0
    scattered: float = 0.0
    footprint: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.cycles + other.cycles,
            max(self.tasks, other.tasks),
            self.joins + other.joins,
            self.moved + other.moved,
            self.past + other.past,
            self.alone + other.alone,
            self.scattered + other.scattered,
            max(self.footprint, other.footprint),
        )


def seconds_of(work: Work, chip: CpuChip, cores: int) -> float:
    """Predicted seconds: the largest of the bounds, and what passes beside them."""
    used = min(float(cores), work.tasks) if work.joins else 1.0
    rounds = ceil(work.tasks / used) * used / work.tasks if work.tasks < 16 * used else 1.0
    busy = work.cycles * chip.cycle * rounds / used
    rate = chip.rate(work.footprint, used)
    moved = (
        work.moved / rate
        + work.scattered / (chip.scattered_rate * used)
        + work.past * chip.past / chip.rate(float("inf"), used)
    )
    bounds = sorted((busy, moved))
    # Bounds of like size are not met together.
    together = bounds[1] + 0.25 * bounds[0]
    return chip.start + work.joins * chip.wake + work.alone * chip.cycle + together


# ---- parts ----------------------------------------------------------------------------------


def _latency(path: Path, chip: CpuChip, polynomials: bool = False) -> float:
    """Cycles of a path; calls are the C library's, or polynomials, each of them a long chain."""
    return (
        path.sums * chip.sum_latency
        + path.products * chip.product_latency
        + path.simple
        + path.calls * (_TERMS * chip.product_latency if polynomials else chip.call)
        + path.quotients * 3 * chip.quotient
    )


def _scalar(counts: Counts, chip: CpuChip) -> float:
    """Cycles of scalar instructions."""
    issued = counts.operations / chip.issue
    return issued + counts.calls * chip.call + counts.quotients * chip.quotient


def _vector(counts: Counts, lanes: float, chip: CpuChip, ldexp: bool, library: bool) -> float:
    """Cycles of the same on so many lanes of vectors."""
    each = lanes / chip.vector_bytes
    calls = counts.calls * (_POLYNOMIAL + (0.0 if ldexp else _UNSCALED)) * 4 * each
    if library:
        calls = 0.0
    issued = (counts.bytes * each + calls) / chip.vector_issue
    called = counts.calls * lanes * (chip.call + 2) if library else 0.0
    # A division of a vector is as many narrow ones, two at a time.
    return issued + called + counts.quotients * lanes * chip.quotient / 4


def _accesses(step: Step) -> list[Any]:
    return [a for a in step.accesses if not a.fixed]


def _memory(step: Step, chip: CpuChip, past: float, passes: float = 1.0) -> dict[str, float]:
    """Bytes; each line of an output is read before it is written, unless it is written past."""
    footprint = step.loads + step.stores * (1.0 - past)
    twice = 2.0 if footprint > chip.private else 1.0
    moved = passes * step.loads + twice * (1.0 - past) * step.stores
    return {"moved": moved, "past": past * step.stores, "footprint": footprint}


def _past(plan: Any, step: Step) -> float:
    """The share of the outputs that a plan stores past the caches: of aligned lines only."""
    if not plan.nontemporal:
        return 0.0
    size = max((a.size for a in step.accesses if a.store), default=4)
    if plan.time_vector or plan.transpose:
        width = plan.time_vector or 16
        covered = step.length // width * width / step.length
        along, rows = step.length * size, step.rows
    else:
        width = min(plan.lane_block, step.lanes)
        covered = step.lanes // width * width / step.lanes if width * size >= 64 else 0.0
        along, rows = step.lanes * size, step.rows * step.length // step.lanes
    if width * size < 64:
        return 0.0
    # Of rows that begin anywhere in a line, few begin at its head.
    return covered if along % 64 == 0 or rows == 1 else covered * (along & -along) / 64


def _strided(step: Step, chip: CpuChip, rows_at_once: float) -> float:
    """Bytes of lines that are fetched again for every lane where lanes are neighbours."""
    extra = 0.0
    for a in _accesses(step):
        if a.along_time in (1, -1, 0, None) or not a.along_lane:
            continue
        used = min(64.0, rows_at_once * a.size * abs(a.along_lane))
        again = min(64 / used, max(1.0, step.lanes / rows_at_once))
        # The lines of a column stay only where all of them fit.
        if step.length * 64 > chip.nearest:
            extra += step.rows * step.length * a.size * (again - 1)
    return extra


def _instructions(step: Step) -> float:
    """Scalar instructions of a step beside its calls."""
    # A load is most often an operand of another instruction.
    accesses = sum(a.times * (1.0 if a.store else 0.5) for a in _accesses(step))
    return step.body.operations + accesses + 2 * step.body.choices


# ---- the loop -------------------------------------------------------------------------------


def loop_work(plan: Any, step: Step, chip: CpuChip) -> Work:
    """The loop as LLVM compiles it: one core, in vectors where lanes are innermost."""
    total = float(step.rows * step.length)
    if step.lanes_inside and _innermost_vectors(step):
        return _columns(step, chip, step.lanes, 1.0, step.rows / step.lanes)
    chain = _latency(step.chain, chip) + (_FORWARD if step.guarded else 0.0)
    own = _instructions(step)
    loops = 0.0 if step.length <= _UNROLLED else _LOOP
    issued = (own + loops) / chip.issue + step.body.calls * chip.call
    issued += step.body.quotients * chip.quotient
    if step.state:
        cells = sum(part.cells for part in step.parts)
        chain = chain / max(1, cells)
    # The rows after this one begin while it waits, as far as the processor looks ahead.
    ahead = 1.0 + chip.window / max(1.0, step.length * (own + loops))
    ahead = min(ahead, float(step.rows))
    each = max(issued, chain / ahead)
    surprises = 0.0
    if step.extremum:
        # Numbers in no order have about ln(n) + 0.6 running maxima, each a wrong guess.
        surprises = _SURPRISE * (log(step.length) + 0.6)
    return Work(
        total * each + step.rows * (_ROW + surprises),
        1.0,
        0.0,
        **_with(_memory(step, chip, 0.0), _strided(step, chip, 1.0)),
    )


def _short_rows(step: Step, chip: CpuChip) -> float | None:
    """Cycles of a row of few steps, which LLVM takes in vectors of rows; None where it does not.

    Of the loop as it was written it does so now and then: there it is not counted on.
    """
    calm = not (step.body.calls or step.guarded or step.state or step.backwards)
    if step.length > _INTERLEAVED or not calm or step.rows < 8:
        return None
    cycles = _vector(step.body, 1.0, chip, True, False)
    return step.length * (cycles + sum(a.size * 4 / chip.vector_bytes for a in _accesses(step)))


def _with(memory: dict[str, float], extra: float) -> dict[str, float]:
    return {**memory, "moved": memory["moved"] + extra}


def _innermost_vectors(step: Step) -> bool:
    wide = all(a.along_lane in (0, 1) for a in step.accesses)
    return wide and step.lanes > 1 and not step.body.calls


def _columns(step: Step, chip: CpuChip, width: float, tasks: float, rows: float) -> Work:
    """``rows`` times strips of neighbouring lanes, ``width`` of them in vectors at every step."""
    cycles = _vector(step.body, width, chip, True, False)
    cycles += sum(
        max(1.0, width * a.size / chip.vector_bytes) * a.times * (1.0 if a.store else 0.5)
        for a in _accesses(step)
    )
    chain = _latency(step.chain, chip) + _FORWARD
    each = max(cycles + 3.0, chain)
    if width < chip.vector_bytes / 4:
        each = max(each, width * _instructions(step) / chip.issue)
    return Work(rows * step.length * each, tasks, 0.0, **_memory(step, chip, 0.0))


# ---- lanes ----------------------------------------------------------------------------------


def lanes_work(plan: Any, step: Step, chip: CpuChip) -> Work:
    """Lanes over cores: one by one, interleaved, in vectors, in tiles, or by vectors of time."""
    if plan.time_vector:
        work = _time_vectors(plan, step, chip, step.length).over(step.rows)
        joins = 0.0 if step.rows == 1 else 1.0
        work = _Walk(work.cycles + step.rows * _contested(step, chip))
        memory = _memory(step, chip, _past(plan, step))
        return Work(work.cycles, float(step.rows), joins, **memory)
    width = min(plan.lane_block, step.lanes)
    outer = step.rows / step.lanes
    total = None
    done = 0
    for size in _halvings(plan.lane_block):
        blocks = (step.lanes - done) // size
        if not blocks:
            continue
        done += blocks * size
        one, tasks = _block(plan, step, chip, size), outer * blocks
        work = Work(0.0, 1.0, 0.0, 0.0, alone=one)
        if tasks > 1:
            work = Work(tasks * (one + _contested(step, chip)), tasks, 1.0, 0.0)
        total = work if total is None else total + work
    assert total is not None
    memory = _memory(step, chip, _past(plan, step))
    if plan.transpose and memory["footprint"] > chip.private * min(chip.cores, total.tasks):
        # The rows of a tile are too many for the prefetcher.
        asked = step.loads if plan.prefetch else 0.0
        memory["scattered"] = memory["moved"] - asked
        memory["moved"] = asked
    return replace(total, **_with(memory, _strided(step, chip, width)))


def _contested(step: Step, chip: CpuChip) -> float:
    """Cycles of a lane whose neighbours in a line are written by other cores meanwhile."""
    stores = [a for a in _accesses(step) if a.store and a.along_lane == 1]
    if chip.cores < 2 or step.rows < 2 or not stores or step.lanes * stores[0].size > 128:
        return 0.0
    return _CONTESTED * step.length


def _halvings(width: int) -> list[int]:
    sizes = [width]
    while sizes[-1] > 1:
        half = sizes[-1] // 2
        sizes.append(half if half <= _STRIP else half // _STRIP * _STRIP)
    return sizes


def _block(plan: Any, step: Step, chip: CpuChip, size: int) -> float:
    """Cycles of a task: ``size`` lanes over all steps."""
    overhead = 10.0 + 2.0 * size
    chain = _latency(step.chain, chip)
    own = _instructions(step)
    if size == 1 or not plan.vectorize or not step.in_vectors:
        if step.state:
            chain /= max(1, sum(part.cells for part in step.parts))
        short = _short_rows(step, chip)
        if short is not None and size == 1:
            return short
        issued = size * (_scalar(step.body, chip) + (own - step.body.operations) / chip.issue)
        ahead = 1.0 + chip.window / max(1.0, step.length * size * own)
        each = max(issued + _LOOP / chip.issue, chain / ahead)
        return overhead + step.length * (each + _jumps(step, chip, size))
    chain = _latency(step.chain, chip, not plan.library_math)
    if plan.transpose and size % 16 == 0:
        whole, rest = divmod(step.length, 16)
        cycles = 16 * whole * max(_tiles(plan, step, chip, size), chain)
        return overhead + cycles + rest * max(_across(plan, step, chip, size), chain)
    if size > _STRIP:
        chain += _FORWARD
    each = max(_across(plan, step, chip, size), chain)
    return overhead + step.length * (each + _jumps(step, chip, size))


def _jumps(step: Step, chip: CpuChip, size: int) -> float:
    """Cycles of a step whose strip of lanes lies a row apart from the step's before.

    Stores leave in order: one whose line is not in the nearest cache holds up those behind it.
    """
    strips = [a for a in _accesses(step) if a.along_lane == 1 and a.along_time not in (0, None)]
    if step.loads + step.stores <= chip.nearest or size >= step.lanes:
        return 0.0
    return _JUMP * sum(1.0 for a in strips if a.store and abs(a.along_time) * a.size > 2 * 64)


def _across(plan: Any, step: Step, chip: CpuChip, size: int) -> float:
    """Cycles of a step of ``size`` lanes in vectors."""
    cycles = (
        2.0
        + _unhidden(step, chip, size)
        + _vector(step.body, size, chip, plan.ldexp, plan.library_math)
    )
    for a in _accesses(step):
        vectors = max(1.0, size * a.size / chip.vector_bytes)
        if a.along_lane in (0, 1):
            cycles += vectors * a.times * (1.0 if a.store else 0.5)
        else:
            # Lane by lane, put into vectors and taken out of them by shuffles.
            cycles += size * a.times * _APART
    return cycles


def _unhidden(step: Step, chip: CpuChip, size: int) -> float:
    """Cycles that a step waits for its polynomials; several vectors hide one another's."""
    if not step.transcendental:
        return 0.0
    return _TERMS * chip.product_latency / 2 / max(1.0, size * 4 / chip.vector_bytes)


def _tiles(plan: Any, step: Step, chip: CpuChip, size: int) -> float:
    """Cycles of a step: squares between memory and registers, and vectors of lanes."""
    cycles = _unhidden(step, chip, size) + _vector(
        step.body, size, chip, plan.ldexp, plan.library_math
    )
    for a in _accesses(step):
        vectors = max(1.0, size * a.size / chip.vector_bytes)
        if a.along_time in (1, -1) and a.along_lane:
            side = 64 / max(4, a.size)
            # Per row of a square: its levels of shuffles, and four accesses on the way.
            cycles += vectors * (log2(side) / chip.shuffle_issue + 3.0) * a.times
        elif a.along_lane in (0, 1):
            cycles += vectors * a.times * (1.0 if a.store else 0.5)
        else:
            cycles += size * a.times * _APART
    return cycles + 1.0


# ---- vectors of time ------------------------------------------------------------------------


@dataclass(frozen=True)
class _Walk:
    """Cycles of a walk over some steps of one lane."""

    cycles: float

    def over(self, rows: float) -> _Walk:
        return _Walk(self.cycles * rows)


def _time_vectors(plan: Any, step: Step, chip: CpuChip, length: float) -> _Walk:
    """Vectors of steps, and what is left of them one by one."""
    width = plan.time_vector
    full, rest = divmod(length, width)
    issued, shuffles, chain = 0.0, 0.0, 0.0
    for part in step.parts:
        scan = _run_scan if plan.time_runs else _scan
        made = scan(part, width, chip)
        spilled = _SPILLED if len(part.sizes) > 2 else 1.0
        issued, shuffles = issued + spilled * made[0], shuffles + spilled * made[1]
        issued += spilled * _vector(part.lift, width, chip, True, False) * chip.vector_issue
        chain = max(chain, _latency(part.apply_chain, chip) + 3.0)
    issued += _vector(step.body, width, chip, True, False) * chip.vector_issue
    memory = 0.0
    for a in _accesses(step):
        vectors = max(1.0, width * a.size / chip.vector_bytes)
        if a.along_time == 1:
            memory += vectors * (1.0 if a.store else 0.5)
        elif a.along_time == -1:
            memory += _REVERSED * width
        else:
            memory += (_SCATTERED if a.store else _GATHERED) * width
    block = max(issued / chip.vector_issue, shuffles / chip.shuffle_issue, memory) + 2.0
    short = _short_rows(step, chip) if not full and length == step.length else None
    if short is not None:
        return _Walk(short)
    own = _instructions(step)
    single = own / chip.issue + _scalar(step.body, chip) - step.body.operations / chip.issue
    busy = full * block + rest * single + 8.0
    waits = full * max(block, chain) + rest * max(single, _latency(step.chain, chip)) + 8.0
    # The next row begins while this one waits, as far as the processor looks ahead.
    inside = full * (issued + shuffles) + rest * own + 20.0
    return _Walk(max(busy, waits / (1.0 + chip.window / inside)))


def _scan(part: Part, width: int, chip: CpuChip) -> tuple[float, float]:
    """Operations and shuffles of vectors: doubling distances, then the carries before."""
    levels = log2(width)
    combine = part.combine.bytes * width / chip.vector_bytes
    vectors = sum(max(1.0, size * width / chip.vector_bytes) for size in part.sizes)
    carries = sum(max(1.0, size * width / chip.vector_bytes) for size in part.carries)
    apply = part.apply.bytes * width / chip.vector_bytes
    # Blends are no shuffles where masks make them.
    shuffles = levels * vectors + vectors + carries
    return levels * (combine + vectors) + apply + carries, shuffles


def _run_scan(part: Part, width: int, chip: CpuChip) -> tuple[float, float]:
    """The same with runs of four steps in every lane."""
    quarter = width // 4
    one = quarter / chip.vector_bytes
    vectors = sum(max(1.0, size * one) for size in part.sizes)
    carries = sum(max(1.0, size * one) for size in part.carries)
    combine = part.combine.bytes * max(one, 1 / 4)
    levels = log2(quarter)
    operations = 3 * combine + levels * (combine + vectors)
    operations += part.apply.bytes * max(one, 1 / 4) * 4
    shuffles = 8 * vectors + (levels + 1) * vectors + 8 * carries
    return operations, shuffles


# ---- three phases ---------------------------------------------------------------------------


def three_phase_work(plan: Any, step: Step, chip: CpuChip) -> Work:
    """Chunks of time: reduced, scanned, replayed."""
    if plan.time_vector:
        return _vector_chunks(plan, step, chip)
    chunks, width = plan.chunks, plan.lane_block
    length = step.length // chunks
    tasks = step.rows * chunks / width
    extend = NONE
    for part in step.parts:
        extend += (part.extend + part.lift).times(part.cells)
    chain = max(_latency(part.extend_chain, chip) for part in step.parts)
    loads = sum(a.times for a in _accesses(step) if not a.store)
    reduce = max(width * (_scalar(extend, chip) + loads / chip.issue), chain)
    own = _instructions(step)
    replay = width * (_scalar(step.body, chip) + (own - step.body.operations) / chip.issue)
    replay = max(replay, _latency(step.chain, chip))
    apply = sum((_scalar(p.apply, chip) + 10) * p.cells for p in step.parts)
    stages = 3.0 * max(1, len({id(p) for p in step.parts}))
    reduce += width * _jumps(step, chip, 1)
    replay += width * _jumps(step, chip, 1)
    memory = _with(_memory(step, chip, 0.0, 2.0), 2 * _strided(step, chip, 1.0))
    work = Work(tasks * (length * (reduce + replay) + 60.0), tasks, stages, **memory)
    return replace(work, alone=step.rows * chunks * apply / max(1.0, min(step.rows, chip.cores)))


def _vector_chunks(plan: Any, step: Step, chip: CpuChip) -> Work:
    chunks = plan.chunks
    tiles = max(1, step.length // plan.cache_steps) if plan.cache_steps else 1
    unit = step.length / tiles / (2 * chunks + 1)
    walk = _time_vectors(plan, step, chip, unit).cycles
    fold = _fold(plan, step, chip, 2 * unit)
    first = max(walk, fold)
    replay = _time_vectors(plan, step, chip, 2 * unit).cycles
    tasks = step.rows * chunks
    cycles = step.rows * tiles * (chunks * first + chunks * replay + 60.0 * chunks)
    apply = sum((_scalar(p.apply, chip) + 10) * p.cells for p in step.parts)
    again = (2 * chunks - 2) / (2 * chunks + 1)
    memory = _memory(step, chip, _past(plan, step), 1.0)
    if plan.cache_steps == 0 or step.loads / tiles <= chip.private:
        memory["moved"] += again * step.loads * (1.0 if plan.cache_steps == 0 else 0.3)
    else:
        memory["moved"] += again * step.loads
    alone = step.rows * tiles * chunks * apply
    return Work(cycles, float(tasks), 2.0 * tiles, **memory, alone=alone)


def _fold(plan: Any, step: Step, chip: CpuChip, length: float) -> float:
    """The element of some steps: pairs of neighbours, batches of vectors at once."""
    width = plan.time_vector
    operations, shuffles = 0.0, 0.0
    for part in step.parts:
        spilled = _SPILLED if len(part.sizes) > 2 else 1.0
        lifted = _vector(part.lift, width, chip, True, False) * chip.vector_issue
        combined = part.combine.bytes * width / chip.vector_bytes * 1.25
        operations += spilled * (lifted + combined)
        vectors = sum(max(1.0, size * width / chip.vector_bytes) for size in part.sizes)
        shuffles += spilled * 2 * vectors * 1.25
    loads = sum(
        max(1.0, width * a.size / chip.vector_bytes) * 0.5 for a in _accesses(step) if not a.store
    )
    batch = max(operations / chip.vector_issue, shuffles / chip.shuffle_issue, loads)
    return 20.0 + length / width * (batch + 4.0)
