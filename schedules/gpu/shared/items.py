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
from tvm_scan.schedules.gpu.shared.layout import Stream
from tvm_scan.schedules.gpu.shared.staged import Copiers, SharedTile
from tvm_scan.schedules.gpu.shared.tables import tables_of
from tvm_scan.schedules.gpu.thread import async_copy
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
        self.outputs = [(SharedTile(s, each_lane, 1), s, r) for s, r in parts if s.stored]
        self.tables = []
        for table in tables_of(plan, recurrence):
            number = row.index * threads + self.thread
            together = threads * plan.lanes_per_block
            every = Copiers(together, number, self._time, lambda _: replica, self._guarded)
            self.tables.append((table, SharedTile(table, every, plan.stages, "table")))

    @property
    def buffers(self) -> list[Var]:
        """Shared memory to allocate."""
        streams = [tile for tile, *_ in (*self.inputs, *self.outputs)]
        return [tile.memory for tile in (*streams, *(tile for _, tile in self.tables))]

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

    def _own(self, stream: Stream) -> tuple[Any, int, int]:
        """The first of the thread's items, how many there are, and how many move at once."""
        layout = stream.layout
        # A thread's items never lie on both sides of a padding.
        first = layout.index(self.thread * layout.items)
        return first, layout.items, layout.unit

    def begin(self) -> Any:
        """Start the copies before the first tile."""
        dtype = tir.dtype_of(self.recurrence.time.extent)
        if not self.inputs and not self.tables:
            return None
        return async_copy.begin_ahead(self.plan.stages, self._fetch, int_const(0, dtype))

    def load(self, tile: Any) -> Any:
        """The thread's items of a tile into registers, and the next copies on their way."""
        if not self.inputs and not self.tables:
            return None
        copied = async_copy.next_tile(self.plan.stages, self._fetch, tile)
        return tir.seq([copied, *(s.take(r, tile, *self._own(x)) for s, x, r in self.inputs)])

    def store(self, tile: Any) -> Any:
        """The thread's results of a tile to global memory."""
        if not self.outputs:
            return None
        left = [shared.leave(r, tile, *self._own(stream)) for shared, stream, r in self.outputs]
        return tir.seq([*left, *(shared.put(tile) for shared, *_ in self.outputs)])

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
