"""Arrays that a block whose threads share lanes stages in shared memory, and their layout there.

Two kinds of arrays. A *stream* belongs to a lane and is read once at every step. A *table* is read
by the loops over the states at every step, and is the same for all the lanes of a block: B and C of
a selective scan, whose channels are neighbours. Of streams whose memory runs along time every lane
has a row of a tile, and of those whose neighbours in memory are lanes every step
(``step_rows``); of tables every state, or every step, where the states are neighbours.

Tables of halves lie there twice: as they are copied, and in float32, which the threads read. The
block converts each number once, where every lane's threads would.

Theorem (tables). The lanes of block ``b`` are those numbered ``b n`` to ``b n + n - 1``. If the
indices of a load, over the lane numbered ``b n + y`` with ``0 <= y < n``, simplify to terms
without ``y``, all lanes of the block load the same element.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from tvm import tirx
from tvm.ir import Var
from tvm.ir.expr import TensorLoad

from tvm_scan import tir
from tvm_scan.extraction.nest import linear_in
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.state_split import NoSplit, StateSplit, split_of
from tvm_scan.schedules.common.uses import as_used
from tvm_scan.schedules.gpu.shared.layout import PaddedLayout, direction_of
from tvm_scan.schedules.gpu.shared.memory import Cells
from tvm_scan.schedules.gpu.shared.staged import VECTOR, Staged
from tvm_scan.schedules.gpu.shared.staging import (
    MAX_STAGED,
    loads_beside_states,
    steady_loads,
)
from tvm_scan.schedules.gpu.shared.step_rows import StepRows, placed_in_block, step_rows
from tvm_scan.schedules.gpu.thread.banks import LINE, WARP, WORD, meetings
from tvm_scan.schedules.gpu.thread.vector_access import VectorAccess, vector_access

if TYPE_CHECKING:
    from tvm_scan.schedules.gpu.thread.plans import WalkPlan


#: Static shared memory of a block.
MOST_BYTES = 48 << 10
#: Bytes of float32.
_WIDE = 4
#: Steps of a tile at least: a line of float32.
_LINE_STEPS = 32


@dataclass(frozen=True, eq=False, kw_only=True)
class LaneRows(Staged):
    """A stream: one row of a tile for every lane of the block.

    Attributes
    ----------
    pitch : int
        Elements from one row to the next.
    taken : tuple of int
        Items of a thread, how many it takes at once, cells from one to the next.
    """

    pitch: int
    taken: tuple[int, int, int]

    def index(self, step: Any, lane: Any = None, state: Any = None) -> Any:
        """Index of a lane's element of a step."""
        return lane * self.pitch + step


@dataclass(frozen=True, eq=False, kw_only=True)
class Table(Staged):
    """An array that the lanes of a block share; its load is in a loop over the states.

    Attributes
    ----------
    along_time : bool
        Whether rows are states, of steps; else they are steps, of states.
    width : int
        Elements that a thread reads at once: of steps, or of its own states.
    pitch : int
        Elements from one row to the next.
    states_each, shared : int
        States of a thread, and threads of a lane.
    wide : Table, optional
        Of halves that the loops use as float32 only: the table in float32, one buffer.
    """

    along_time: bool
    width: int
    pitch: int
    states_each: int
    shared: int
    wide: Table | None = None

    @property
    def read(self) -> Table:
        """The table that the threads read."""
        return self.wide or self

    @property
    def unit(self) -> int:
        """States of a thread that are neighbours: one, or as many as it reads at once.

        All of them, if a copy of several would be of two threads' states else.
        """
        if self.along_time:
            return 1
        return self.width if self.width % self.copies.lanes == 0 else self.states_each

    def index(self, step: Any, lane: Any = None, state: Any = None) -> Any:
        """Index by which what threads of a lane read at once, rows or units, are neighbours."""
        unit, owner, rest = self.unit, state // self.states_each, state % self.states_each
        if self.along_time:
            return (rest * self.shared + owner) * self.pitch + step
        column = rest // unit * self.shared + self._rotated(owner, rest // unit)
        return step * self.pitch + column * unit + rest % unit

    def _rotated(self, owner: Any, number: Any) -> Any:
        """Number of an owner's unit among the ``number``-th units of all.

        Threads that copy neighbours, units of one owner and of the next, would meet in a bank, were
        the units of every number in the order of their owners: they are rotated, by so many that
        those in a line of shared memory, or in as many bytes of a row, are in banks of their own.
        """
        units, in_line = self.states_each // self.unit, max(1, LINE // (self.unit * self.size))
        among = min(self.shared, in_line)
        in_one = in_line // among
        by = max(1, among // -(-units // in_one)) % among
        return owner - owner % among + (owner + number // in_one * by) % among

    @property
    def lines(self) -> int:
        """Lines of shared memory that a warp is served when its threads read a vector each."""

        def cell(thread: int) -> int:
            first: int = self.index(0, state=thread % self.shared * self.states_each)
            return first

        return self._served(cell, max(WORD, self.width * self.size))

    @property
    def copied_lines(self) -> float:
        """Lines, of memory and of shared memory, that the copy of an element takes."""
        lanes, size = self.copies.lanes, max(WORD, self.copied_bytes)
        (outer, _), (inner, columns) = self.axes

        def cell(thread: int) -> int:
            row, vector = divmod(thread, columns // lanes)
            first: int = self.index(**{outer: row, inner: vector * lanes})
            return first

        return self.size / LINE + self._served(cell, size) / (WARP * lanes)

    def _served(self, cell: Callable[[int], int], size: int) -> int:
        """Lines for accesses of ``size`` bytes, of which each thread's holds a cell."""
        return meetings(lambda thread: cell(thread) * self.size // size * size, size) * size // WORD


@dataclass(frozen=True, eq=False)
class WalkLayout:
    """All that is staged."""

    streams: tuple[LaneRows | StepRows, ...]
    tables: tuple[Table, ...]

    @property
    def cells(self) -> list[Cells]:
        """Cells of one buffer of every array, and of the tables in float32."""
        copied = [
            Cells(tir.dtype_of(part.buffer), part.cells, buffered=True)
            for part in (*self.streams, *self.tables)
        ]
        wide = [part.wide for part in self.tables if part.wide is not None]
        return [*copied, *(Cells("float32", part.cells) for part in wide)]

    @property
    def tile_bytes(self) -> list[int]:
        """Bytes of one buffer of every array."""
        return [part.bytes for part in (*self.streams, *self.tables)]

    @property
    def wide_bytes(self) -> list[int]:
        """Bytes of the tables in float32, of which there is one buffer."""
        return [part.wide.bytes for part in self.tables if part.wide is not None]

    def bytes_of(self, buffers: int) -> list[int]:
        """Bytes of all arrays, given how many buffers hold what is copied."""
        return [*(size * buffers for size in self.tile_bytes), *self.wide_bytes]

    def within(self, most: int) -> WalkLayout:
        """Leave out rows of steps until at most ``most`` bytes are left, as far as that helps.

        Of what is left out, threads read whole sectors of memory themselves; what the others bring
        is more.
        """
        streams, left = [], most - sum(self.tile_bytes)
        for part in reversed(self.streams):
            if left < 0 and isinstance(part, StepRows):
                left += part.bytes
                continue
            streams.append(part)
        return WalkLayout(tuple(reversed(streams)), self.tables)


def walk_steps(plan: WalkPlan) -> int:
    """Steps of a tile: whole groups of the threads of a lane, a line of memory at least."""
    together = plan.threads_per_lane * max(1, plan.items_per_thread)
    return together * max(1, _LINE_STEPS // together)


def walk_layout(
    plan: WalkPlan, recurrence: Recurrence, split: StateSplit | NoSplit | None = None
) -> WalkLayout:
    """Arrays that a plan stages; none unless it is transposed and a step has states.

    ``split`` are the parts of the step that are walked, if those are not all.
    """
    split = split_of(recurrence) if split is None else split
    shared, lanes = plan.threads_per_lane, plan.threads_per_block // plan.threads_per_lane
    if plan.block_load == "direct" or isinstance(split, NoSplit) or lanes == 0:
        return WalkLayout((), ())
    if split.states % shared:
        return WalkLayout((), ())
    layout = _layout(
        recurrence,
        split,
        shared,
        plan.items_per_thread,
        lanes,
        walk_steps(plan),
        plan.vector_loads,
        plan.stages > 1,
    )
    return layout.within((MOST_BYTES - sum(layout.wide_bytes)) // plan.stages)


def stages_tables(plan: WalkPlan, recurrence: Recurrence) -> bool:
    """Return whether all that the loops over the states read at every step is staged."""
    split, staged = split_of(recurrence), walk_layout(plan, recurrence).tables
    if isinstance(split, NoSplit):
        return False
    is_staged = tir.ExprMap((table.access, True) for table in staged)
    return all(
        load in is_staged
        for part in split.loops
        for load in steady_loads(part.body, recurrence, [recurrence.time.var, part.loop_var])
    )


@lru_cache(maxsize=128)
def _layout(
    recurrence: Recurrence,
    split: StateSplit,
    shared: int,
    items: int,
    lanes: int,
    steps: int,
    vectors: bool,
    widened: bool,
) -> WalkLayout:
    time = recurrence.time.var
    loads = loads_beside_states(split, recurrence)
    streams: list[LaneRows | StepRows] = []
    for load in loads[:MAX_STAGED]:
        direction = direction_of(list(load.indices), recurrence)
        if direction == 0:
            rows = step_rows(load, recurrence, shared, items, lanes, steps, vectors)
            streams += [rows] if rows else []
            continue
        copies = VectorAccess()
        if vectors and direction > 0:
            copies = vector_access(load.source, list(load.indices), recurrence, steps)
        layout = PaddedLayout(items, tir.byte_size(tir.dtype_of(load)))
        pitch = _row_pitch(steps, layout, shared)
        row = LaneRows(
            access=load,
            copies=copies,
            axes=(("lane", lanes), ("step", steps)),
            size=layout.size,
            cells=pitch * lanes,
            pitch=pitch,
            taken=(items, layout.unit, 1),
        )
        streams.append(row)
    tables = tir.ExprMap()
    for part in split.loops:
        for load in steady_loads(part.body, recurrence, [time, part.loop_var]):
            if load not in tables and is_common(load, recurrence, lanes):
                rest = (load, part.loop_var, recurrence, split, shared, steps, vectors)
                table = _table(*rest, tir.byte_size(tir.dtype_of(load)))
                if table is not None and widened and _used_wide(load, split):
                    table = replace(table, wide=_table(*rest, _WIDE))
                if table is not None:
                    tables[load] = table
    return WalkLayout(tuple(streams), tuple(table for _, table in tables.items()))


def _used_wide(load: TensorLoad, split: StateSplit) -> bool:
    """Return whether a load is of a half that all loops use in float32 only."""
    if not tir.is_half(tir.dtype_of(load)):
        return False
    readers = [part for part in split.loops if load.source in tir.buffers_loaded(part)]
    return all(isinstance(as_used(part, load), tirx.Cast) for part in readers)


@lru_cache(maxsize=256)
def _row_pitch(steps: int, layout: PaddedLayout, shared: int) -> int:
    """Elements between rows such that the threads that read together meet in the fewest banks."""
    vector = VECTOR // layout.size
    units = -(-steps // vector)
    apart = max(1, layout.items // vector)

    def meet(pitch: int) -> int:
        return meetings(lambda t: (t // shared * pitch + t % shared * apart) * VECTOR, VECTOR)

    return vector * min(range(units, units + LINE // VECTOR), key=meet)


def _table(
    load: TensorLoad,
    counter: Var,
    recurrence: Recurrence,
    split: StateSplit,
    shared: int,
    steps: int,
    vectors: bool,
    size: int,
) -> Table | None:
    indices = list(load.indices)
    most, along_time = VECTOR // size, direction_of(indices, recurrence)
    axes, width = (("state", split.states), ("step", steps)), most
    states_each = split.states // shared
    if along_time:
        lanes = 1
        if vectors and along_time > 0:
            lanes = vector_access(load.source, indices, recurrence, steps).lanes
        # An odd number of vectors from row to row: threads with neighbouring rows do not meet.
        pitch = most * (-(-steps // most) | 1)
    else:
        axes = axes[::-1]
        part = linear_in(indices[-1], counter)
        others = any(tir.contains_var(index, [counter]) for index in indices[:-1])
        if part is None or part[0] != 1 or others:
            return None
        first, row = tir.as_int(tir.simplify(part[1])), tir.as_int(tir.shape_of(load.source)[-1])
        known = [n for n in (row, first) if n is not None]
        lanes = most if vectors and len(known) == 2 else 1
        while lanes > 1 and any(n % lanes for n in (split.states, *known)):
            lanes //= 2
        while states_each % width:
            width //= 2
        vector = max(1, min(most, width))
        pitch = -(-split.states // vector) * vector
    return Table(
        access=load,
        copies=VectorAccess(lanes),
        axes=axes,
        size=size,
        cells=-(-pitch * axes[0][1] // most) * most,
        counter=counter,
        along_time=bool(along_time),
        width=width,
        pitch=pitch,
        states_each=states_each,
        shared=shared,
    )


def is_common(load: TensorLoad, recurrence: Recurrence, lanes: int) -> bool:
    """Return whether all lanes of a block load the same; see the theorem."""
    indices, within, analyzer = placed_in_block(load, recurrence, lanes)
    return not any(tir.contains_var(analyzer.simplify(index), [within]) for index in indices)
