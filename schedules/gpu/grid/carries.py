"""The middle kernel of three phases: from the tiles' elements of a lane to the tiles' carries.

Few tiles: one thread per lane scans them, in order. Many: one block per lane takes chunks of
them, several to a thread, and scans those over its threads as a tile scans steps. A lane of T
tiles then costs T / (threads * items) round trips to memory instead of T.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.elements import Elements
from tvm_scan.schedules.common.ir import as_dtype, loop, parts_of, when
from tvm_scan.schedules.common.replica import Replica
from tvm_scan.schedules.common.sizes import element_bytes
from tvm_scan.schedules.gpu.block.trees import make_tree
from tvm_scan.schedules.gpu.thread.plans import TreePlan

#: Tiles of a lane up to which one thread is as good.
FEW_TILES = 32
_ITEMS = 8


def carry_threads(plan: TreePlan, recurrence: Recurrence) -> int:
    """Threads of a block that scans the tiles of a lane, the middle one of three phases.

    As many as have registers for four elements; with trees in shared memory, as many as the plan
    has threads, whose elements fit there.
    """
    if plan.block_tree != "warp":
        return plan.threads_per_block
    return 256 if element_bytes(recurrence) <= 64 else 128


class CarryScan:
    """One block's scan over the tiles of a lane.

    Parameters
    ----------
    recurrence : Recurrence
        Whose elements.
    plan : TreePlan
        Its tree, or its number of threads where that is no warp tree.
    lanes : list of Expr
        The lane of the block.
    elements : Elements
        Of every tile, in global memory: those of one level.
    carries : list of Var
        Scratch for the carry of every tile.
    row, tiles, thread : Expr
        Which lane, how many tiles it has, and which thread this is.
    """

    def __init__(
        self,
        recurrence: Recurrence,
        plan: TreePlan,
        lanes: list[Any],
        elements: Elements,
        carries: list[Var],
        row: Any,
        tiles: Any,
        thread: Var,
    ) -> None:
        self.elements, self.carries, self.row = elements, carries, row
        self.level, self.tiles, self.thread = elements.level, tiles, thread
        self.threads = carry_threads(plan, recurrence)
        self.replica = Replica(recurrence, lanes, unroll=True)
        self.running = Replica(recurrence, lanes, unroll=True, tag="_run")
        self.mine = Elements(recurrence, "mine", [], "local", self.level)
        self.total = Elements(recurrence, "total", [], "local", self.level)
        self.tree = make_tree(plan.block_tree, self.replica, thread, self.threads)

    @property
    def buffers(self) -> list[Var]:
        """Everything that the scan keeps; of the tree, what this level uses."""
        of_level = self.tree.buffers_of(range(self.level, self.level + 1))
        registers = [*self.replica.buffers, *self.running.buffers]
        return [*registers, *self.mine.buffers, *self.total.buffers, *of_level]

    def scan(self) -> Any:
        """All tiles; afterwards ``carries`` holds what each of them begins with."""
        return loop("chunk", parts_of(self.tiles, self.threads * _ITEMS), self._chunk)

    def _chunk(self, number: Any) -> Any:
        dtype = tir.dtype_of(self.tiles)
        first = number * (self.threads * _ITEMS) + as_dtype(self.thread, dtype) * _ITEMS

        def each(make: Any) -> Any:
            def of_tile(k: Any) -> Any:
                tile = first + as_dtype(k, dtype)
                return when(tile < self.tiles, make([self.row, tile]))

            return loop("k", _ITEMS, of_tile)

        return tir.seq(
            [
                self.replica.set_identity(self.mine, []),
                each(self._extend),
                *self.tree.scan_from(self.running, self.level, self.mine, self.total, number),
                self.tree.restore(self.running, self.level, self.mine),
                each(self._keep),
                self.tree.move_on(self.running, self.level, self.total),
            ]
        )

    def _extend(self, lead: list[Any]) -> Any:
        """The thread's element, followed by that of a tile."""

        def of_cell(i: int, cell: list[Any]) -> Any:
            algebra = self.replica.recurrence.groups[i].algebra
            earlier, later = self.mine.load(i, [], cell), self.elements.load(i, lead, cell)
            return self.mine.store(i, [], cell, algebra.combine(earlier, later))

        return self.replica.for_each_element(self.level, of_cell)

    def _keep(self, lead: list[Any]) -> Any:
        keep = self.replica.keep(self.carries, lead, self.level)
        return tir.seq([keep, self.replica.apply(self.elements, lead)])

    def is_owner(self) -> Any:
        """Condition that holds for one thread of the block."""
        return tirx.EQ(self.thread, tir.zero_like(self.thread))
