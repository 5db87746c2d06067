"""Tiles of time in shared memory for a block whose threads share lanes; see ``walk_layout``.

A block reads what its lanes share once instead of once per lane, and whole lines of what is each
lane's own. With several buffers the copies are asynchronous: the next tile comes from memory
while the threads walk this one, which else wait for memory at every group of steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.ir import Var
from tvm.ir.expr import TensorLoad

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.gpu.thread import async_copy
from tvm_scan.schedules.common.ir import as_dtype, int_const, local, loop, when
from tvm_scan.schedules.common.lanes import decode_lanes, lane_count
from tvm_scan.schedules.gpu.thread.plans import WalkPlan
from tvm_scan.schedules.common.replica import Replica
from tvm_scan.schedules.common.state_split import StateSplit
from tvm_scan.schedules.gpu.shared.step_rows import StepRows
from tvm_scan.schedules.gpu.shared.walk_layout import LaneRows, Table, walk_layout, walk_steps

__all__ = ["WalkTiles"]

_UNROLLED = tirx.ForKind.UNROLLED


class WalkTiles:
    """The staged arrays of one block.

    Parameters
    ----------
    recurrence, plan
        Whose arrays, and how the threads share lanes.
    slot : Var
        Number of the thread in the grid.
    split : StateSplit
        The parts of the step that are walked.
    end : Expr, optional
        Step before which the walk ends, where that is before the last one.
    """

    def __init__(
        self,
        recurrence: Recurrence,
        plan: WalkPlan,
        slot: Var,
        split: StateSplit,
        end: Any = None,
    ) -> None:
        self.recurrence, self.plan, self.states = recurrence, plan, split.states
        self.end = recurrence.time.extent if end is None else end
        self.steps, self.shared = walk_steps(plan), plan.threads_per_lane
        self.own = self.states // self.shared
        threads = int_const(plan.threads_per_block, slot)
        self.thread = as_dtype(slot % threads, "int32")
        lanes = plan.threads_per_block // self.shared
        self.first_row = slot // threads * int_const(lanes, slot)
        self.lanes = lanes
        found = walk_layout(plan, recurrence, split)
        self.streams = [(part, self._memory(part, part.stream.buffer)) for part in found.streams]
        self.tables = [(part, *self._table_memory(part)) for part in found.tables]

    def _memory(self, part: LaneRows | StepRows | Table, source: Var) -> Var:
        shape = [self.plan.stages, part.cells]
        return local(f"{source.name}_tile", shape, tir.dtype_of(source), "shared")

    def _table_memory(self, part: Table) -> tuple[Var, Var]:
        source = part.load.source
        shape = [self.own, part.width] if part.along_time else [self.own]
        registers = local(f"{source.name}_now", shape, tir.dtype_of(source))
        return self._memory(part, source), registers

    @property
    def registers(self) -> list[Var]:
        """Of tables: arrays with a dimension that counts the thread's states."""
        return [registers for _, _, registers in self.tables]

    @property
    def buffers(self) -> list[Var]:
        """Shared memory and registers to allocate."""
        memory = [m for _, m in self.streams] + [m for _, m, _ in self.tables]
        return [*memory, *self.registers]

    @property
    def is_empty(self) -> bool:
        """Whether nothing is staged."""
        return not self.streams and not self.tables

    def has(self, load: TensorLoad) -> bool:
        """Whether a load of the loops over the states is staged."""
        return any(tir.structurally_equal(load, part.load) for part, _, _ in self.tables)

    # ---- from global to shared memory ---------------------------------------------------------

    def begin(self, first: Any) -> Any:
        """Before the first tile, whose number is ``first``."""
        return async_copy.begin_ahead(self.plan.stages, self.fetch, first)

    def load(self, tile: Any) -> Any:
        """A tile into its buffer, and the next ones on their way."""
        return async_copy.next_tile(self.plan.stages, self.fetch, tile)

    def fetch(self, tile: Any) -> Any:
        """Begin to copy a tile."""
        return tir.seq(
            [
                *(self._fetch_stream(part, memory, tile) for part, memory in self.streams),
                *(self._fetch_table(part, memory, tile) for part, memory, _ in self.tables),
            ]
        )

    def slot(self, tile: Any) -> Any:
        """Which buffer a tile has."""
        if self.plan.stages == 1:
            return int_const(0, "int32")
        return as_dtype(tile % int_const(self.plan.stages, tile), "int32")

    def _time(self, tile: Any, step: Any) -> Any:
        dtype = tir.dtype_of(self.recurrence.time.var)
        return as_dtype(tile, dtype) * int_const(self.steps, dtype) + as_dtype(step, dtype)

    def _elements(self, rows: int, row: int, make: Callable[[Any, Any], Any]) -> Any:
        """``make(row, element of the row)`` for the thread's share of ``rows`` rows."""
        total, threads = rows * row, self.plan.threads_per_block

        def one(r: Any) -> Any:
            number = as_dtype(r, "int32") * int_const(threads, "int32") + self.thread
            each = int_const(row, "int32")
            stmt = make(number // each, number % each)
            return when(number < int_const(total, "int32") if total % threads else None, stmt)

        return loop("r", -(-total // threads), one, _UNROLLED)

    def _copy(
        self,
        memory: Var,
        to: list[Any],
        load: TensorLoad,
        indices: list[Any],
        lanes: int,
        size: int,
    ) -> Any:
        if self.plan.stages > 1 and async_copy.can_copy(lanes * size):
            return async_copy.copy(memory, to, load.source, indices, lanes * size)
        if lanes == 1:
            return tirx.BufferStore(memory, tirx.BufferLoad(load.source, indices), to)
        ramp = [tirx.Ramp(i[-1], int_const(1, i[-1]), lanes) for i in (to, indices)]
        value = tirx.BufferLoad(load.source, [*indices[:-1], ramp[1]])
        return tirx.BufferStore(memory, value, [*to[:-1], ramp[0]])

    def _fetch_stream(self, part: LaneRows | StepRows, memory: Var, tile: Any) -> Any:
        if isinstance(part, StepRows):
            return self._fetch_steps(part, memory, tile)
        return self._fetch_rows(part, memory, tile)

    def _fetch_steps(self, part: StepRows, memory: Var, tile: Any) -> Any:
        load = part.stream.access

        def one(step: Any, number: Any) -> Any:
            lane, time = number * int_const(part.width, "int32"), self._time(tile, step)
            row = self.first_row + as_dtype(lane, tir.dtype_of(self.first_row))
            to = [self.slot(tile), part.place(step, lane)]
            indices = self._placed(load, row, time)
            return when(
                time < self.end, self._copy(memory, to, load, indices, part.width, part.size)
            )

        return self._elements(self.steps, part.lanes // part.width, one)

    def _fetch_rows(self, part: LaneRows, memory: Var, tile: Any) -> Any:
        lanes, stream = part.stream.copies.lanes, part.stream
        rows = lane_count(self.recurrence)
        last = tirx.Max(rows - int_const(1, rows), tir.zero_like(rows))

        def one(y: Any, number: Any) -> Any:
            step = number * int_const(lanes, "int32")
            time = self._time(tile, step)
            lane = tirx.Min(self.first_row + as_dtype(y, tir.dtype_of(self.first_row)), last)
            indices = self._placed(stream.access, lane, time)
            place = y * int_const(part.pitch, "int32") + step
            to = [self.slot(tile), place]
            copy = self._copy(memory, to, stream.access, indices, lanes, part.size)
            return when(time < self.end, copy)

        return self._elements(self.lanes, self.steps // lanes, one)

    def _fetch_table(self, part: Table, memory: Var, tile: Any) -> Any:
        lanes = part.lanes
        dtype = tir.dtype_of(part.counter)

        def one(row: Any, number: Any) -> Any:
            first = number * int_const(lanes, "int32")
            state, step = (row, first) if part.along_time else (first, row)
            time = self._time(tile, step)
            table = tir.VarMap([(part.counter, as_dtype(state, dtype))])
            indices = self._placed(part.load, self.first_row, time, table)
            if part.along_time:
                place = self._row_of(state) * int_const(part.pitch, "int32") + step
            else:
                place = step * int_const(part.pitch, "int32") + state
            to = [self.slot(tile), place]
            copy = self._copy(memory, to, part.load, indices, lanes, part.size)
            return when(time < self.end, copy)

        if part.along_time:
            return self._elements(self.states, self.steps // lanes, one)
        return self._elements(self.steps, self.states // lanes, one)

    def _row_of(self, state: Any) -> Any:
        """Rows of the states that the threads of a lane use at once are neighbours."""
        own, shared = int_const(self.own, state), int_const(self.shared, state)
        return state % own * shared + state // own

    def _placed(
        self, load: TensorLoad, row: Any, time: Any, table: tir.VarMap | None = None
    ) -> list[Any]:
        lanes = decode_lanes(self.recurrence, row)
        replica = Replica(self.recurrence, lanes, unroll=True)
        indices = [tir.substitute(i, table) if table else i for i in load.indices]
        return [replica.place(index, None, time) for index in indices]

    # ---- from shared memory to registers ------------------------------------------------------

    def take(self, parts: list[tuple[Any, Var]], tile: Any, first: Any) -> list[Any]:
        """The thread's items from step ``first`` of the tile on, into its registers."""
        if not self.streams:
            return []
        y, slot = self.thread // int_const(self.shared, "int32"), self.slot(tile)
        stmts = []
        for part, memory in self.streams:
            registers = next(r for stream, r in parts if stream is part.stream)
            if isinstance(part, StepRows):
                stmts.append(self._take_steps(part, memory, registers, y, slot, first))
                continue
            unit = part.stream.layout.unit
            start = y * int_const(part.pitch, "int32") + first

            def one(
                u: Any, to: Var = registers, of: Var = memory, at: Any = start, n: int = unit
            ) -> Any:
                item = u * int_const(n, "int32")
                value = tirx.BufferLoad(of, [slot, _ramp(at + item, n)])
                return tirx.BufferStore(to, value, [_ramp(item, n)])

            count = part.stream.layout.items // unit
            stmts.append(loop("u", count, one, _UNROLLED))
        return stmts

    def _take_steps(
        self, part: StepRows, memory: Var, registers: Var, y: Any, slot: Any, first: Any
    ) -> Any:
        start = part.place(first, y)

        def one(u: Any) -> Any:
            # The steps of a thread lie between two paddings.
            place = start + u * int_const(part.lanes, "int32")
            return tirx.BufferStore(registers, tirx.BufferLoad(memory, [slot, place]), [u])

        return loop("u", part.items, one, _UNROLLED)

    def fill(self, k: int, owner: Any, tile: Any, step: Any) -> list[Any]:
        """Before step ``step`` of the tile, the ``k``-th of a thread: what its states read."""
        return [self._fill(*entry, k, owner, tile, step) for entry in self.tables]

    def _fill(
        self, part: Table, memory: Var, registers: Var, k: int, owner: Any, tile: Any, step: Any
    ) -> Any:
        slot, width = self.slot(tile), self._width(part)
        if part.along_time and k % width:
            return None

        def of_state(s: Any) -> Any:
            row = s * int_const(self.shared, "int32") + owner
            place = row * int_const(part.pitch, "int32") + step
            value = tirx.BufferLoad(memory, [slot, _ramp(place, width)])
            return tirx.BufferStore(registers, value, [s, _ramp(int_const(0, "int32"), width)])

        def of_states(u: Any) -> Any:
            s = u * int_const(width, "int32")
            place = step * int_const(part.pitch, "int32") + owner * int_const(self.own, "int32")
            value = tirx.BufferLoad(memory, [slot, _ramp(place + s, width)])
            return tirx.BufferStore(registers, value, [_ramp(s, width)])

        if part.along_time:
            return loop("s", self.own, of_state, _UNROLLED)
        return loop("u", self.own // width, of_states, _UNROLLED)

    def _width(self, part: Table) -> int:
        """Elements that a thread reads at once, no more than its own steps."""
        width, items = part.width, self.plan.items_per_thread
        while part.along_time and items % width:
            width //= 2
        return width

    def read(self, load: TensorLoad, state: Var, k: int) -> Any:
        """What stands for ``load`` in the ``k``-th step of a thread; itself if nothing does."""
        for part, _, registers in self.tables:
            if tir.structurally_equal(load, part.load):
                step = int_const(k % self._width(part), "int32")
                return tirx.BufferLoad(registers, [state, step] if part.along_time else [state])
        return load


def _ramp(first: Any, lanes: int) -> Any:
    return tirx.Ramp(first, int_const(1, first), lanes) if lanes > 1 else first
