"""The schedule of three kernels: reduce every tile, scan the tiles' elements, replay every tile."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import ClassVar

from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.result import Built
from tvm_scan.schedules.common.sizes import element_bytes
from tvm_scan.schedules.gpu.block.counts import tile_counts
from tvm_scan.schedules.gpu.grid.carries import carry_threads
from tvm_scan.schedules.gpu.grid.three_phase import TiledPhases
from tvm_scan.schedules.gpu.thread.plans import aligned
from tvm_scan.schedules.gpu.trees import Trees
from tvm_scan.schedules.machine.gpu_chip import LITTLE, MEMORY, GpuChip, Work
from tvm_scan.schedules.machine.machine import Machine
from tvm_scan.schedules.picture import Picture

#: How often a step's bytes are moved: inputs twice, which are most of them, outputs once.
_PASSES = 2 * 0.85


@dataclass(frozen=True)
class ThreePhase(Trees):
    """Tiles of time are reduced to elements, the elements are scanned, the tiles replayed.

    Attributes
    ----------
    threads_per_block, items_per_thread, block_tree, vector_loads, block_load, lanes_per_block
        See ``GpuPlan`` and ``TreePlan``.
    """

    algorithm: ClassVar[str] = "three_phase"
    passes: ClassVar[int] = 2
    # Of larger tiles fewer elements pass through the middle kernel, in which one block is at work.
    wide: ClassVar[tuple[int, ...]] = (1, 2)
    threads_per_block: int = 0
    items_per_thread: int = 0
    block_tree: str = "blelloch"
    vector_loads: bool = False
    block_load: str = "direct"
    lanes_per_block: int = 1

    @property
    def has_scratch(self) -> bool:
        """Return True: the tiles' elements and carries."""
        return True

    def check_own(self, recurrence: Recurrence, machine: Machine) -> None:
        """Check the block that scans the tiles' elements."""
        least = carry_threads(self, recurrence)
        self.require(
            least <= machine.threads,
            f"a device with blocks of {least} threads, for the tiles' carries",
            f"at most {machine.threads}",
            "use another tree",
        )

    def blocks(self, rows: int, steps: int) -> int:
        """Blocks of the grid: a group of lanes for every tile."""
        return -(-rows // self.lanes_per_block) * -(-steps // self.tile)

    def build(self, recurrence: Recurrence) -> Built:
        """Return three kernels for each level of carries, the last one shared."""
        return TiledPhases(recurrence, self).build()

    def shared_bytes(self, recurrence: Recurrence) -> int:
        """Shared memory of one block in bytes: every part of every element, padded."""
        threads = self.threads_per_block
        if self.lanes_per_block == 1:
            threads = max(threads, carry_threads(self, recurrence))
        return aligned([*self.slots_bytes(recurrence, threads), *self.tile_bytes(recurrence)])

    def work(self, recurrence: Recurrence, rows: float, steps: float, chip: GpuChip) -> Work:
        """Count inputs that are read twice, and the scan of the tiles' elements."""
        counts = tile_counts(self, recurrence, rows, steps)
        scratch = 16.0 * rows * counts.tiles * element_bytes(recurrence) / 4
        # The elements of a lane are scanned in chunks by one block; each chunk waits for memory
        # twice.
        chunks = ceil(counts.tiles / (8 * carry_threads(self, recurrence)))
        return Work(
            moved=_PASSES * counts.moved + scratch,
            specials=3 * counts.specials,
            issued=counts.issued + counts.issued_to_reduce,
            barriers=3 * counts.barriers,
            shared=counts.shared,
            threads=rows * counts.tiles * self.threads_per_block,
            chain=2 * counts.cycles,
            once=0.0,
            launches=2.0 + LITTLE,
            lines=counts.lines + counts.lines_to_reduce,
            lost=_PASSES * counts.lost,
            between=chunks * (2 * MEMORY + counts.exchange_cycles),
        )

    def picture(self, recurrence: Recurrence) -> Picture:
        """Return the tree of a block, and the three kernels in words."""
        return self.drawn(
            recurrence,
            f"tiles of {self.tile} steps: reduce all, scan their elements, replay all",
            "First for every tile its element, then their scan, then every tile's replay: 3 "
            "kernels.",
        )
