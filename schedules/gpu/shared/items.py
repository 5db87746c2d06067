"""Tiles that a block moves through shared memory: whole lines outside, consecutive items inside.

In: neighbouring threads read neighbouring vectors of the tile from global memory and leave them
in padded shared memory (``shared_layout``); after a barrier every thread takes its own items into
registers. Out: the same way back. Bytes of a line that other threads need are then never fetched
twice, and a warp's access is as few transactions as there are lines.

With one buffer a block loads, waits and computes. With ``S = plan.stages`` buffers the copies are
asynchronous, and those of ``S - 1`` tiles are under way while one is computed; a single barrier
of a tile says both that its items have arrived, and that the buffer of the tile before is free.

Cost of a tile: per stream, one access to shared memory per vector on either side; barriers: one
for the loads and one for the stores, each of which also protects the memory of the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.gpu.thread import async_copy
from tvm_scan.schedules.gpu.thread.place import Place
from tvm_scan.schedules.common.ir import as_dtype, int_const, local, loop, when
from tvm_scan.schedules.gpu.thread.plans import TreePlan
from tvm_scan.schedules.common.replica import Replica
from tvm_scan.schedules.gpu.shared.layout import Stream

__all__ = ["SharedItems"]


class SharedItems:
    """The streams of one tile.

    Parameters
    ----------
    recurrence : Recurrence
        Whose arrays.
    plan : TreePlan
        Threads, items and buffers.
    replica : Replica
        Gives the lane.
    place : Place
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
        place: Place,
        parts: list[tuple[Stream, Var]],
        valid: Callable[[Any], Any],
    ) -> None:
        self.recurrence, self.plan, self.replica = recurrence, plan, replica
        self.thread, self.row, self.valid = place.thread, place.row_in_block, valid
        #: What else comes with a tile: ``fetch(tile)`` of tables.
        self.beside: list[Callable[[Any], Any]] = []
        self.inputs = [self._with_memory(*p, plan.stages) for p in parts if not p[0].stored]
        self.outputs = [self._with_memory(*p, 1) for p in parts if p[0].stored]

    def _with_memory(self, stream: Stream, registers: Var, stages: int) -> Any:
        cells = stream.layout.cells(self.plan.tile)
        dtype, name = tir.dtype_of(stream.buffer), f"{stream.buffer.name}_tile"
        return stream, registers, local(name, [*self.row.lead, stages, cells], dtype, "shared")

    @property
    def buffers(self) -> list[Var]:
        """Shared memory to allocate."""
        return [memory for _, _, memory in (*self.inputs, *self.outputs)]

    # ---- between global and shared memory -----------------------------------------------------

    def _copies(self, tile: Any, lanes: int, make: Callable[[Any, Any], Any]) -> Any:
        """``make(element, time)`` for the thread's vectors of the tile, those that exist."""
        threads, steps = self.plan.threads_per_block, self.plan.tile
        time = tir.dtype_of(self.recurrence.time.var)
        start = as_dtype(tile, time) * int_const(steps, time)
        rounds = -(-steps // (threads * lanes))

        def one(r: Any) -> Any:
            number = as_dtype(r, "int32") * int_const(threads, "int32") + self.thread
            element = number * int_const(lanes, "int32")
            at = start + as_dtype(element, time)
            inside = self.valid(at)
            if steps % (threads * lanes):
                inside = tirx.And(element < int_const(steps, "int32"), inside)
            return when(inside, make(element, at))

        return loop("r", rounds, one, tirx.ForKind.UNROLLED)

    def _indices(self, stream: Stream, time: Any) -> list[Any]:
        """Of the vector whose first step is at ``time``."""
        found = [self.replica.place(index, None, time) for index in stream.access.indices]
        return stream.copies.ramp(found) if stream.copies.lanes > 1 else found

    def slot(self, tile: Any) -> Any:
        """Which buffer a tile has."""
        stages = self.plan.stages
        if stages == 1:
            return int_const(0, "int32")
        tile = as_dtype(tile, "int32") if isinstance(tile, int) else tile
        return as_dtype(tile % int_const(stages, tile), "int32")

    def fetch(self, tile: Any) -> Any:
        """Begin to copy the inputs of a tile to its buffer."""
        streams = [self._fetch(stream, memory, tile) for stream, _, memory in self.inputs]
        return tir.seq([*streams, *(fetch(tile) for fetch in self.beside)])

    def _fetch(self, stream: Stream, memory: Var, tile: Any) -> Any:
        slot, lanes = self.slot(tile), stream.copies.lanes
        by_itself = self.plan.stages > 1 and async_copy.can_copy(stream.copied_bytes)

        def one(element: Any, time: Any) -> Any:
            place, indices = stream.layout.place(element), self._indices(stream, time)
            if by_itself:
                first = [i.base if isinstance(i, tirx.Ramp) else i for i in indices]
                size = stream.copied_bytes
                return async_copy.copy(
                    memory, [*self.row.at, slot, place], stream.buffer, first, size
                )
            value = tirx.BufferLoad(stream.buffer, indices)
            return tirx.BufferStore(memory, value, [*self.row.at, slot, _ramp(place, lanes)])

        return self._copies(tile, lanes, one)

    def put(self, tile: Any) -> Any:
        """Copy the outputs of a tile to global memory; a barrier must stand before it."""
        return tir.seq([self._put(stream, memory, tile) for stream, _, memory in self.outputs])

    def _put(self, stream: Stream, memory: Var, tile: Any) -> Any:
        def one(element: Any, time: Any) -> Any:
            place = _ramp(stream.layout.place(element), stream.copies.lanes)
            value = tirx.BufferLoad(memory, [*self.row.at, int_const(0, "int32"), place])
            return tirx.BufferStore(stream.buffer, value, self._indices(stream, time))

        return self._copies(tile, stream.copies.lanes, one)

    # ---- between shared memory and registers --------------------------------------------------

    def _own(self, stream: Stream, make: Callable[[Any, Any], Any]) -> Any:
        """``make(registers' place, memory's place)`` for the units of the thread's items."""
        layout = stream.layout
        items, unit = int_const(layout.items, "int32"), layout.unit
        # A thread's items never lie on both sides of a padding.
        first = layout.place(self.thread * items)

        def one(k: Any) -> Any:
            item = k * int_const(unit, "int32")
            return make(_ramp(item, unit), _ramp(first + item, unit))

        return loop("u", layout.items // unit, one, tirx.ForKind.UNROLLED)

    def take(self, tile: Any) -> Any:
        """The thread's items of a tile into registers."""
        slot = self.slot(tile)

        def one(stream: Stream, registers: Var, memory: Var) -> Any:
            def move(to: Any, place: Any) -> Any:
                return tirx.BufferStore(
                    registers, tirx.BufferLoad(memory, [*self.row.at, slot, place]), [to]
                )

            return self._own(stream, move)

        return tir.seq([one(*part) for part in self.inputs])

    def leave(self) -> Any:
        """The thread's results to shared memory."""

        def one(stream: Stream, registers: Var, memory: Var) -> Any:
            def move(place: Any, to: Any) -> Any:
                value = tirx.BufferLoad(registers, [place])
                at = [*self.row.at, int_const(0, "int32"), to]
                return tirx.BufferStore(memory, value, at)

            return self._own(stream, move)

        return tir.seq([one(*part) for part in self.outputs])

    # ---- a tile -------------------------------------------------------------------------------

    @property
    def _has_inputs(self) -> bool:
        return bool(self.inputs or self.beside)

    def begin(self) -> Any:
        """Before the first tile."""
        dtype = tir.dtype_of(self.recurrence.time.extent)
        if not self._has_inputs:
            return None
        return async_copy.begin_ahead(self.plan.stages, self.fetch, int_const(0, dtype))

    def load(self, tile: Any) -> Any:
        """The thread's items of a tile into registers, and the next copies on their way."""
        if not self._has_inputs:
            return None
        return tir.seq([async_copy.next_tile(self.plan.stages, self.fetch, tile), self.take(tile)])

    def store(self, tile: Any) -> Any:
        """The thread's results of a tile to global memory."""
        return tir.seq([self.leave(), self.put(tile)]) if self.outputs else None


def _ramp(first: Any, lanes: int) -> Any:
    return tirx.Ramp(first, int_const(1, first), lanes) if lanes > 1 else first
