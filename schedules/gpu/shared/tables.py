"""Tables that the lanes of a block share in a tree: read once per tile, for all of them.

A table is an array that loops over the states read at every step, and whose elements do not
depend on which lane of the block it is (theorem of ``walk_layout``): B and C of a selective scan.
All threads of the block copy its tile, each element once; every thread then reads the elements of
its own steps from shared memory.

Element ``(state, step)`` lies in row ``state`` at the padded index of ``step``, so that threads
whose steps are ``items`` apart meet in no bank; rows have an odd pitch, so that neighbouring
states, which arrive together where they are neighbours in memory, do not either.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from tvm import tirx
from tvm.ir.expr import TensorLoad

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.replica import Replica
from tvm_scan.schedules.gpu.shared.layout import PaddedLayout
from tvm_scan.schedules.gpu.shared.staged import Staged
from tvm_scan.schedules.gpu.shared.staging import steady_loads
from tvm_scan.schedules.gpu.shared.walk_layout import is_common
from tvm_scan.schedules.gpu.thread.vector_access import VectorAccess

if TYPE_CHECKING:
    from tvm_scan.schedules.gpu.thread.plans import TreePlan


_LEAST = 4


@dataclass(frozen=True, eq=False, kw_only=True)
class TreeTable(Staged):
    """One shared array, whose load is in a loop of the step over ``counter``.

    Attributes
    ----------
    dim : int
        Which index that is.
    pitch : int
        Elements from one state to the next.
    layout : PaddedLayout
        Of the steps of a row.
    """

    dim: int
    pitch: int
    layout: PaddedLayout

    def index(self, step: Any, lane: Any = None, state: Any = None) -> Any:
        """Index of a state and step."""
        return state * self.pitch + self.layout.index(step)

    def reads(self, load: TensorLoad, replica: Replica, time: Any) -> bool:
        """Return whether a load of the step at ``time`` is of the table."""
        indices = [replica.instantiate(index, None, time) for index in self.access.indices]
        return _same_but(load, tirx.BufferLoad(self.buffer, indices), self.dim)


def tables_of(plan: TreePlan, recurrence: Recurrence) -> tuple[TreeTable, ...]:
    """Tables that the lanes of a tree plan's block share; none unless it is transposed."""
    if plan.block_load == "direct" or plan.lanes_per_block == 1:
        return ()
    return _tables(recurrence, plan.lanes_per_block, plan.items_per_thread, plan.tile)


@lru_cache(maxsize=128)
def _tables(recurrence: Recurrence, lanes: int, items: int, steps: int) -> tuple[TreeTable, ...]:
    tables: list[TreeTable] = []
    for part in tir.nodes(recurrence.body, tirx.For):
        counter, states = part.loop_var, tir.as_int(part.extent)
        for load in steady_loads(part.body, recurrence, [recurrence.time.var, counter]):
            dims = [i for i, index in enumerate(load.indices) if index.same_as(counter)]
            uses = [i for i, index in enumerate(load.indices) if tir.contains_var(index, [counter])]
            size = tir.byte_size(tir.dtype_of(load))
            new = not any(_same_but(load, t.access, t.dim) for t in tables)
            if states is None or dims != uses or len(dims) != 1 or size < _LEAST or not new:
                continue
            if is_common(load, recurrence, lanes):
                layout = PaddedLayout(items, size, size)
                axes = (("state", states), ("step", steps))
                used: int = layout.index(steps - 1) + 1
                tables.append(
                    TreeTable(
                        access=load,
                        copies=VectorAccess(),
                        # Neighbours in memory to neighbouring threads.
                        axes=axes[::-1] if dims[0] == len(load.indices) - 1 else axes,
                        size=size,
                        cells=(used | 1) * states,
                        counter=counter,
                        dim=dims[0],
                        pitch=used | 1,
                        layout=layout,
                    )
                )
    return tuple(tables)


def _same_but(load: TensorLoad, other: TensorLoad, dim: int) -> bool:
    """Return whether two loads are the same apart from one index."""
    return load.source.same_as(other.source) and all(
        i == dim or tir.structurally_equal(a, b)
        for i, (a, b) in enumerate(zip(load.indices, other.indices, strict=True))
    )
