"""The schedule of one pass: one block per tile waits for the elements of the tiles before it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Any, ClassVar

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.branch import Branch
from tvm_scan.schedules.common.ir import cell_count
from tvm_scan.schedules.common.lanes import carry_scratch
from tvm_scan.schedules.common.result import Built
from tvm_scan.schedules.common.sizes import element_parts, sizes_of
from tvm_scan.schedules.gpu.block.counts import tile_counts
from tvm_scan.schedules.gpu.block.tree_counts import thread_counts
from tvm_scan.schedules.gpu.grid.single_pass import TiledPass
from tvm_scan.schedules.gpu.shared.layout import streams_of
from tvm_scan.schedules.gpu.thread.ordered_memory import WORD, is_word
from tvm_scan.schedules.gpu.thread.plans import aligned
from tvm_scan.schedules.gpu.trees import Trees, leaves_chip_empty
from tvm_scan.schedules.machine.gpu_chip import CACHED, LITTLE, MEMORY, GpuChip, Work
from tvm_scan.schedules.machine.machine import Machine
from tvm_scan.schedules.picture import Picture
from tvm_scan.schedules.plan import ScanPlan

#: Bytes by which a block tells its threads which tile it has; of a word that blocks hand over.
_TICKET, _WORD = 4, tir.byte_size(WORD)


@dataclass(frozen=True)
class SinglePass(Trees):
    """One block per tile, which waits for the elements of the tiles before it.

    Attributes
    ----------
    threads_per_block, items_per_thread, block_tree, vector_loads, block_load
        See ``GpuPlan`` and ``TreePlan``.
    """

    algorithm: ClassVar[str] = "single_pass"
    wide: ClassVar[tuple[int, ...]] = (1, 2, 4)
    #: Registers would be held while the block waits for others; without them more blocks wait.
    holds_items: ClassVar[bool] = False
    threads_per_block: int = 0
    items_per_thread: int = 0
    block_tree: str = "blelloch"
    vector_loads: bool = False
    block_load: str = "direct"

    def check_own(self, recurrence: Recurrence, machine: Machine) -> None:
        """Check what blocks hand to each other, and that tickets count the tiles."""
        handed = _handed_over(recurrence)
        self.require(
            machine.device.ordered_memory,
            "a device whose stores release and whose loads acquire, for a single pass",
            f"{machine.device.name}, where they do not",
            "use algorithm three_phase",
        )
        self.require(
            all(is_word(dtype) for dtype in handed),
            "elements and carries of 32 or 64 bits for a single pass",
            ", ".join(dict.fromkeys(handed)),
            "use algorithm three_phase",
        )
        rows, length = sizes_of(recurrence)
        if rows is not None and length is not None:
            tiles = self.blocks(rows, length)
            self.require(
                tiles < 1 << 31,
                "fewer than 2^31 tiles, which tickets of 32 bits count",
                f"{tiles} tiles",
                "use larger tiles",
            )

    def blocks(self, rows: int, steps: int) -> int:
        """Blocks of the grid: one for every tile of every lane."""
        return rows * -(-steps // self.tile)

    def build(self, recurrence: Recurrence) -> Built:
        """Return two kernels: one clears the words, the other is the pass."""
        return TiledPass(recurrence, self).build()

    def shared_bytes(self, recurrence: Recurrence) -> int:
        """Shared memory of one block in bytes: the tree's and tiles', the ticket, the carries."""
        carries = [
            cell_count(carry) * tir.byte_size(tir.dtype_of(carry))
            for carry in carry_scratch(recurrence, [1])
        ]
        tree = self.slots_bytes(recurrence, self.threads_per_block)
        return aligned([*tree, *self.tile_bytes(recurrence), _TICKET, *carries])

    def work(self, recurrence: Recurrence, rows: float, steps: float, chip: GpuChip) -> Work:
        """Count what every tile hands over and looks up."""
        counts = tile_counts(self, recurrence, rows, steps)
        tiles, words, threads = counts.tiles, counts.words, self.threads_per_block
        # Every tile hands over its element, in words that are cleared before, and reads those of
        # half a window on average.
        looked_up = min(tiles, threads) / 2 * words * _WORD
        handed = rows * tiles * 2 * words * _WORD
        again = thread_counts(self, recurrence).reduce
        warps = rows * tiles * threads / 32
        return Work(
            moved=counts.moved + handed + rows * tiles * looked_up * CACHED,
            specials=2 * counts.specials,
            # The tree is used a second time, over the elements of the tiles before.
            issued=counts.issued + warps * again.issued,
            # And for the ticket.
            barriers=2 * counts.barriers + 1,
            shared=counts.shared,
            threads=rows * tiles * threads,
            # Trips through the cache: of the ticket, the elements before, and the carry. Windows
            # follow one another by two, a store and the load that sees it.
            chain=counts.cycles + counts.exchange_cycles + 3 * MEMORY,
            once=2 * MEMORY * ceil(tiles / threads),
            launches=1.0 + LITTLE,
            lines=counts.lines + warps * again.exchanged,
            lost=counts.lost,
        )

    @classmethod
    def space(cls, recurrence: Recurrence, machine: Machine) -> Iterator[Branch]:
        """Yield every tree worth trying, where elements can be handed over."""
        if _can_hand_over(recurrence, machine):
            yield from super().space(recurrence, machine)

    @classmethod
    def shortlist(cls, recurrence: Recurrence, machine: Machine) -> Iterator[ScanPlan]:
        """Yield what other trees do, of sizes that are known, or of few rows.

        States of many cells, whose elements are many words, were not measured.
        """
        known = all(size is not None for size in sizes_of(recurrence))
        few = leaves_chip_empty(recurrence, machine)
        many = any(carry.state_axes for carry in recurrence.carries)
        if (known or few) and not many and _can_hand_over(recurrence, machine):
            yield from super().shortlist(recurrence, machine)

    @classmethod
    def _loads(cls, plan: Any, recurrence: Recurrence, machine: Machine) -> Iterator[ScanPlan]:
        """The plan through shared memory, by whole lines, where an array can go there.

        Vectors of threads, which lie apart, took 1.15 to 1.25 times as long on an H100.
        """
        staged = plan.with_(block_load="transposed")
        yield staged if streams_of(staged, recurrence) else plan

    def picture(self, recurrence: Recurrence) -> Picture:
        """Return the tree of a block, and what it waits for."""
        return self.drawn(
            recurrence,
            f"tiles of {self.tile} steps: each waits for the elements of those before",
            "First the words are cleared, then every tile waits for those before it: 2 kernels.",
        )


def _can_hand_over(recurrence: Recurrence, machine: Machine) -> bool:
    words = all(is_word(dtype) for dtype in _handed_over(recurrence))
    return words and machine.device.ordered_memory


def _handed_over(recurrence: Recurrence) -> list[str]:
    carried = [dtype for _, dtype in element_parts(recurrence)]
    return [*carried, *(carry.dtype for carry in recurrence.carries)]
