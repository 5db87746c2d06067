"""Instructions of lanes that walk time, by the parts of their step; see ``machine.gpu_cost``.

What is counted is what nvcc emits: exponentials over states are one instruction in base 2, a
product and its sum are one, what does not move with time is in registers, and an array that
several statements read is read once. Tests compare the counts with the machine code.

A warp's access takes a line's time for every 4 bytes of a thread, also where many threads read the
same: a line is what a warp's registers get at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import log2
from typing import Any

from tvm import tirx
from tvm.ir.expr import TensorLoad

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.state_reduction import StateReduction, reduction_of
from tvm_scan.schedules.common.state_split import StateSplit, split_of
from tvm_scan.schedules.gpu.shared.walk_layout import walk_layout
from tvm_scan.schedules.gpu.thread.banks import LINE, WARP, WORD
from tvm_scan.schedules.gpu.thread.plans import WalkPlan
from tvm_scan.schedules.gpu.thread.vector_access import vector_access
from tvm_scan.schedules.gpu.walk.common_factors import with_common_factors
from tvm_scan.schedules.gpu.walk.elementary import in_few_instructions, instructions_saved
from tvm_scan.schedules.gpu.walk.exchange import (
    TOGETHER,
    ExchangeLayout,
    exchange_layout,
    sent_registers,
)
from tvm_scan.schedules.gpu.walk.exponentials import OF, in_base_two
from tvm_scan.schedules.gpu.walk.passes import steps_of_passes
from tvm_scan.schedules.machine.step_counts import (
    CALL,
    array_bytes,
    instructions_of,
    moving_loads,
    specials_of,
)

#: Instructions of ``exp2_in_range``: 4 of the interval, 3 of the reduction, 6 multiply-adds, 2 of
#: the power of two.
_POLYNOMIAL = 15.0
#: Of these, products and sums.
_PAIRED = 9.0
#: Of a pass of a loop over steps: its counter, bounds and addresses.
_PASS = 6.0
#: Steps of a pass, where a lane has one thread: nvcc writes out so many.
_UNROLLED = 4
#: Of the steps that a thread makes for others: keeping them, bounds, addresses.
_KEEP = 4.0
#: To convert a number of a table for the whole block.
_CONVERT = 4.0
#: Of the lines that a warp's reads of a table would take one after another, those that count: its
#: lanes read the same ones. On an H100, as the next one.
_SERVED = 0.7
#: Cycles of a line of memory where a thread's vectors are of rows of time far apart, of which the
#: first-level cache keeps few: 2.7 to 3.0 on an H100. Of single cells it was not measured.
_ROW = 2.8


@dataclass(frozen=True)
class WalkCounts:
    """One walk over all steps of all lanes, per step of one lane.

    Attributes
    ----------
    thread : float
        Instructions that one thread spends: of a walk by several threads, on its own states, and
        its share of what is done once.
    instructions : float
        Of all threads of the lane.
    accesses : float
        Lines that a warp's accesses and shuffles occupy the load and store unit with, by lanes.
    specials : float
        Special functions.
    bytes : float
        Of what is read and written, each cell once.
    shared : float
        Accesses of warps to shared memory.
    paired : float
        Instructions of all threads that are saved where one works on two numbers.
    """

    thread: float
    instructions: float
    accesses: float
    specials: float
    bytes: float
    shared: float = 0.0
    paired: float = 0.0


@lru_cache(maxsize=512)
def walk_counts(plan: WalkPlan, recurrence: Recurrence, reduces: bool = False) -> WalkCounts:
    """Count a walk of ``lanes``; with ``reduces`` the one that makes a chunk's element."""
    if plan.splits_steps:
        recurrence = with_common_factors(recurrence)
        reduction = reduction_of(recurrence) if reduces else None
        split = reduction.split if isinstance(reduction, StateReduction) else split_of(recurrence)
        assert isinstance(split, StateSplit), "WalkPlan.check refuses other steps"
        return _shared(plan, recurrence, split)
    return _alone(recurrence, reduces)


def _alone(recurrence: Recurrence, reduces: bool) -> WalkCounts:
    """A thread per lane."""
    reduction = reduction_of(recurrence) if reduces else None
    if isinstance(reduction, StateReduction):
        body: Any = tir.seq([*reduction.split.before, *reduction.split.loops])
        parts = [body]
    elif reduces:
        algebras = [group.algebra for group in recurrence.groups]
        parts = [part for a in algebras for part in a.extend(a.lift(), a.lift())]
    else:
        parts = [recurrence.body]
    stores = [] if reduces else _stores(recurrence)
    loads = moving_loads(parts, recurrence)
    computed = sum(instructions_of(part) for part in parts)
    read = sum(count for _, count in loads)
    lines = sum(count * _lines(list(load.indices), recurrence) for load, count in loads)
    lines += sum(_lines(indices, recurrence) for indices in stores)
    buffers = [load.source for load, _ in loads] + ([] if reduces else list(recurrence.outputs))
    total = computed + read + len(stores) + _PASS / _UNROLLED
    specials = sum(specials_of(part) for part in parts)
    moved = array_bytes(buffers, recurrence)
    return WalkCounts(total, total, lines / WARP, specials, moved)


@dataclass(frozen=True, eq=False)
class _Step:
    """Counts of a step that are those of every plan that shares its states.

    Attributes
    ----------
    loops : tuple of For
        Those over the states, with exponentials in base 2.
    exps, ordinary : float
        Special functions of a state, and its other instructions.
    computed, specials : float
        Instructions and special functions apart from the states.
    steady, alike, varying : tuple of TensorLoad
        Loads that move with time: apart from the states, of all states alike, of each its own.
    sent : int
        Registers that the loops read, and that the owner of a step computes.
    """

    loops: tuple[tirx.For, ...]
    exps: float
    ordinary: float
    computed: float
    specials: float
    steady: tuple[TensorLoad, ...]
    alike: tuple[TensorLoad, ...]
    varying: tuple[TensorLoad, ...]
    sent: int


@lru_cache(maxsize=64)
def _step_of(recurrence: Recurrence, split: StateSplit) -> _Step:
    loops = in_base_two(split.loops, recurrence).loops
    loop_body = tir.seq([part.body for part in loops])
    outside = in_few_instructions(split.outside)
    exps = specials_of(loop_body)
    loads = [load for load, _ in moving_loads([loop_body], recurrence)]
    return _Step(
        loops=loops,
        exps=exps,
        ordinary=instructions_of(loop_body, bare=True) - exps,
        computed=instructions_of(outside) - instructions_saved(outside, CALL),
        specials=specials_of(split.outside),
        steady=tuple(load for load, _ in moving_loads([outside], recurrence)),
        alike=tuple(load for load in loads if not _varies(load, loops)),
        varying=tuple(load for load in loads if _varies(load, loops)),
        sent=len(sent_registers(split)),
    )


def _shared(plan: WalkPlan, recurrence: Recurrence, split: StateSplit) -> WalkCounts:
    """Several threads share the states of a lane."""
    shared = plan.threads_per_lane
    states_each = split.states // shared
    step = _step_of(recurrence, split)
    reads = _state_reads(plan, recurrence, split, step)
    read = sum(1 / width for _, width, _ in reads)
    own_lines = sum(lines / width for _, width, lines in reads)
    # Every state's exponential in base 2, some of them by polynomials.
    exps, ordinary = step.exps, step.ordinary
    poly = plan.exp_share / OF * exps
    of_state = ordinary + exps + poly * (_POLYNOMIAL - 1)
    # Halves that the block converts: read, changed and written by one of its threads.
    tables = walk_layout(plan, recurrence, split).tables
    wide = [t for t in tables if t.wide is not None]
    lanes = plan.threads_per_block / shared
    of_state -= len(wide)
    exchange = exchange_layout(plan, recurrence, split)
    sent, sent_lines, left = _sent(plan, exchange, len(step.alike) + step.sent)
    sums, sums_lines, left_sums = _summed(plan, exchange, len(split.sums))
    loop = _PASS / steps_of_passes(plan, states_each)[-1]
    thread = states_each * (of_state + read) + sent + sums + loop
    stored = len(_stores(recurrence)) if split.after else 0
    moved = len(step.steady) + len(step.alike) + stored
    width = 4.0 if plan.vector_loads else 1.0
    copies = 2.0 if plan.block_load == "transposed" else 1.0
    once = (
        step.computed + copies * moved / width + _KEEP + _CONVERT * len(wide) * split.states / lanes
    )
    group = min(WARP, shared * plan.items_per_thread)
    lines = states_each * own_lines + sent_lines + sums_lines
    # A tile is written and read in whole lines; what is not in it moves by a thread's own steps.
    streams = walk_layout(plan, recurrence, split).streams
    once_lines = 3.0 * sum(part.size for part in streams) / LINE + (moved - len(streams)) / group
    once_lines *= WARP / shared
    copied = sum(split.states * table.copied_lines for table in tables) / lanes
    copied += 2.0 * len(wide) * split.states / WARP / lanes
    buffers = [load.source for load in (*step.steady, *step.alike)]
    buffers += [load.source for load, *_ in reads]
    buffers += list(recurrence.outputs) if split.after else []
    return WalkCounts(
        thread + once / shared,
        thread * shared + once,
        (lines + once_lines) * shared / WARP + copied,
        split.states * (exps - poly) + step.specials,
        array_bytes(buffers, recurrence),
        _shared_accesses(plan, recurrence, split) + (left + left_sums) * shared / WARP,
        split.states * _paired(split, step.loops, reads, ordinary - len(wide), poly),
    )


def _sent(plan: WalkPlan, exchange: ExchangeLayout, count: int) -> tuple[float, float, float]:
    """Count what a step takes a thread that gets so many values from the step's owner.

    Instructions; lines of a warp, and how many of these are of shared memory.
    """
    shared = plan.threads_per_lane
    if shared == 1:
        return 0.0, 0.0, 0.0
    if not exchange.sent:
        return float(count), float(count), 0.0
    # Left by one of the threads, and read by all of them.
    read = sum(1 / part.unit for part in exchange.sent)
    lines = sum(tir.byte_size(part.dtype) / WORD for part in exchange.sent) * (1 + 1 / shared)
    return read + read / shared + 1 / (shared * plan.items_per_thread), lines, lines


def _summed(plan: WalkPlan, exchange: ExchangeLayout, count: int) -> tuple[float, float, float]:
    """Count what so many sums over the states take a thread at every step; see ``_sent``."""
    shared = plan.threads_per_lane
    if shared == 1:
        return 0.0, 0.0, 0.0
    if exchange.sums:
        # Each thread leaves its part of every step, and reads and adds up those of its own steps.
        moved = sum(2 / part.unit + (shared - 1) / shared for part in exchange.sums)
        lines = 2.0 * len(exchange.sums)
        return moved + 1 / (shared * plan.items_per_thread), lines, lines
    # Of owners together a pair of sums takes a shuffle, a sum and two choices; the rest of the
    # levels are a shuffle and a sum each, once for all of them.
    together = min(TOGETHER, shared)
    pairs, rest = (together - 1) / together, log2(shared / together) / together
    return count * (4 * pairs + 2 * rest + 1 / together), count * (pairs + rest), 0.0


def _paired(
    split: StateSplit, loops: tuple[Any, ...], reads: list[Any], ordinary: float, poly: float
) -> float:
    """Instructions of a state that pairs save, of those that are ``ordinary``, beside exponentials.

    Of two that wait for nothing one is saved. Where memory holds what the states read along time,
    two steps are a pair, of which the carries wait; else two states are, of which the sums do. See
    ``machine.pairs``.
    """
    counters = [part.loop_var for part in loops]
    by_states = any(tir.contains_var(load.indices[-1], counters) for load, *_ in reads)
    waiting = len(split.sums) if by_states else len(split.dims)
    return max(0.0, ordinary - waiting + poly * _PAIRED) / 2


def _shared_accesses(plan: WalkPlan, recurrence: Recurrence, split: StateSplit) -> float:
    """Accesses to tiles: written by whole lines, read by vectors of a thread's items or states."""
    layout = walk_layout(plan, recurrence, split)
    lanes = plan.threads_per_block // plan.threads_per_lane
    streams = sum(2 * part.size for part in layout.streams) / LINE
    copied = sum(split.states * part.size for part in layout.tables) / LINE / lanes
    return streams + copied + sum(split.states / part.read.width for part in layout.tables) / WARP


def _varies(load: TensorLoad, loops: tuple[Any, ...]) -> bool:
    return any(tir.contains_var(load, [part.loop_var]) for part in loops)


def _state_reads(
    plan: WalkPlan, recurrence: Recurrence, split: StateSplit, step: _Step
) -> list[tuple[TensorLoad, int, float]]:
    """Loads for every state and step: elements taken at once, and lines that a warp touches."""
    tables = walk_layout(plan, recurrence, split).tables
    reads = []
    for load in step.varying:
        table = next((t for t in tables if tir.structurally_equal(t.access, load)), None)
        if table is not None:
            reads.append((load, table.read.width, _SERVED * table.read.lines))
            continue
        width = 1
        if plan.vector_loads:
            indices = list(load.indices)
            width = vector_access(load.source, indices, recurrence, plan.items_per_thread).lanes
        lines = plan.threads_per_lane * (_ROW if width > 1 else 1.0)
        size = tir.byte_size(tir.dtype_of(load))
        if _varies(load.indices[-1], step.loops):
            lines = max(1.0, split.states * size / LINE)
        reads.append((load, width, max(lines, width * size / WORD)))
    return reads


def _lines(indices: list[Any], recurrence: Recurrence) -> float:
    """Lines that 32 threads with neighbouring lanes touch."""
    lane = recurrence.lanes[-1].var if recurrence.lanes else None
    if lane is None or not tir.contains_var(indices, [lane]):
        return 1.0
    return 1.0 if tir.contains_var(indices[-1], [lane]) else float(WARP)


def _stores(recurrence: Recurrence) -> list[list[Any]]:
    """Indices of what a step writes to memory."""
    outputs = tir.VarMap((buffer, True) for buffer in recurrence.outputs)
    stores = tir.nodes(recurrence.body, tirx.BufferStore)
    return [list(store.indices) for store in stores if store.buffer in outputs]
