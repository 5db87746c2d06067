"""Tiles of time in shared memory for a block whose threads share lanes; see ``walk_layout``.

A block reads what its lanes share once instead of once per lane, and whole lines of what is each
lane's own. With several buffers the copies are asynchronous: the next tile comes from memory
while the threads walk this one, which else wait for memory at every group of steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tvm import tirx
from tvm.ir import Var
from tvm.ir.expr import TensorLoad

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.ir import as_dtype, int_const, local, loop, when
from tvm_scan.schedules.common.lanes import decode_lanes, lane_count
from tvm_scan.schedules.common.replica import Replica
from tvm_scan.schedules.common.state_split import StateSplit
from tvm_scan.schedules.gpu.shared.memory import Cells, Region, regions
from tvm_scan.schedules.gpu.shared.staged import Copiers, SharedTile, Staged, are_whole, ramp
from tvm_scan.schedules.gpu.shared.walk_layout import Table, walk_layout, walk_steps
from tvm_scan.schedules.gpu.thread import async_copy
from tvm_scan.schedules.gpu.thread.barriers import all_wait
from tvm_scan.schedules.gpu.thread.held import HeldIndices
from tvm_scan.schedules.gpu.thread.plans import WalkPlan

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
    beside : sequence of Cells
        What else shall lie in shared memory; ``beside`` has their regions.
    """

    def __init__(
        self,
        recurrence: Recurrence,
        plan: WalkPlan,
        slot: Var,
        split: StateSplit,
        end: Any = None,
        beside: Sequence[Cells] = (),
    ) -> None:
        self.recurrence, self.plan = recurrence, plan
        self.end = recurrence.time.extent if end is None else end
        self.steps, self.shared = walk_steps(plan), plan.threads_per_lane
        self.states_each = split.states // self.shared
        # Chunks begin and end with tiles, so that all steps of a tile exist or none of them.
        self._whole = are_whole(recurrence, self.steps)
        threads = plan.threads_per_block
        self.thread = as_dtype(slot % threads, "int32")
        self.first_row = slot // threads * (plan.threads_per_block // self.shared)
        self.held = HeldIndices(slot if plan.stages > 1 else None)
        #: Number of the thread's lane in the block, and of the thread in its lane.
        self.lane, self.owner = self.thread // self.shared, self.thread % self.shared
        layout = walk_layout(plan, recurrence, split)
        left: Iterator[Region] = iter(())
        self._arrays: list[Var] = []
        if plan.stages > 1:
            all_regions, self._arrays = regions([*layout.cells, *beside], plan.stages)
            left = iter(all_regions)
        self.streams = [(part, self._tile(part, next(left, None))) for part in layout.streams]
        copied = [(part, self._tile(part, next(left, None))) for part in layout.tables]
        #: Tables of halves, and the shared memory of both of their forms.
        self.widened = [
            (
                part,
                tile,
                SharedTile(part.wide, tile.copiers, 1, "wide", "float32", next(left, None)),
            )
            for part, tile in copied
            if part.wide is not None
        ]
        self.beside = list(left)
        wide = {id(part): tile for part, _, tile in self.widened}
        self.tables = [
            (part.read, wide.get(id(part), tile), self._now(part)) for part, tile in copied
        ]
        self.tiles = [*(tile for _, tile in self.streams), *(tile for _, tile in copied)]

    def _tile(self, part: Staged, region: Region | None) -> SharedTile:
        # Rows of lanes may be of lanes that do not exist; of steps, every block has all its lanes.
        replica = self._replica_of_last if part.axes[0][0] == "lane" else self._replica
        threads = self.plan.threads_per_block
        copiers = Copiers(threads, self.thread, self._time, replica, self._guarded, held=self.held)
        return SharedTile(part, copiers, self.plan.stages, region=region)

    def _now(self, part: Table) -> Var:
        """A thread's registers of a table."""
        width = part.read.width
        shape = [self.states_each, width] if part.along_time else [self.states_each]
        dtype = tir.dtype_of(part.buffer) if part.wide is None else "float32"
        return local(f"{part.buffer.name}_now", shape, dtype)

    @property
    def registers(self) -> list[Var]:
        """Registers of the tables: arrays with a dimension that counts the thread's states."""
        return [registers for _, _, registers in self.tables]

    @property
    def buffers(self) -> list[Var]:
        """Shared memory and registers to allocate."""
        arrays = self._arrays or [
            tile.memory for tile in (*self.tiles, *(tile for _, _, tile in self.widened))
        ]
        return [*arrays, *self.held.buffers, *self.registers]

    @property
    def is_empty(self) -> bool:
        """Return whether nothing is staged."""
        return not self.tiles

    def has(self, load: TensorLoad) -> bool:
        """Return whether a load of the loops over the states is staged."""
        return any(tir.structurally_equal(load, part.access) for part, _, _ in self.tables)

    # ---- from global to shared memory ---------------------------------------------------------

    def begin(self, first: Any) -> Any:
        """Start the copies before the first tile, whose number is ``first``."""
        return async_copy.begin_ahead(self.plan.stages, self.fetch, first)

    def load(self, tile: Any) -> Any:
        """A tile into its buffer, and the next ones on their way."""
        ready = async_copy.next_tile(self.plan.stages, self.fetch, tile)
        if not self.widened:
            return ready
        # The barrier in ``ready`` says that nobody reads the tables of the tile before any more.
        return tir.seq([ready, *(self._widen(*entry, tile) for entry in self.widened), all_wait()])

    def _widen(self, part: Table, halves: SharedTile, wide: SharedTile, tile: Any) -> Any:
        """A table in float32, each number converted by one thread of the block."""
        (outer, rows), (inner, columns) = part.axes
        threads, total = self.plan.threads_per_block, rows * columns

        def of_round(r: Any) -> Any:
            number = as_dtype(r, "int32") * threads + self.thread
            at = {outer: number // columns, inner: number % columns}
            value = tirx.Cast("float32", halves.load(tile, part.index(**at)))
            store = wide.store(part.read.index(**at), value)
            return when(number < total, store) if total % threads else store

        return loop("r", -(-total // threads), of_round, _UNROLLED)

    def fetch(self, tile: Any) -> Any:
        """Begin to copy a tile."""
        copies = tir.seq(shared.fetch(tile) for shared in self.tiles)
        return when(self._time(tile, 0) < self.end, copies) if self._whole else copies

    def _time(self, tile: Any, step: Any) -> Any:
        dtype = tir.dtype_of(self.recurrence.time.var)
        return as_dtype(tile, dtype) * self.steps + as_dtype(step, dtype)

    def _guarded(self, inside: Any, time: Any, stmt: Any) -> Any:
        return when(inside, stmt if self._whole else when(time < self.end, stmt))

    def _row(self, lane: Any) -> Any:
        if lane is None:
            return self.first_row
        return self.first_row + as_dtype(lane, tir.dtype_of(self.first_row))

    def _replica(self, lane: Any) -> Replica:
        lanes = decode_lanes(self.recurrence, self._row(lane))
        return Replica(self.recurrence, lanes, unroll=True)

    def _replica_of_last(self, lane: Any) -> Replica:
        rows = lane_count(self.recurrence)
        neighbours = tir.as_int(self.recurrence.lanes[-1].extent) if self.recurrence.lanes else None
        if neighbours and neighbours % (self.plan.threads_per_block // self.shared) == 0:
            # All lanes of a block differ in their last index: one address serves for all of them.
            lanes = decode_lanes(self.recurrence, self.first_row)
            lanes[-1] = lanes[-1] + as_dtype(lane, tir.dtype_of(lanes[-1]))
            return Replica(self.recurrence, lanes, unroll=True)
        last = tirx.Max(rows - 1, tir.zero_like(rows))
        lanes = decode_lanes(self.recurrence, tirx.Min(self._row(lane), last))
        return Replica(self.recurrence, lanes, unroll=True)

    # ---- from shared memory to registers ------------------------------------------------------

    def take(self, parts: list[tuple[Any, Var]], tile: Any, start: Any) -> list[Any]:
        """The thread's items of the steps from ``start`` of the tile on, into its registers."""
        if not self.streams:
            return []
        first = start + self.owner * self.plan.items_per_thread
        return [
            shared.take(
                next(r for stream, r in parts if stream is part),
                tile,
                self.held(part.index(first, self.lane), part.taken[1]),
                *part.taken,
            )
            for part, shared in self.streams
        ]

    def fill(self, k: int, tile: Any, step: Any) -> list[Any]:
        """Load what a thread's states read in its ``k``-th step, step ``step`` of the tile."""
        return [self._fill(*entry, k, tile, step) for entry in self.tables]

    def _fill(
        self,
        part: Table,
        shared: SharedTile,
        registers: Var,
        k: int,
        tile: Any,
        step: Any,
    ) -> Any:
        owner, width, pitch = self.owner, self._width(part), part.pitch
        if not part.along_time:
            loads = []
            for s in range(0, self.states_each, width):
                index = part.index(step, state=owner * self.states_each + s)
                value = shared.load(tile, self.held(index, width), width)
                to = [ramp(int_const(s, "int32"), width)]
                loads.append(tirx.BufferStore(registers, value, to))
            return tir.seq(loads)
        if k % width:
            return None

        def of_state(s: Any) -> Any:
            index = self.held((s * self.shared + owner) * pitch + step, width)
            value = shared.load(tile, index, width)
            return tirx.BufferStore(registers, value, [s, ramp(int_const(0, "int32"), width)])

        return loop("s", self.states_each, of_state, _UNROLLED)

    def _width(self, part: Table) -> int:
        """Elements that a thread reads at once, no more than its own steps."""
        width, items = part.width, self.plan.items_per_thread
        while part.along_time and items % width:
            width //= 2
        return width

    def read(self, load: TensorLoad, state: Var, k: int) -> Any:
        """The value for ``load`` in the ``k``-th step of a thread; itself if it is not staged."""
        for part, _, registers in self.tables:
            if tir.structurally_equal(load, part.access):
                step = int_const(k % self._width(part), "int32")
                return tirx.BufferLoad(registers, [state, step] if part.along_time else [state])
        return load
