"""One tile of a lane in one CUDA block: what every tree plan is made of."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.elements import Elements
from tvm_scan.schedules.common.ir import as_dtype, loop, when
from tvm_scan.schedules.common.replica import Replica
from tvm_scan.schedules.gpu.block.trees import make_tree
from tvm_scan.schedules.gpu.shared.items import SharedItems
from tvm_scan.schedules.gpu.shared.layout import streams_of
from tvm_scan.schedules.gpu.shared.staging import StagedItems
from tvm_scan.schedules.gpu.thread.barriers import all_wait
from tvm_scan.schedules.gpu.thread.plans import TreePlan
from tvm_scan.schedules.gpu.thread.position import ThreadPosition


class Tile:
    """One tile of a lane in one block: thread reduction, block tree, thread replay."""

    def __init__(
        self,
        recurrence: Recurrence,
        plan: TreePlan,
        lanes: list[Any],
        position: ThreadPosition,
        guard: Any,
    ) -> None:
        thread = self.thread = position.thread
        self.recurrence, self.plan, self.guard = recurrence, plan, guard
        threads = plan.threads_per_block
        self.replica = Replica(recurrence, lanes, unroll=True)
        self.running = Replica(recurrence, lanes, unroll=True, tag="_run")
        self.mine = self._elements("mine")
        self.total = self._elements("total")
        row = position.row_in_block
        self.tree = make_tree(plan.block_tree, self.replica, thread, threads, row)
        self.staged = StagedItems(
            recurrence,
            self.replica,
            plan.items_per_thread,
            plan.vector_loads,
            streams=streams_of(plan, recurrence),
        )
        self.shared = SharedItems(
            recurrence, plan, self.replica, position, self.staged.by_block, self.valid
        )

    def _elements(self, name: str) -> list[Elements]:
        """Registers for one element of every level."""
        return Elements.of_levels(self.recurrence, name, [], "local")

    @property
    def allocs(self) -> list[Var]:
        """Everything that the tile's code keeps."""
        parts = (self.mine, self.total)
        return [
            *self.replica.buffers,
            *self.running.buffers,
            *self.staged.buffers,
            *self.shared.buffers,
            *self.tree.buffers,
            *(b for levels in parts for elements in levels for b in elements.buffers),
        ]

    def valid(self, time: Any) -> Any:
        """Condition under which the step at ``time`` exists."""
        inside = time < self.recurrence.time.extent
        return inside if self.guard is None else tirx.And(self.guard, inside)

    def first_step(self, tile: Any) -> Any:
        """Time of this thread's first item in tile number ``tile``."""
        dtype = tir.dtype_of(self.recurrence.time.var)
        start = as_dtype(tile, dtype) * self.plan.tile
        return start + as_dtype(self.thread, dtype) * self.plan.items_per_thread

    def items(self, tile: Any, make: Any, after: Any = None) -> Any:
        """``make(item, time)`` for the thread's items, ``after(item, time)`` for each group."""
        return self._groups(tile, 0, self.plan.items_per_thread, make, after)

    def _groups(self, tile: Any, begin: Any, count: int, make: Any, after: Any = None) -> Any:
        """``items`` of ``count`` items from ``begin`` on."""
        start = self.first_step(tile)
        dtype, group = tir.dtype_of(start), self.staged.group

        def at(k: Any) -> Any:
            return start + as_dtype(k, dtype)

        def of_group(g: Any) -> Any:
            first = begin + (g if group == 1 else g * group)

            def step(j: Any) -> Any:
                k = first if group == 1 else first + j
                return make(k, at(k))

            # The steps of a group all exist, or none of them.
            steps = loop("j", group, step, tirx.ForKind.UNROLLED) if make else None
            ending = after(first, at(first)) if after else None
            return when(self.valid(at(first)), tir.seq([steps, ending]))

        kind = tirx.ForKind.UNROLLED if self.staged.buffers else tirx.ForKind.SERIAL
        return loop("k", count // group, of_group, kind)

    def _pieces(self, make: Callable[[Any, int], Any]) -> Any:
        """``make(begin, count)`` for the items that a thread takes from shared memory together."""
        items, piece = self.plan.items_per_thread, max(self.shared.unit, self.staged.group)
        if self.plan.holds_items or piece >= items:
            return make(0, items)
        return loop("p", items // piece, lambda p: make(p * piece, piece), tirx.ForKind.UNROLLED)

    def load(self, tile: Any) -> Any:
        """Inputs of the thread's items into registers, or to where it takes them from."""
        direct = self.staged.loads_alone
        rest = self.items(tile, None, self.staged.fill) if direct else None
        held = self.plan.holds_items
        taken = self.shared.take(tile, 0, self.plan.items_per_thread) if held else None
        return tir.seq([self.shared.load(tile), taken, rest])

    def _taken(self, tile: Any, begin: Any, count: int) -> Any:
        return None if self.plan.holds_items else self.shared.take(tile, begin, count)

    def _use(self, tile: Any, stmt: Any, item: Any, time: Any) -> Any:
        """``stmt`` with what is staged read from where it is."""
        return self.shared.use(self.staged.use(stmt, item, time), tile, item, time)

    def scan(self, tile: Any) -> list[Any]:
        """All levels: elements of the items, and the tree over the threads.

        Given: the carries before the tile, in ``running``. Afterwards ``restore`` and ``move_on``
        have what they need.
        """
        levels = range(self.recurrence.levels)
        scan = partial(self.tree.scan_from, self.running)
        return [stmt for level in levels for stmt in self._level(level, tile, scan)]

    def reduce(self, tile: Any, level: int) -> list[Any]:
        """The aggregate of one level, in ``total``: no prefix of the last tree is made."""
        scan = partial(self.tree.scan_from, self.running)
        before = [stmt for earlier in range(level) for stmt in self._level(earlier, tile, scan)]
        return [*before, *self._level(level, tile, self.tree.reduce)]

    def _level(self, level: int, tile: Any, tree: Callable[..., list[Any]]) -> list[Any]:
        mine = self.mine[level]

        # Where a block takes tile after tile, the next one follows without a barrier.
        number = tile if self.plan.walks_tiles else 0

        def extend(k: Any, time: Any) -> Any:
            return self._use(tile, self.replica.extend(mine, [], time), k, time)

        def extend_piece(begin: Any, count: int) -> Any:
            steps = self._groups(tile, begin, count, extend)
            return tir.seq([self._taken(tile, begin, count), steps])

        return [
            # Earlier levels are replayed over the items with the reduction.
            *(self._restore(earlier) for earlier in range(level)),
            self.replica.set_identity(mine, []),
            self._pieces(extend_piece),
            *tree(level, mine, self.total[level], number),
        ]

    def _restore(self, level: int) -> Any:
        return self.tree.restore(self.running, level, self.mine[level])

    def restore(self) -> Any:
        """The carries before the thread's first item."""
        return tir.seq([self._restore(level) for level in range(self.recurrence.levels)])

    def move_on(self) -> Any:
        """The carries after the tile, in ``running``."""
        pairs = enumerate(self.total)
        return tir.seq([self.tree.move_on(self.running, level, total) for level, total in pairs])

    def replay(self, tile: Any) -> Any:
        """The loop body over the thread's items, and the end of the lane by its last step."""

        def of_item(k: Any, time: Any) -> Any:
            step = self._use(tile, self.replica.step(time), k, time)
            finish = self.replica.finish()
            if finish is None:
                return step
            last = tirx.EQ(time, self.recurrence.time.extent - 1)
            return tir.seq([step, tirx.IfThenElse(last, finish, None)])

        alone = self.staged.empty if self.staged.stores_alone else None

        def replay_piece(begin: Any, count: int) -> Any:
            steps = self._groups(tile, begin, count, of_item, alone)
            left = self.shared.leave(tile, begin, count)
            return tir.seq([self._taken(tile, begin, count), steps, left])

        return tir.seq([self._pieces(replay_piece), self.shared.store(tile)])

    def empty(self) -> list[Any]:
        """Store what a lane without steps leaves behind, by the first thread.

        The barrier lets every thread read its initial state before that is written over; with
        steps, those of the tree do, if it has any.
        """
        finish = self.running.finish()
        extent = self.recurrence.time.extent
        constant = tir.as_int(extent)
        if finish is None:
            return []
        if constant is not None and constant > 0:
            return [] if self.tree.has_barriers else [all_wait()]
        none = extent <= tir.zero_like(extent)
        return [
            all_wait(),
            tirx.IfThenElse(tirx.And(self.is_owner(), none), finish, None),
        ]

    def is_owner(self) -> Any:
        """Condition that holds for one thread of a lane that exists."""
        first = tirx.EQ(self.thread, tir.zero_like(self.thread))
        return first if self.guard is None else tirx.And(self.guard, first)

    def owner_writes(self) -> Any:
        """Boundary writes by the first thread; None where there are none."""
        stmt = self.running.boundary()
        if stmt is None:
            return None
        return tirx.IfThenElse(self.is_owner(), stmt, None)
