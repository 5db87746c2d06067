"""Instructions of a thread that scans tiles by a tree, by their parts; see ``machine.gpu_cost``.

What is counted is what nvcc emits, as of walks (``walk.counts``): the loads and stores of a
thread's steps, the reduction of these to an element, the tree over the threads, and the loop body
over the steps again. Tests compare the counts with the machine code.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache, reduce
from math import log2, prod
from typing import Any

from tvm import tirx
from tvm.ir.expr import TensorLoad

from tvm_scan import tir
from tvm_scan.recurrence import Group, Recurrence
from tvm_scan.schedules.common.shared_parts import shared_parts
from tvm_scan.schedules.common.sizes import known_extent
from tvm_scan.schedules.gpu.shared.counts import shared_accesses
from tvm_scan.schedules.gpu.shared.layout import along_time, streams_of
from tvm_scan.schedules.gpu.thread.banks import WARP
from tvm_scan.schedules.gpu.thread.plans import TreePlan
from tvm_scan.schedules.gpu.thread.vector_access import steady_stores, vector_access
from tvm_scan.schedules.gpu.warp.formulas import cheaper, watched
from tvm_scan.schedules.gpu.warp.tree import in_turn, is_ahead, selects
from tvm_scan.schedules.machine.step_counts import instructions_of, moving_loads

#: Of a tile, for its number, bounds and addresses: in a loop over tiles, and in a block of its own.
_NEXT, _BEGIN = 10.0, 20.0
#: Of a branch whose threads meet again.
_BRANCH = 3.0
#: To see whether a warp's results are intact: what is kept, comparisons, the vote and the branch.
_CHECK = 8.0
#: Of a level in shared memory: address, condition and barrier. Accesses of a level of Blelloch for
#: each part of an element: 3 on the way up, 4 on the way down.
_IN_SHARED, _MOVED = 3.0, 3.5
#: Words that a thread reads at once where they follow one another.
_VECTOR = 4
#: Of arrays in tiles of shared memory, for a tile; of those that are copied while threads compute,
#: for a tile and for a copy.
_TRANSPOSED, _AHEAD, _COPY = 6.0, 10.0, 3.0
#: Of an access that may be beyond the end.
_GUARD = 3.5


@dataclass(frozen=True)
class TreeCounts:
    """Work of a thread for one tile, beside its steps.

    Attributes
    ----------
    issued : float
        Instructions.
    exchanged : float
        Of these, shuffles and accesses to shared memory.
    """

    issued: float = 0.0
    exchanged: float = 0.0

    def and_(self, issued: float = 0.0, exchanged: float = 0.0) -> TreeCounts:
        """Return these and some more: so many that exchange, and others."""
        return TreeCounts(self.issued + issued + exchanged, self.exchanged + exchanged)

    def plus(self, other: TreeCounts) -> TreeCounts:
        """Return both together."""
        return TreeCounts(self.issued + other.issued, self.exchanged + other.exchanged)


@dataclass(frozen=True)
class ThreadCounts:
    """Instructions of a thread.

    Attributes
    ----------
    load, extend, step : float
        For one step: to load its inputs, to reduce it, and to make it again and store it.
    scan, reduce : TreeCounts
        For one tile: the tree with the carries before the thread, and its aggregate alone.
    around : float
        For one tile, beside all that.
    """

    load: float
    extend: float
    step: float
    scan: TreeCounts
    reduce: TreeCounts
    around: float

    def replayed(self, items: float) -> float:
        """A tile that is reduced, scanned and replayed, of so many steps of a thread."""
        return items * (self.load + self.extend + self.step) + self.scan.issued + self.around

    def reduced(self, items: float) -> float:
        """A tile of which only the element is made."""
        return items * (self.load + self.extend) + self.reduce.issued + self.around


@lru_cache(maxsize=512)
def thread_counts(plan: TreePlan, recurrence: Recurrence) -> ThreadCounts:
    """Count what a thread of a tree plan does."""
    step = _step(recurrence)
    staged = sum(1 / _lanes(plan, load, recurrence) for load in step.loads)
    stores = step.others + sum(1 / _lanes(plan, store, recurrence) for store in step.stores)
    load = staged + shared_accesses(plan, recurrence)
    if tir.as_int(recurrence.time.extent) is None:
        # Where a length is not known, every access asks whether it is inside; so do the block's.
        asks = _GUARD * (1 if plan.block_load == "direct" else 2 if plan.stages == 1 else 3)
        load, stores = load + asks * staged, stores * (1 + asks)
    around = _NEXT if plan.walks_tiles else _BEGIN
    if plan.block_load == "transposed":
        around += _TRANSPOSED * len(streams_of(plan, recurrence))
    if plan.stages > 1:
        copies = [s.copies.lanes for s in along_time(plan, recurrence) if not s.stored]
        load += sum(_COPY / lanes for lanes in copies)
        around += _AHEAD * len(copies)
    levels = [_tree(plan, recurrence, level) for level in range(recurrence.levels)]
    return ThreadCounts(
        load=load,
        extend=step.extend,
        step=step.instructions + stores,
        scan=reduce(TreeCounts.plus, (scan for scan, _ in levels)),
        reduce=reduce(TreeCounts.plus, (total for _, total in levels)),
        around=around,
    )


def _lanes(plan: TreePlan, access: Any, recurrence: Recurrence) -> int:
    """Cells that a thread moves at once."""
    if not plan.vector_loads:
        return 1
    buffer = access.source if isinstance(access, TensorLoad) else access.buffer
    return vector_access(buffer, list(access.indices), recurrence, plan.items_per_thread).lanes


@dataclass(frozen=True, eq=False)
class _Step:
    """Parts of a step: loads and stores that it makes once, other stores; to make, to reduce it."""

    loads: tuple[TensorLoad, ...]
    stores: tuple[tirx.BufferStore, ...]
    others: float
    instructions: float
    extend: float


@lru_cache(maxsize=64)
def _step(recurrence: Recurrence) -> _Step:
    loads = moving_loads([recurrence.body], recurrence)
    # What has its own value for every state is read where it is used.
    read = sum(times for _, times in loads if times > 1)
    steady, stored = steady_stores(recurrence), tir.buffers_stored(recurrence.body)
    others = [b for b in recurrence.outputs if b in stored]
    others = [b for b in others if not any(b.same_as(store.buffer) for store in steady)]
    return _Step(
        tuple(load for load, times in loads if times == 1),
        tuple(steady),
        float(len(others)),
        instructions_of(recurrence.body) + read,
        sum(_extend(group, recurrence) for group in recurrence.groups),
    )


def _names(group: Group, prefix: str) -> tuple[Any, ...]:
    return tuple(tirx.Var(f"{prefix}{i}", dtype) for i, dtype in enumerate(group.algebra.dtypes))


def _cells(group: Group, recurrence: Recurrence) -> float:
    return float(prod(known_extent(axis.extent) for axis in recurrence.state_axes(group)))


def _total(parts: Iterable[Any]) -> float:
    seen = tir.ExprMap()
    return sum(instructions_of(part, seen=seen) for part in parts)


def _extend(group: Group, recurrence: Recurrence) -> float:
    """Instructions that follow an element by one step: what cells share once, and each its own."""
    algebra = group.algebra
    states = [axis.var for axis in recurrence.state_axes(group)]
    shared, lifted = shared_parts(algebra.lift(), states)
    extended = algebra.extend(_names(group, "e"), _names(group, "s"))
    each = _total(extended) + _total(lifted)
    loads = [load for load, _ in moving_loads(lifted, recurrence) if tir.contains_var(load, states)]
    once = _total(value for _, value in shared)
    return once + _cells(group, recurrence) * (each + len(loads))


@dataclass(frozen=True)
class _Level:
    """Elements of a level: words, parts, and instructions to combine and to apply them.

    ``careful`` combines by the formulas that are exact wherever the loop is.
    """

    words: float
    parts: float
    combine: float
    careful: float
    apply: float


@lru_cache(maxsize=64)
def _level(recurrence: Recurrence, level: int) -> _Level:
    words, parts, formulas = 0.0, 0.0, [0.0, 0.0, 0.0]
    for group in recurrence.groups:
        if group.level != level:
            continue
        cells, plain = _cells(group, recurrence), group.algebra
        fast = cheaper(plain) if watched(recurrence, level) else plain
        earlier, later = _names(group, "e"), _names(group, "l")
        carries = tuple(tirx.Var(f"c{i}", recurrence.carries[i].dtype) for i in group.carries)
        words += cells * sum(max(1, tir.byte_size(d) // 4) for d in plain.dtypes)
        parts += cells * len(plain.dtypes)
        formulas[0] += cells * _total(fast.combine(earlier, later))
        formulas[1] += cells * _total(plain.combine(earlier, later))
        formulas[2] += cells * _total(fast.apply(later, carries))
    return _Level(words, parts, *formulas)


def _tree(plan: TreePlan, recurrence: Recurrence, level: int) -> tuple[TreeCounts, TreeCounts]:
    """Counts of the tree with the carries before every thread, and of its aggregate alone."""
    of_level, threads = _level(recurrence, level), plan.threads_per_block
    doublings, none = log2(threads), TreeCounts()
    each = of_level.careful + _IN_SHARED + (_BRANCH if of_level.parts > 1 else 0.0)
    if plan.block_tree == "kogge_stone":
        levels = doublings + 1
        aggregate = none.and_(levels * each, levels * 2 * of_level.parts)
        return aggregate.and_(of_level.apply), aggregate
    if plan.block_tree == "blelloch":
        half = none.and_(doublings * each, doublings * _MOVED * of_level.parts)
        return half.plus(half).and_(of_level.apply), half
    return _warp_tree(of_level, recurrence, level, threads // WARP)


def _warp_tree(
    of_level: _Level, recurrence: Recurrence, level: int, warps: int
) -> tuple[TreeCounts, TreeCounts]:
    words, ahead = of_level.words, is_ahead(recurrence, level, warps)
    check = _CHECK if watched(recurrence, level) else 0.0
    # A combine, and the choice of threads that have nobody so far below.
    doubling = of_level.combine + (words if selects(recurrence) else _BRANCH)
    inclusive = TreeCounts().and_(log2(WARP) * doubling + check, log2(WARP) * words)
    carried = 2 * of_level.apply + check if ahead else of_level.apply
    if warps == 1:
        total = inclusive.and_(0.0, words)
        return total.and_(words + carried, words), total
    saved = inclusive.and_(2.0, of_level.parts)
    exclusive = saved.and_(words, words)
    if in_turn(recurrence, level, warps):
        read = warps * words / _VECTOR
        total = saved.and_((warps - 1) * of_level.combine + check, read)
        if ahead:
            return exclusive.and_(
                warps * (of_level.apply + 1) + of_level.apply + check, read
            ), total
    passed = log2(warps) * doubling, of_level.parts + (log2(warps) + 1) * words
    if not in_turn(recurrence, level, warps):
        total = saved.and_(*passed)
    return exclusive.and_(*passed).and_(words + of_level.combine + carried, words), total
