"""Cost of three phases over chunks of time."""

from __future__ import annotations

from dataclasses import replace

from tvm_scan.schedules.cpu.cost.parts import (
    fetched_again,
    forgotten,
    latency_of,
    memory_of,
    past_share,
    scalar_cycles,
    step_cycles,
    with_more,
)
from tvm_scan.schedules.cpu.cost.rows import evicted
from tvm_scan.schedules.cpu.cost.step import Part, Step
from tvm_scan.schedules.cpu.cost.strips import jump_cycles
from tvm_scan.schedules.cpu.cost.vectors import asked_ahead, vector_reduction, vector_scan
from tvm_scan.schedules.cpu.plans import CpuPlan
from tvm_scan.schedules.machine.cpu_chip import CpuChip
from tvm_scan.schedules.machine.cpu_cost import CpuWork

#: Chunks side by side whose stores may go backwards, and cycles of a step of more of them, which
#: wait for one another: sums of 477485 numbers backwards take two cores of a Zen 4 by 2, 4 and 8
#: chunks 199, 175 to 278 and 262 us, forwards 4 and 8 take 120 and 110.
_FEW_CHUNKS, _DESCENDING = 2, 2.4
#: Cycles of a choice in an element, where the processor has learnt what is chosen, and more where
#: it has not: chunks of 30000 and of 181520 affine steps with resets take a Zen 4 11 and 26 cycles
#: a step, by 8 side by side.
_GUESSED, _FORGOTTEN = 1.2, 4.5


def three_phase_work(plan: CpuPlan, step: Step, chip: CpuChip) -> CpuWork:
    """Chunks of time: reduced, scanned, replayed."""
    if plan.time_vector:
        return _vector_chunks(plan, step, chip)
    chunks, width = plan.chunks, plan.lane_block
    length = step.length // chunks
    tasks = step.rows * chunks / width
    extend = sum(_extend_cycles(part, step, chip) for part in step.parts)
    chain = max(latency_of(part.extend_chain, chip) for part in step.parts)
    loads = sum(a.times for a in step.moving if not a.store)
    reduce = max(width * (extend + loads / chip.issue), chain)
    replay = max(width * step_cycles(step, chip), latency_of(step.chain, chip))
    apply = sum((scalar_cycles(p.apply, chip) + 10) * p.cells for p in step.parts)
    joins = 3.0 * len(step.parts)
    if step.backwards and width > _FEW_CHUNKS:
        replay += _DESCENDING * width
    reduce += width * jump_cycles(step, chip, 1)
    replay += width * jump_cycles(step, chip, 1)
    # Of linear recurrences of 2^19 steps 8 chunks side by side take a Zen 4 486 us, 4 160.
    again = fetched_again(step, chip, 1.0, step.lanes) + evicted(step, chip, width, length)
    memory = with_more(memory_of(step, chip, 0.0, 2.0), 2 * again)
    work = CpuWork(tasks * (length * (reduce + replay) + 60.0), tasks, joins, **memory)
    return replace(work, alone=step.rows * chunks * apply / max(1.0, min(step.rows, chip.cores)))


def _extend_cycles(part: Part, step: Step, chip: CpuChip) -> float:
    """Cycles of a step that an element in scalar code is extended by."""
    counts = (part.extend + part.lift).times(part.cells)
    guessed = counts.choices * (_GUESSED + _FORGOTTEN * forgotten(step))
    return scalar_cycles(counts, chip) + guessed


def held_steps(chunks: int, step: Step, chip: CpuChip, *, ahead: bool) -> float:
    """Steps of a tile of vectors that a core replays from its private cache.

    A core replays what it has reduced, and asks for as much of the next tile while it does so.
    """
    share = 2 * chunks / (2 * chunks + 1) / min(chip.cores, chunks)
    return chip.private * step.length / (step.loads * share * (2 if ahead else 1))


def _vector_chunks(plan: CpuPlan, step: Step, chip: CpuChip) -> CpuWork:
    chunks = plan.chunks
    tiles = max(1, step.length // plan.cache_steps) if plan.cache_steps else 1
    unit = step.length / tiles / (2 * chunks + 1)
    scan = vector_scan(plan, step, chip, unit)
    reduce = vector_reduction(plan, step, chip, 2 * unit)
    first = max(scan, reduce)
    replay = vector_scan(plan, step, chip, 2 * unit)
    tasks = step.rows * chunks
    cycles = step.rows * tiles * (chunks * first + chunks * replay + 60.0 * chunks)
    apply = sum((scalar_cycles(p.apply, chip) + 10) * p.cells for p in step.parts)
    again = (2 * chunks - 2) / (2 * chunks + 1)
    memory = memory_of(step, chip, past_share(plan, step), 1.0)
    held = 0 < plan.cache_steps <= held_steps(chunks, step, chip, ahead=plan.prefetch > 0)
    memory["moved"] += again * step.loads * (0.3 if held else 1.0)
    # Each lane of few is reduced, and scanned, by itself: two columns of 169462 steps of 8 bytes
    # take a Cascade Lake 683 us by 2 chunks, in vectors of time 376.
    memory = with_more(memory, 2 * fetched_again(step, chip, 1.0, step.lanes))
    memory = asked_ahead(plan, step, chip, memory)
    alone = step.rows * tiles * chunks * apply
    return CpuWork(cycles, float(tasks), tiles + 1.0, **memory, alone=alone)
