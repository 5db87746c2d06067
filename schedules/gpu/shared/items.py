"""Traffic of a tree's block through shared memory: items of its lanes, and what these share.

Every thread takes its own consecutive items of a tile from padded shared memory (``layout``), and
reads tables there. With several buffers a single barrier of a tile says both that it has arrived,
and that the buffer of the tile before is free.

Cost of a tile: per stream, one access to shared memory per vector on either side; barriers: one
for the loads and one for the stores, each of which also protects the memory of the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.ir import Var
from tvm.ir.expr import TensorLoad

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.ir import as_dtype, int_const, when
from tvm_scan.schedules.common.replica import Replica
from tvm_scan.schedules.gpu.shared.layout import Stream, lenders_of
from tvm_scan.schedules.gpu.shared.staged import Copiers, SharedTile
from tvm_scan.schedules.gpu.shared.tables import tables_of
from tvm_scan.schedules.gpu.thread import async_copy
from tvm_scan.schedules.gpu.thread.barriers import all_wait, hidden
from tvm_scan.schedules.gpu.thread.plans import TreePlan
from tvm_scan.schedules.gpu.thread.position import ThreadPosition


class SharedItems:
    """The streams and tables of one tile.

    Parameters
    ----------
    recurrence : Recurrence
        Whose arrays.
    plan : TreePlan
        Threads, items and buffers.
    replica : Replica
        Gives the lane.
    position : ThreadPosition
        Lane of the block, and thread within it.
    parts : list of (Stream, Var)
        What is moved, and the registers of a thread's items.
    valid : callable
        ``valid(time)``: whether there is such a step.
    """

    def __init__(
        self,
        recurrence: Recurrence,
        plan: TreePlan,
        replica: Replica,
        position: ThreadPosition,
        parts: list[tuple[Stream, Var]],
        valid: Callable[[Any], Any],
    ) -> None:
        self.recurrence, self.plan, self.replica = recurrence, plan, replica
        self.thread, self.valid = position.thread, valid
        row, threads = position.row_in_block, plan.threads_per_block
        each_lane = Copiers(threads, self.thread, self._time, lambda _: replica, self._guarded, row)
        self.inputs = [
            (SharedTile(s, each_lane, plan.stages), s, r) for s, r in parts if not s.stored
        ]
        lent, tiles = lenders_of([s for s, _ in parts]), {s: tile for tile, s, _ in self.inputs}

        def result(stream: Stream) -> SharedTile:
            if stream not in lent:
                return SharedTile(stream, each_lane, 1)
            return SharedTile(stream, each_lane, plan.stages, over=tiles[lent[stream]])

        self.outputs = [(result(s), s, r) for s, r in parts if s.stored]
        self.tables = []
        for table in tables_of(plan, recurrence):
            number = row.index * threads + self.thread
            together = threads * plan.lanes_per_block
            every = Copiers(together, number, self._time, lambda _: replica, self._guarded)
            self.tables.append((table, SharedTile(table, every, plan.stages, "table")))

    @property
    def buffers(self) -> list[Var]:
        """Shared memory to allocate."""
        streams = [tile for tile, *_ in (*self.inputs, *self.outputs) if tile.over is None]
        return [tile.memory for tile in (*streams, *(tile for _, tile in self.tables))]

    @property
    def unit(self) -> int:
        """Items that a thread takes or leaves at once at most; 1 where the block moves none."""
        return max([1, *(stream.layout.unit for _, stream, _ in (*self.inputs, *self.outputs))])

    def _time(self, tile: Any, step: Any) -> Any:
        dtype = tir.dtype_of(self.recurrence.time.var)
        return as_dtype(tile, dtype) * self.plan.tile + as_dtype(step, dtype)

    def _guarded(self, inside: Any, time: Any, stmt: Any) -> Any:
        valid = self.valid(time)
        return when(valid if inside is None else tirx.And(inside, valid), stmt)

    def _fetch(self, tile: Any) -> Any:
        """Begin to copy the inputs of a tile to its buffer."""
        streams = [shared.fetch(tile) for shared, *_ in self.inputs]
        return tir.seq([*streams, *(shared.fetch(tile) for _, shared in self.tables)])

    def _own(self, stream: Stream) -> Any:
        """The index of the first of the thread's items, which lie on one side of a padding."""
        return stream.layout.index(self.thread * stream.layout.items)

    def begin(self) -> Any:
        """Start the copies before the first tile."""
        dtype = tir.dtype_of(self.recurrence.time.extent)
        if not self.inputs and not self.tables:
            return None
        return async_copy.begin_ahead(self.plan.stages, self._fetch, int_const(0, dtype))

    def load(self, tile: Any) -> Any:
        """A tile into shared memory, and the next copies on their way."""
        if not self.inputs and not self.tables:
            return None
        return async_copy.next_tile(self.plan.stages, self._fetch, tile)

    def take(self, tile: Any, begin: Any, count: int) -> Any:
        """The thread's items from ``begin`` on into registers."""
        return tir.seq(
            shared.take(r, tile, self._own(s), count, s.layout.unit, begin=begin)
            for shared, s, r in self.inputs
        )

    def leave(self, tile: Any, begin: Any, count: int) -> Any:
        """The thread's results from ``begin`` on into shared memory."""
        return tir.seq(
            _of_result(shared, shared.leave(r, tile, self._own(s), count, s.layout.unit, begin))
            for shared, s, r in self.outputs
        )

    def store(self, tile: Any) -> Any:
        """The results of a tile, which the threads have left, to global memory."""
        if not self.outputs:
            return None
        lent = any(shared.over is not None for shared, *_ in self.outputs)
        puts = [_of_result(shared, shared.put(tile)) for shared, *_ in self.outputs]
        return tir.seq([*([all_wait()] if lent else []), *puts])

    def use(self, stmt: Any, tile: Any, item: Any, time: Any) -> Any:
        """``stmt`` of the thread's ``item`` with its loads of the tables from shared memory."""
        if not self.tables:
            return stmt
        step = self.thread * self.plan.items_per_thread + as_dtype(item, "int32")

        def on_load(load: TensorLoad) -> Any:
            for table, shared in self.tables:
                if table.reads(load, self.replica, time):
                    state = as_dtype(load.indices[table.dim], "int32")
                    return shared.load(tile, table.index(step, state=state))
            return load

        return tir.map_loads(stmt, on_load)


def _of_result(shared: SharedTile, stmt: Any) -> Any:
    """An access to a tile of results, hidden from TVM's barriers in the place of an input.

    There a thread writes cells that it alone has read, and what it copies from there it fills
    itself with the next tile: between the two all threads wait once.
    """
    return stmt if shared.over is None else hidden(stmt)
