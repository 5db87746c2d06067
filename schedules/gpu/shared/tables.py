"""What the lanes of a block share in a tree: read once per tile, for all of them.

A table is an array that loops over the states read at every step, and whose elements do not
depend on which lane of the block it is (theorem of ``walk_layout``): B and C of a selective scan.
All threads of the block copy its tile, each element once; every thread then reads the elements of
its own steps from shared memory.

Element ``(state, step)`` lies in row ``state`` at the padded place of ``step``, so that threads
whose steps are ``items`` apart meet in no bank; rows have an odd pitch, so that neighbouring
states, which arrive together where they are neighbours in memory, do not either.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Var
from tvm.ir.expr import TensorLoad

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.gpu.thread import async_copy
from tvm_scan.schedules.common.ir import as_dtype, int_const, local, loop, when
from tvm_scan.schedules.gpu.shared.layout import PaddedLayout, element_size
from tvm_scan.schedules.gpu.shared.staging import steady_loads
from tvm_scan.schedules.gpu.shared.walk_layout import is_common

if TYPE_CHECKING:
    from tvm_scan.schedules.gpu.thread.place import Place
    from tvm_scan.schedules.gpu.thread.plans import TreePlan
    from tvm_scan.schedules.gpu.shared.items import SharedItems

__all__ = ["SharedTables", "TreeTable", "tables_of"]

_LEAST = 4


@dataclass(frozen=True, eq=False)
class TreeTable:
    """One shared array.

    Attributes
    ----------
    load : TensorLoad
        In a loop of the step over ``counter``.
    counter : Var
        Loop variable.
    dim : int
        Which index it is.
    states, steps : int
        Its extent; steps of a tile.
    layout : PaddedLayout
        Of the steps of a row.
    """

    load: TensorLoad
    counter: Var
    dim: int
    states: int
    steps: int
    layout: PaddedLayout

    @property
    def pitch(self) -> int:
        """Elements from one state to the next."""
        used: int = self.layout.place(self.steps - 1) + 1
        return used | 1

    @property
    def bytes(self) -> int:
        """Of one buffer."""
        return self.pitch * self.states * self.layout.size


def tables_of(plan: TreePlan, recurrence: Recurrence) -> tuple[TreeTable, ...]:
    """What the lanes of a tree plan's block share; nothing unless it is transposed."""
    if plan.block_load == "direct" or plan.lanes_per_block == 1:
        return ()
    return _tables(recurrence, plan.lanes_per_block, plan.items_per_thread, plan.tile)


@lru_cache(maxsize=128)
def _tables(recurrence: Recurrence, lanes: int, items: int, steps: int) -> tuple[TreeTable, ...]:
    found: list[TreeTable] = []
    loops: list[tirx.For] = []
    tvm_ffi.structural_walk(recurrence.body, [(tirx.For, loops.append)])
    for part in loops:
        counter, states = part.loop_var, tir.as_int(part.extent)
        for load in steady_loads(part.body, recurrence, [recurrence.time.var, counter]):
            dims = [i for i, index in enumerate(load.indices) if index.same_as(counter)]
            uses = [i for i, index in enumerate(load.indices) if tir.contains_var(index, [counter])]
            size = element_size(load.source)
            new = not any(_same_but(load, t.load, t.dim) for t in found)
            if states is None or dims != uses or len(dims) != 1 or size < _LEAST or not new:
                continue
            if is_common(load, recurrence, lanes):
                layout = PaddedLayout(items, size, size)
                found.append(TreeTable(load, counter, dims[0], states, steps, layout))
    return tuple(found)


def _same_but(load: TensorLoad, other: TensorLoad, dim: int) -> bool:
    """Whether two loads are the same apart from one index."""
    return load.source.same_as(other.source) and all(
        i == dim or tir.structurally_equal(a, b)
        for i, (a, b) in enumerate(zip(load.indices, other.indices, strict=True))
    )


class SharedTables:
    """The shared arrays of one tile; they come with the tile of ``items``.

    Parameters
    ----------
    recurrence, plan
        Whose arrays.
    place : Place
        Lane of the block, and thread within it.
    group : Expr
        Number of the block's lanes among all groups of lanes.
    items : SharedItems
        Says when a tile is fetched, and to which buffer.
    """

    def __init__(
        self,
        recurrence: Recurrence,
        plan: TreePlan,
        place: Place,
        group: Any,
        items: SharedItems,
    ) -> None:
        self.recurrence, self.plan, self.items = recurrence, plan, items
        self.place, self.replica = place, items.replica
        self.group = group
        self.tables = [(table, self._memory(table)) for table in tables_of(plan, recurrence)]
        if self.tables:
            items.beside.append(self._fetch)

    def _memory(self, table: TreeTable) -> Var:
        shape = [self.plan.stages, table.pitch * table.states]
        source = table.load.source
        return local(f"{source.name}_table", shape, tir.dtype_of(source), "shared")

    @property
    def buffers(self) -> list[Var]:
        """Shared memory to allocate."""
        return [memory for _, memory in self.tables]

    def _fetch(self, tile: Any) -> Any:
        return tir.seq([self._fetch_one(table, memory, tile) for table, memory in self.tables])

    def _fetch_one(self, table: TreeTable, memory: Var, tile: Any) -> Any:
        threads = self.plan.threads_per_block * self.plan.lanes_per_block
        total = table.steps * table.states
        row = self.place.row_in_block.index * int_const(self.plan.threads_per_block, "int32")
        mine = row + self.place.thread
        time_dtype, dtype = tir.dtype_of(self.recurrence.time.var), tir.dtype_of(table.counter)
        start = as_dtype(tile, time_dtype) * int_const(table.steps, time_dtype)
        # Neighbours in memory to neighbouring threads.
        by_state = table.dim == len(table.load.indices) - 1
        inner = int_const(table.states if by_state else table.steps, "int32")

        def one(r: Any) -> Any:
            number = as_dtype(r, "int32") * int_const(threads, "int32") + mine
            state, step = number // inner, number % inner
            if by_state:
                state, step = step, state
            time = start + as_dtype(step, time_dtype)
            at = tir.VarMap([(table.counter, as_dtype(state, dtype))])
            indices = [
                self.replica.place(tir.substitute(i, at), None, time) for i in table.load.indices
            ]
            slot = self.items.slot(tile)
            to = [slot, state * int_const(table.pitch, "int32") + table.layout.place(step)]
            size = table.layout.size
            if self.plan.stages > 1 and async_copy.can_copy(size):
                copy = async_copy.copy(memory, to, table.load.source, indices, size)
            else:
                copy = tirx.BufferStore(memory, tirx.BufferLoad(table.load.source, indices), to)
            inside = self.items.valid(time)
            if total % threads:
                inside = tirx.And(number < int_const(total, "int32"), inside)
            return when(inside, copy)

        return loop("r", -(-total // threads), one, tirx.ForKind.UNROLLED)

    def use(self, stmt: Any, tile: Any, item: Any, time: Any) -> Any:
        """``stmt`` of the thread's ``item`` with its loads of the tables from shared memory."""
        if not self.tables:
            return stmt
        slot = self.items.slot(tile)
        step = self.place.thread * int_const(self.plan.items_per_thread, "int32")
        step = step + as_dtype(item, "int32")

        def placed(load: TensorLoad) -> list[Any]:
            return [self.replica.place(index, None, time) for index in load.indices]

        known = [
            (table, memory, tirx.BufferLoad(table.load.source, placed(table.load)))
            for table, memory in self.tables
        ]

        def on_load(load: TensorLoad) -> Any:
            for table, memory, pattern in known:
                if load.source.same_as(pattern.source) and _same_but(load, pattern, table.dim):
                    state = as_dtype(load.indices[table.dim], "int32")
                    row = state * int_const(table.pitch, "int32")
                    return tirx.BufferLoad(memory, [slot, row + table.layout.place(step)])
            return load

        return tir.map_loads(stmt, on_load)
