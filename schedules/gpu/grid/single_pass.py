"""CUDA builder: one pass over tiles of time, each of which looks back for its carry.

A block takes the next tile by an atomic ticket, reduces it, and publishes the tile's element. T
tiles, as many as a block has threads, are a window. The block then reads the elements of all
earlier tiles of its window, one per thread, and combines them by its tree. Its last thread, for
which no element is left, waits for the carry that the window begins with; the barrier of the tree
tells it to the others. In the last tile of a window one of them publishes the carry of the next
one. Every tile before it has a smaller ticket, so that its block has begun, and the first of them
waits for nobody: a grid of any size ends on a device that holds one block.

How many bytes wait on a multiprocessor decides the speed. No step is held in registers while a
block waits: the replay reads again what the reduction has read from a tile in shared memory, and
leaves its results in the place of an input (``shared.layout``).

The same bits on every run: which elements are combined, and in which order, depends on the number
of the tile alone. A look-back that takes whatever prefix is there first would end sooner. The
price: a block reads up to T elements from the second-level cache, half of them on average, and
windows follow one another, by about two trips through that cache for ``T * tile`` steps.

Elements and carries are words that hold their own mark (``ordered_memory``): one trip tells that
a value is there and brings it, and no fence or emptied cache delays the loads and stores of other
threads. Only the final state, which may lie where the initial one is, is put into an order: the
first tile of a row says that it has read the one, and the last tile acquires that.

Global traffic: inputs and outputs once. A small kernel clears the words first.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.elements import Elements
from tvm_scan.schedules.common.ir import (
    Kernel,
    as_dtype,
    at_least_one,
    each,
    int_const,
    local,
    parts_of,
    threads_over,
    when,
)
from tvm_scan.schedules.common.lanes import carry_scratch, decode_lanes, lane_count
from tvm_scan.schedules.common.replica import Replica
from tvm_scan.schedules.common.result import Built
from tvm_scan.schedules.gpu.block.tile import Tile
from tvm_scan.schedules.gpu.thread.barriers import all_wait, hidden
from tvm_scan.schedules.gpu.thread.ordered_memory import (
    WORD,
    Reader,
    announce,
    put,
    take_ticket,
    words_of,
)
from tvm_scan.schedules.gpu.thread.plans import TreePlan
from tvm_scan.schedules.gpu.thread.position import ThreadPosition, lane_exists, tile_count

_RESET_THREADS = 256
_ZERO = int_const(0, "int32")


class TiledPass:
    """Two kernels, and what their blocks hand to each other; see the module."""

    def __init__(self, recurrence: Recurrence, plan: TreePlan) -> None:
        self.recurrence, self.plan = recurrence, plan
        self.rows = lane_count(recurrence)
        self.dtype = tir.dtype_of(self.rows)
        self.count = at_least_one(self.rows)
        self.tiles = at_least_one(as_dtype(tile_count(recurrence, plan), self.dtype))
        self.window = int_const(plan.threads_per_block, self.dtype)
        tiles, levels = [self.count, self.tiles], range(recurrence.levels)
        windows = [self.count, parts_of(self.tiles, plan.threads_per_block)]
        self.ticket = local("ticket", [1], "int32", "global")
        self.elements = [
            _as_words(Elements(recurrence, "tile", tiles, "global", s)) for s in levels
        ]
        self.carries = [_words(buffer) for buffer in carry_scratch(recurrence, windows)]
        # The final state may lie where the initial one is: it is written after that was read.
        ordered = recurrence.finish is not None
        self.begun = [local("begun", [self.count], WORD, "global")] if ordered else []

    @property
    def element_words(self) -> list[Var]:
        """The words that the tiles publish."""
        return [buffer for elements in self.elements for buffer in elements.buffers]

    @property
    def scratch(self) -> list[Var]:
        """Global memory of the pass."""
        return [self.ticket, *self.begun, *self.element_words, *self.carries]

    def build(self) -> Built:
        """Return both kernels: clear the marks, and the pass."""
        return Built([self.reset(), self.scan()], self.scratch)

    def reset(self) -> Any:
        """Clear the ticket and all words."""
        total = tir.simplify(self.count * self.tiles)
        point = tirx.Var("v_point", self.dtype)
        row, tile = point // self.tiles, point % self.tiles
        first = tirx.EQ(tile % self.window, tir.zero_like(tile))
        of_tile = [_cleared(words, [row, tile]) for words in self.element_words]
        of_row = [_cleared(words, [row]) for words in self.begun]
        of_window = [_cleared(words, [row, tile // self.window]) for words in self.carries]
        ticket = tirx.BufferStore(self.ticket, _ZERO, [_ZERO])
        clear = [
            *of_tile,
            tirx.IfThenElse(first, tir.seq(of_window), None),
            when(tirx.EQ(tile, tir.zero_like(tile)), tir.seq(of_row)),
            tirx.IfThenElse(tirx.EQ(point, tir.zero_like(point)), ticket, None),
        ]

        def kernel(inside: Any) -> Kernel:
            return Kernel("scan_reset", [], self.scratch, when(inside, tir.seq(clear)), [])

        return threads_over(kernel, point, total, _RESET_THREADS)

    def scan(self) -> Any:
        """The pass: a block per tile."""
        recurrence = self.recurrence
        position = ThreadPosition(self.rows, self.plan)
        block, thread = tirx.Var("v_block", self.dtype), position.thread
        shared, ticket = (
            local("ticket_shared", [1], "int32", "shared"),
            local("ticket_own", [1], "int32"),
        )
        task = as_dtype(tirx.BufferLoad(ticket, [_ZERO]), self.dtype)
        # Tile after tile of all rows: the tile before is as far ahead as can be.
        row, number = task % self.count, task // self.count
        lanes = decode_lanes(recurrence, row)
        guard = lane_exists(recurrence, lanes, row, self.rows)
        tile = _LookBackTile(recurrence, self.plan, lanes, position, guard)
        taken = tirx.BufferStore(shared, take_ticket(self.ticket), [_ZERO])
        is_owner = tirx.EQ(thread, tir.zero_like(thread))
        first = tirx.And(is_owner, tirx.EQ(number, tir.zero_like(number)))
        body = tir.seq(
            [
                tirx.IfThenElse(is_owner, taken, None),
                tirx.BufferStore(ticket, tirx.BufferLoad(shared, [_ZERO]), [_ZERO]),
                tirx.IfThenElse(first, self._begin(tile, guard, row), None),
                when(guard, tile.replica.prologue()),
                tile.load(number),
                *(
                    stmt
                    for level in range(recurrence.levels)
                    for stmt in self._level(tile, level, row, number, thread)
                ),
                tile.restore(),
                tile.replay(number),
            ]
        )
        kernel = Kernel(
            "scan_look_back",
            recurrence.inputs,
            [*recurrence.outputs, *self.scratch],
            body,
            [shared, ticket, *tile.allocs],
        )
        blocks = tir.simplify(self.count * self.tiles)
        return position.grid(kernel, blocks, block)

    def _begin(self, tile: _LookBackTile, guard: Any, row: Any) -> Any:
        """One thread of a lane: writes before the first step, and the carry of the first window.

        Nobody else reads the initial state, which may lie where the last step leaves the final
        one; its block has waited until this one has begun.
        """
        running, extent = tile.running, self.recurrence.time.extent
        writes = [running.boundary()]
        constant, finish = tir.as_int(extent), running.finish()
        if finish is not None and (constant is None or constant <= 0):
            writes.append(when(extent <= tir.zero_like(extent), finish))
        lead, levels = [row, tir.zero_like(row)], range(self.recurrence.levels)
        known = when(guard, tir.seq([running.begin(), *writes]))
        hand_over = [self._hand_over(running, lead, level) for level in levels]
        return tir.seq([known, *hand_over, *(announce(mark, [row]) for mark in self.begun)])

    def _hand_over(self, replica: Replica, lead: list[Any], level: int) -> Any:
        """The carries of a level with which a window begins."""

        def of_cell(i: int, cell: list[Any]) -> Any:
            return put(self.carries[i], [*lead, *cell], replica.get_carry(i, cell))

        return replica.for_carries(range(level, level + 1), of_cell)

    def _await_carry(self, tile: _LookBackTile, lead: list[Any], level: int) -> Any:
        """The carries of a level with which a window begins, in ``running``."""

        def of_cell(i: int, cell: list[Any]) -> Any:
            target, at = tile.running.carry(i, cell)
            return tile.reader.get(target, at, self.carries[i], [*lead, *cell])

        levels = range(level, level + 1)
        return tile.reader.wait(tile.running.for_carries(levels, of_cell))

    def _level(
        self, tile: _LookBackTile, level: int, row: Any, number: Any, thread: Var
    ) -> list[Any]:
        """Reduce the tile, publish it, and find the carry before it."""
        replica, elements, total = tile.replica, self.elements[level], tile.total[level]
        look, reduced = tile.look[level], tile.reduced[level]
        in_window, window = number % self.window, number // self.window
        is_owner = tirx.EQ(thread, tir.zero_like(thread))
        mine = as_dtype(thread, self.dtype)
        theirs = _get(tile, look, elements, [row, number - in_window + mine])
        is_last = tirx.EQ(number, self.tiles - 1)
        ends = tirx.And(tirx.EQ(in_window, self.window - 1), tirx.Not(is_last))
        next_window = [
            tile.after.apply(total, [], source=tile.running),
            self._hand_over(tile.after, [row, window + 1], level),
        ]
        carry = [
            self._await_carry(tile, [row, window], level),
            hidden(tile.running.keep(tile.before, [_ZERO], level)),
        ]
        for mark in self.begun if level == 0 else []:
            read = tile.reader.wait(tile.reader.look(mark, [row], "acquire"))
            carry.append(tirx.IfThenElse(is_last, read, None))
        # The last thread, which no element of a window is left for, waits for the carry meanwhile.
        is_free = tirx.EQ(mine, self.window - 1)
        return [
            *tile.scan_level(level, number),
            tirx.IfThenElse(is_owner, _put(replica, elements, [row, number], total), None),
            replica.set_identity(look, []),
            tirx.IfThenElse(is_free, tir.seq(carry), None),
            tirx.IfThenElse(mine < in_window, tile.reader.wait(theirs), None),
            *tile.tree.reduce(level, look, reduced, 1),
            *([] if tile.tree.has_barriers else [all_wait()]),
            hidden(tile.running.fetch(tile.before, [_ZERO], range(level, level + 1))),
            tile.running.apply(reduced, []),
            tirx.IfThenElse(tirx.And(is_owner, ends), tir.seq(next_window), None),
        ]


class _LookBackTile(Tile):
    """A tile that uses its tree twice: over its threads, and over the tiles before it."""

    def __init__(
        self,
        recurrence: Recurrence,
        plan: TreePlan,
        lanes: list[Any],
        position: ThreadPosition,
        guard: Any,
    ) -> None:
        super().__init__(recurrence, plan, lanes, position, guard)
        self.after = Replica(recurrence, lanes, unroll=True, tag="_after")
        self.prefixes = self._elements("kept")
        self.look = self._elements("look")
        self.reduced = self._elements("fold")
        self.before = [
            local(f"before{i}", tir.shape_of(b), tir.dtype_of(b), "shared")
            for i, b in enumerate(carry_scratch(recurrence, [1]))
        ]
        self.reader = Reader()

    @property
    def allocs(self) -> list[Var]:
        """Everything that the tile's code keeps."""
        parts = (self.prefixes, self.look, self.reduced)
        elements_used = [b for levels in parts for elements in levels for b in elements.buffers]
        around = [*self.after.buffers, *self.before, *self.reader.buffers]
        return [*super().allocs, *elements_used, *around]

    def scan_level(self, level: int, number: Any) -> list[Any]:
        """The scan of a level over the threads, whose prefixes are then kept in registers."""
        prefix, index = self.tree.prefix(level, self.mine[level])
        keep = self.replica.copy(self.prefixes[level], [], prefix, index)
        return [*self._level(level, number, self.tree.scan), keep]

    def _restore(self, level: int) -> Any:
        return self.replica.apply(self.prefixes[level], [], source=self.running)


def _words(buffer: Var) -> Var:
    """The words in which the values of a scratch array are handed over."""
    shape = [*tir.shape_of(buffer), words_of(tir.dtype_of(buffer))]
    return local(buffer.name, shape, WORD, "global")


def _as_words(elements: Elements) -> Elements:
    elements.parts = {i: [_words(b) for b in parts] for i, parts in elements.parts.items()}
    return elements


def _cleared(words: Var, lead: list[Any]) -> Any:
    """``words[lead] = 0``: nothing is there."""
    none = tirx.IntImm(WORD, 0)
    inner = [int(extent) for extent in tir.shape_of(words)[len(lead) :]]
    return each(inner, lambda cell: tirx.BufferStore(words, none, [*lead, *cell]), False)


def _put(replica: Replica, elements: Elements, lead: list[Any], source: Elements) -> Any:
    """``elements[lead] = source``."""

    def of_cell(i: int, cell: list[Any]) -> Any:
        values = source.load(i, [], cell)
        parts = zip(elements.parts[i], values, strict=True)
        return tir.seq([put(b, [*lead, *cell], value) for b, value in parts])

    return replica.for_each_element(elements.level, of_cell)


def _get(tile: _LookBackTile, target: Elements, elements: Elements, lead: list[Any]) -> Any:
    """``target = elements[lead]``, of what is there."""

    def of_cell(i: int, cell: list[Any]) -> Any:
        parts = zip(target.parts[i], elements.parts[i], strict=True)
        index = cell or [_ZERO]
        read = [tile.reader.get(t, index, b, [*lead, *cell]) for t, b in parts]
        return tir.seq(read)

    return tile.replica.for_each_element(elements.level, of_cell)
