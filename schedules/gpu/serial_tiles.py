"""The schedule in which one block takes tile after tile, with the carries in registers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tvm import tirx

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.ir import Kernel, for_one_block, loop, when
from tvm_scan.schedules.common.lanes import decode_lanes, lane_count
from tvm_scan.schedules.common.result import Built
from tvm_scan.schedules.common.sizes import element_parts
from tvm_scan.schedules.gpu.block.counts import tile_counts
from tvm_scan.schedules.gpu.block.tile import Tile
from tvm_scan.schedules.gpu.thread.position import ThreadPosition, lane_exists, tile_count
from tvm_scan.schedules.gpu.trees import Trees
from tvm_scan.schedules.machine.gpu_chip import LEVEL, MEMORY, GpuChip, Work
from tvm_scan.schedules.picture import Picture


@dataclass(frozen=True)
class SerialTiles(Trees):
    """One block per lane takes, in order, tiles of ``threads_per_block * items_per_thread`` steps.

    Attributes
    ----------
    threads_per_block, items_per_thread, block_tree, vector_loads, block_load, stages,
    lanes_per_block
        See ``GpuPlan`` and ``TreePlan``.
    """

    algorithm: ClassVar[str] = "serial_tiles"
    wide: ClassVar[tuple[int, ...]] = (1, 2)
    walks_tiles: ClassVar[bool] = True
    threads_per_block: int = 0
    items_per_thread: int = 0
    block_tree: str = "blelloch"
    vector_loads: bool = False
    block_load: str = "direct"
    stages: int = 1
    lanes_per_block: int = 1

    def blocks(self, rows: int, steps: int) -> int:
        """Blocks of the grid: groups of lanes."""
        return -(-rows // self.lanes_per_block)

    def build(self, recurrence: Recurrence) -> Built:
        """Return one kernel.

        Global traffic: every input and output once (inputs that are not staged are read twice, the
        second time from cache). Shared memory: ``smem_bytes``.
        """
        rows = lane_count(recurrence)
        group, position = tirx.Var("v_row", tir.dtype_of(rows)), ThreadPosition(rows, self)
        row = position.row(group)
        lanes = decode_lanes(recurrence, row)
        guard = lane_exists(recurrence, lanes, row, rows, self.lanes_per_block)
        tile = Tile(recurrence, self, lanes, position, guard)

        def of_tile(number: Any) -> Any:
            return tir.seq(
                [
                    tile.load(number),
                    *tile.scan(number),
                    tile.restore(),
                    tile.replay(number),
                    tile.move_on(),
                ]
            )

        body = tir.seq(
            [
                when(guard, tile.running.begin()),
                when(guard, tile.replica.prologue()),
                tile.owner_writes(),
                *tile.empty(),
                tile.shared.begin(),
                loop("tile", tile_count(recurrence, self), of_tile),
            ]
        )
        if any(cells > 1 and tir.byte_size(d) == 8 for cells, d in element_parts(recurrence)):
            body = for_one_block(body)  # states in doubles, two registers each
        kernel = Kernel("scan_tiles", recurrence.inputs, recurrence.outputs, body, tile.allocs)
        return Built([position.grid(kernel, position.blocks, group)], [])

    def work(self, recurrence: Recurrence, rows: float, steps: float, chip: GpuChip) -> Work:
        """Count tiles that follow one another in a block."""
        counts = tile_counts(self, recurrence, rows, steps)
        chain = counts.tiles * counts.cycles
        if self.stages > 1:
            # All tiles but the first one are there when they are needed.
            chain -= (counts.tiles - 1) * (MEMORY - LEVEL)
        return Work(
            moved=counts.moved,
            specials=2 * counts.specials,
            issued=counts.issued,
            barriers=counts.tiles * counts.barriers,
            shared=counts.shared,
            threads=rows * self.threads_per_block,
            chain=chain,
            once=0.0,
            launches=1.0,
            lines=counts.lines,
            lost=counts.lost,
        )

    def picture(self, recurrence: Recurrence) -> Picture:
        """Return the tree of a block that takes tile after tile."""
        return self.drawn(
            recurrence,
            f"one block per lane takes tiles of {self.tile} steps, carry in registers",
            f"Then the next tile of {self.tile} steps, from the carry that this tile leaves.",
        )
