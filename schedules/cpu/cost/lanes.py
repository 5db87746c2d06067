"""Cost of lanes over cores: one by one, interleaved, in vectors or tiles, or by vectors of time."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, log2

from tvm_scan import tir
from tvm_scan.schedules.cpu.chains import RUN
from tvm_scan.schedules.cpu.cost.count import WIDENED, Counts
from tvm_scan.schedules.cpu.cost.lane_lines import beyond_caches, flushed, one_by_one, step_waits
from tvm_scan.schedules.cpu.cost.parts import (
    CHOSEN,
    FORWARD,
    LOOP,
    TERMS,
    UNROLLED,
    access_cycles,
    ahead_of,
    fetched_again,
    latency_of,
    memory_of,
    more_ports,
    past_share,
    scalar_latency,
    step_cycles,
    takes_whole_rows,
    vector_cycles,
    vectors_of,
    with_more,
)
from tvm_scan.schedules.cpu.cost.rows import crowded_cycles, evicted
from tvm_scan.schedules.cpu.cost.short_rows import short_row
from tvm_scan.schedules.cpu.cost.step import Access, Step
from tvm_scan.schedules.cpu.cost.strips import (
    beside_cycles,
    border_cycles,
    clash_cycles,
    contested_cycles,
    jump_cycles,
)
from tvm_scan.schedules.cpu.cost.tiles import tile_waits
from tvm_scan.schedules.cpu.cost.vectors import asked_ahead, vector_scan
from tvm_scan.schedules.cpu.lane_streams import TILE_STEPS, tile_parts
from tvm_scan.schedules.cpu.plans import (
    PAGE_BYTES,
    VECTOR,
    CpuPlan,
    lane_vectors,
    rest_blocks,
    writes_out,
)
from tvm_scan.schedules.machine.cpu_chip import CpuChip
from tvm_scan.schedules.machine.cpu_cost import CpuWork
from tvm_scan.tir import LINE_BYTES

#: Cycles of a cell that is put into a row of a tile, or taken out of it, by itself.
_APART = 0.65
#: How many times as long either takes where the vectors of a state, or of polynomials, keep the
#: ports busy: logarithms of sums of 1000 x 64 in vectors of 64 rows take a Cascade Lake 1.5 cycles
#: more for each of their two than in tiles, and otherwise 0.8.
_BUSY = 2.1
#: Cycles more of a cell that is put into a vector of 64 bytes, of which there are more parts.
_WHOLE = 0.3
#: The same where what was read chooses what is read, of whose masks there are more parts, too:
#: resets of 600 rows of 300 steps in vectors of 8 lanes take a Zen 5 0.25 cycles more than by its
#: other constants, a Zen 4 none.
_CHOSEN = 0.04
#: Cycles more of a cell of less than 4 bytes, for each time that its vector is twice as long as 2:
#: halves of 16 rows of 400 steps take a Zen 4 1.9, 2.1 and 2.5 in vectors of 4, 8 and 16.
_NARROW = 0.25
#: The share of a cell's cycles where blocks of short rows are written out, and more of it for each
#: time that a vector is twice as long; no store port is waited for (9 kinds, 7 to 31 steps, Zen 4).
_JOINED, _WIDER = 0.35, 0.15
#: The share of the nearest cache beyond which lines of a block's rows, a cell of each at a time, do
#: not stay in it, and cycles more of such a cell: linear recurrences of 128 rows of 32 steps take a
#: Zen 4 7.2 us in one block of vectors, 2.3 by what else is counted, sums of 64 rows of 200 4.9.
_ROWS, _OF_MANY = 1 / 3, 0.8
#: Shares of what is around a row that come with a block, and with each of its lanes.
_BLOCK, _LANE = 0.77, 0.23
#: The share of a tile's squares, or of its chain, that the other does not hide, of steps without
#: polynomials: filters of order two of 4096 x 144 in tiles of 16 rows take a Zen 5 80 us, in those
#: of 64 48, sums 46 and 43. Of longer ones so many cycles for each vector are hidden: of 512
#: rows in tiles of 16 a Zen 4 takes sums, averages, clamped sums and filters of order two, whose
#: chains are 3, 7, 7 and 8, in 10.1, 14.1, 15.0 and 16.9 cycles a step of 16 rows.
_IN_TURN, _BEHIND = 0.35, 3.0
#: Cycles around a block of vectors, and for each lane of one of tiles, whose arrays are cleared.
_VECTORS, _TILES = 5.0, 8.0
#: Bytes of carries that TVM puts on the stack, cycles of its pool of memory, and of a vector there
#: that is cleared: blocks of 128, 256, 512 lanes of 4 bytes take a Zen 4 150, 230, 390 more, of 256
#: without AVX 600.
_ON_STACK, _POOL, _CLEARED = 256, 75.0, 9.6
#: Cells of a state that wait for its polynomials as long as one does. Selective scans of 8 and 16
#: states take a Zen 4 1.1 and 0.6 cycles a cell more in vectors of 16 lanes than in those of 64, in
#: tiles as long.
_HIDING = 8.0
#: Instructions of a polynomial beside its terms, most of them one after another: selective scans of
#: 16 states without AVX take a Zen 4 45 cycles for each in blocks of 8 lanes, 66 in those of 16.
_BESIDE_TERMS = 16.0
#: Cycles of a cell of a state for each part but one, a power of two, in which a vector of other
#: lanes is loaded and stored: selective scans of 16 states take a Zen 4 78 us in 16 lanes and 122
#: in 15, 136 in 32 and 181 in 31 (1000 steps).
_PARTED = 2.4
#: Cycles of a vector of a state whose cells lie a page apart, each with what all steps read of it,
#: so that no prefetcher brings them: selective scans of 4 x 2048 x 64 and 16 states take a Zen 4
#: 1.3 ms in blocks of 64 to 256 lanes, 1.5 of 512, 2.8 of 1024, of 8 states 0.39, and 0.68.
_PAGES_APART = 15.0
#: The share of a call for a half after which the next step begins, whose carries wait in memory:
#: moving averages of 64 x 1000 halves without F16C take a Zen 4 272, 241, 216 and 206 us in vectors
#: of 4, 8, 16 and 32 lanes, and 170 in tiles.
_BEHIND_CALLS = 0.2
#: Vectors of a square that stay in registers; of the ports for shorter vectors those that are put
#: into memory keep some busy: sums of 1000 rows of 144 steps in tiles of 16 rows take a Zen 4 17 us
#: under AVX2 and 23 without it, of 8 bytes 21 and 27. Vectors of a state take all ports.
_REGISTERS = 16.0
#: Accesses of a row of a tile on its way: from memory and to it, in two steps, or in one where the
#: tile is in registers.
_ROW_ACCESSES, _IN_REGISTERS = 4.0, 1.0


def lanes_work(plan: CpuPlan, step: Step, chip: CpuChip) -> CpuWork:
    """Lanes over cores: one by one, interleaved, in vectors, in tiles, or by vectors of time."""
    memory = memory_of(step, chip, past_share(plan, step))
    if plan.time_vector:
        joins = 0.0 if step.rows == 1 else 1.0
        of_row = vector_scan(plan, step, chip, step.length)
        contested = step.rows * contested_cycles(step, chip, of_row, plan.time_vector)
        memory = with_more(memory, fetched_again(step, chip, 1, step.lanes))
        memory = with_more(memory, flushed(step, chip, memory["past"]))
        memory = asked_ahead(plan, step, chip, memory)
        memory |= one_by_one(step, chip, memory)
        return CpuWork(step.rows * of_row, float(step.rows), joins, **memory, contested=contested)
    width = min(plan.lane_block, step.lanes)
    outer = step.rows / step.lanes
    full, rest = divmod(step.lanes, plan.lane_block)
    of_block = _block(plan, step, chip, width) if full else 0.0
    # Lanes beyond the full blocks are one task more.
    of_rest = sum(_block(plan, step, chip, size) for size in rest_blocks(plan, rest))
    blocks = full + (rest > 0)
    tasks, cycles = outer * blocks, outer * (full * of_block + of_rest)
    if tasks > 1:
        # Of one block that is a whole row of lanes, the lines are its own.
        contested = 0.0
        if blocks > 1:
            longest = max(of_block, of_rest)
            contested = contested_cycles(step, chip, longest, tasks=tasks)
            contested = tasks * (contested + beside_cycles(step, chip, width, tasks))
            if outer == 1:
                first = (ceil(tasks / chip.cores) - (rest > 0)) * width
                contested += border_cycles(step, chip, first, tasks)
        # Of several rows of blocks each has a short one.
        short = of_block - of_rest if rest and outer == 1 else 0.0
        total = CpuWork(cycles, tasks, 1.0, 0.0, contested=contested, short=short)
    else:
        # Nobody waits for the one core.
        in_order = float(plan.vectorize and takes_whole_rows(step, chip, plan.lane_block))
        total = CpuWork(cycles, 1.0, 0.0, 0.0, in_order=in_order)
    memory |= beyond_caches(plan, step, chip, memory, total.tasks)
    again = fetched_again(step, chip, width, blocks)
    if plan.vectorize and not plan.transpose:
        again += evicted(step, chip, width)
    return replace(total, **with_more(memory, again))


def _block(plan: CpuPlan, step: Step, chip: CpuChip, size: int) -> float:
    """Cycles of a task: ``size`` lanes over all steps."""
    vectors = size > 1 and plan.vectorize and step.in_vectors
    overhead = _around_block(chip, size)
    if vectors:
        # Of vectors little is left beside the block before.
        overhead = _VECTORS + (_tiles(step, size) if plan.transpose else _pooled(step, chip, size))
    if not vectors:
        chain = scalar_latency(step, chip, step.length if size == 1 else 0)
        if step.state:
            chain /= max(1, sum(part.cells for part in step.parts))
        short = short_row(step, chip)
        if short is not None and size == 1:
            return short + _clashing(step, chip)
        # Lanes take turns in runs of steps, of which the scheduler holds a few; the next block
        # begins while the last steps of this one wait.
        ahead = size - 1 + ahead_of(step, chip, step.length)
        if size > 1:
            ahead = min(ahead, ahead_of(step, chip, RUN if step.length >= RUN else 1))
        # One row of few steps is written out.
        around = 0.0 if size == 1 and step.length <= UNROLLED else LOOP / size
        chosen = step.length <= CHOSEN
        issued = size * step_cycles(step, chip, around=around, chosen=chosen)
        each = max(issued, size * chain / ahead)
        return overhead + step.length * (each + jump_cycles(step, chip, size))
    chain = latency_of(step.chain, chip, not plan.library_math)
    if plan.transpose and size % 16 == 0:
        whole, rest = divmod(step.length, TILE_STEPS)
        less, more = sorted((_across(plan, step, chip, size, tiled=True), chain))
        each = more + _shown(step, chip, size, less) + tile_waits(step, chip, size)
        cycles = overhead + TILE_STEPS * whole * each
        if rest:
            cycles += rest * max(_across(plan, step, chip, size), chain)
        return cycles
    # The next block begins while the last steps of this one wait.
    chain /= ahead_of(step, chip, step.length, size)
    if size > VECTOR:
        chain += FORWARD
    each = max(_across(plan, step, chip, size), chain)
    jumps = jump_cycles(step, chip, size, past=plan.nontemporal)
    overhead += step_waits(plan, step, chip)
    return overhead + step.length * (each + jumps + crowded_cycles(step, chip, size))


def _shown(step: Step, chip: CpuChip, size: int, less: float) -> float:
    """Cycles of a step of tiles for the squares or the chain, whichever is less."""
    if step.transcendental:
        return 0.0
    shown = _IN_TURN * less
    more = max(0.0, less - _BEHIND * size / TILE_STEPS - shown)
    # What waits for memory hides it.
    return shown + (1.0 - chip.outside(step.touched)) * more


def _clashing(step: Step, chip: CpuChip) -> float:
    """Cycles of a lane of few steps whose rows meet others; lanes are in vectors of a line."""
    if step.touched <= chip.nearest:
        return 0.0
    lanes = LINE_BYTES // max((a.size for a in step.accesses), default=4)
    return step.length * clash_cycles(step, chip, lanes) / lanes


def _tiles(step: Step, size: int) -> float:
    """Cycles around a block of tiles: of arrays in memory, which are cleared, for each lane."""
    return 0.0 if _in_registers(step, size) else _TILES * size


def _in_registers(step: Step, size: int) -> bool:
    """Return whether a tile of so many lanes lies in no memory."""
    return tile_parts(size, (a.size for a in step.rows_apart)) > 1


def _pooled(step: Step, chip: CpuChip, size: int) -> float:
    """Cycles around a block whose carries are neither in registers nor on the stack."""
    held = size * sum(bytes_ for part in step.parts for bytes_ in part.carries)
    return _POOL + _CLEARED * held / chip.vector_bytes if held > _ON_STACK else 0.0


def _around_block(chip: CpuChip, size: int) -> float:
    """Cycles around a block of so many lanes, one by one or in turns."""
    return chip.row * (_BLOCK + _LANE * size)


def _across(plan: CpuPlan, step: Step, chip: CpuChip, size: int, *, tiled: bool = False) -> float:
    """Cycles of a step of ``size`` lanes in vectors; in tiles, with squares to and from memory."""
    cycles = _unhidden(step, chip, size, tiled)
    if not tiled:
        cycles += _BEHIND_CALLS * chip.halves * step.body.halves
    parts, body = lane_vectors(step, size), _of_lanes(step)
    for count, lanes in parts:
        cycles += count * vector_cycles(body, lanes, chip, plan.ldexp, plan.library_math)
    if step.state:
        states = max(part.cells for part in step.parts)
        cycles += _PARTED * states * max(0, (size % VECTOR).bit_count() - 1)
        wide = max(sum(part.carries) for part in step.parts) * size
        if wide >= PAGE_BYTES and 2 * states * wide > chip.nearest:
            cycles += _PAGES_APART * states * vectors_of(wide, 1, chip)
    stored = 0.0
    lines = size * LINE_BYTES * len(step.rows_apart)
    written_out = not tiled and writes_out(step, size)
    many = step.touched > chip.nearest and lines > _ROWS * chip.nearest
    held = tiled and _in_registers(step, size)
    for a in step.moving:
        if tiled and a.along_time in (1, -1) and a.along_lane:
            # Per row of a square: its levels of shuffles, and the accesses on the way; of halves in
            # registers, to make them wider or narrower.
            accesses, cell = _IN_REGISTERS + (a.size < 4) if held else _ROW_ACCESSES, max(4, a.size)
            levels = log2(min(LINE_BYTES, chip.vector_bytes) / cell)
            vectors = vectors_of(size, cell, chip)
            if not step.state:
                square = LINE_BYTES / cell * LINE_BYTES / chip.vector_bytes
                vectors /= more_ports(chip) ** min(1.0, _REGISTERS / square)
            cycles += vectors * chip.tile * (levels + accesses) * a.times
        elif a.along_lane in (0, 1):
            cycles += sum(count * access_cycles(a, lanes, chip) for count, lanes in parts)
        else:
            # Lane by lane, put into vectors and taken out of them by shuffles.
            each = _APART if tiled else _cell_cycles(a, step, chip, size, written_out)
            each += _OF_MANY if many else 0.0
            cycles += size * a.times * each
            stored += size * a.times * chip.stored if a.store and not written_out else 0.0
    return max(stored, cycles + (1.0 if tiled else 0.0))


def _cell_cycles(a: Access, step: Step, chip: CpuChip, size: int, written_out: bool) -> float:
    """Cycles of a cell of a vector of ``size`` lanes that is read or written by itself."""
    narrow = _NARROW * log2(size / 2) if a.size < 4 else 0.0
    if step.is_long:
        return _BUSY * (chip.apart + chip.taken) / 2 + narrow
    if written_out:
        share = _JOINED + _WIDER * log2(size)
        return share * (chip.taken if a.store else chip.apart) + narrow
    if a.store:
        return chip.taken + narrow
    chosen = _CHOSEN if step.guarded else 0.0
    return chip.apart + chosen + (_WHOLE if size * a.size >= LINE_BYTES else 0.0) + narrow


def _of_lanes(step: Step) -> Counts:
    """Operations of a step that each lane has, without conversions of what all lanes read."""
    shared = sum(
        a.times
        for a in step.moving
        if a.along_lane == 0 and not a.store and tir.is_half(tir.dtype_of(a.buffer))
    )
    return step.body + WIDENED.times(-shared) if shared else step.body


def _unhidden(step: Step, chip: CpuChip, size: int, tiled: bool) -> float:
    """Cycles that a step waits for its polynomials; several vectors hide one another's."""
    if not step.transcendental or (step.state and tiled):
        return 0.0
    cells = max((part.cells for part in step.parts), default=1) if step.state else 1
    vectors, terms = max(1.0, size * 4 / chip.vector_bytes), TERMS * (1 + (chip.fused > 0.0))
    chain = TERMS * (chip.product_latency + chip.fused)
    waits = chain / 2 / max(1.0, cells / _HIDING) / vectors
    if not step.state:
        return waits
    # As many of its cells as the scheduler holds are under way at a time.
    instructions = vectors * (terms + _BESIDE_TERMS)
    each = (chain + _BESIDE_TERMS) / (1.0 + chip.window / instructions)
    issued = instructions / chip.vector_issue / more_ports(chip)
    return max(waits, cells * (each - issued))
