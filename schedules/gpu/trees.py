"""The common part of the schedules of trees over tiles of time: checks, tiles, space, picture."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.branch import Branch, Choices, powers
from tvm_scan.schedules.common.sizes import element_bytes, element_parts, known_extent, sizes_of
from tvm_scan.schedules.common.state_split import NoSplit, split_of
from tvm_scan.schedules.common.strides import contiguous_axis
from tvm_scan.schedules.gpu.block.blelloch import padded
from tvm_scan.schedules.gpu.lanes import buffer_choices, tiles_of
from tvm_scan.schedules.gpu.shared.layout import along_time, lenders_of, streams_of
from tvm_scan.schedules.gpu.shared.staged import VECTOR
from tvm_scan.schedules.gpu.shared.tables import tables_of
from tvm_scan.schedules.gpu.thread.async_copy import can_copy
from tvm_scan.schedules.gpu.thread.banks import WARP
from tvm_scan.schedules.gpu.thread.plans import (
    TREES,
    TreePlan,
    aligned,
    moves_vectors,
    shuffles,
    waits_in_warps,
)
from tvm_scan.schedules.gpu.thread.vector_access import has_vectors
from tvm_scan.schedules.gpu.warp.shuffles import SHUFFLES, takes_warp_tree
from tvm_scan.schedules.machine.machine import Machine
from tvm_scan.schedules.picture import Picture, Tree
from tvm_scan.schedules.plan import ScanPlan

#: Words of two elements that a thread, which has 255 registers, holds beside everything else.
_ELEMENT_WORDS = 160
#: Words of an element up to which blocks of more than 128 threads have registers enough.
_SMALL_WORDS = 4
#: Lengths at which plans are compared where it is not known and rows are few.
_LENGTHS = (256, 4096, 65536, 1 << 22)
_NAMES = {"blelloch": "Blelloch", "kogge_stone": "Kogge-Stone", "warp": "warp"}
#: 32-bit registers of a multiprocessor, and of one thread; the rest of a thread's own state.
_REGISTERS, _THREAD_REGISTERS, _BASE_REGISTERS = 65536, 255, 32


class Trees(TreePlan):
    """A tree over the threads of a block, in tiles of time.

    Attributes
    ----------
    wide : tuple of int
        How many times the usual items of a thread are worth a look by default, of small elements.
    """

    wide: ClassVar[tuple[int, ...]] = (1,)
    in_turn: ClassVar[bool] = True

    @property
    def step_passes(self) -> int:
        """Tiles are reduced and replayed."""
        return 2

    @property
    def kind(self) -> tuple[Any, ...]:
        """The device, the algorithm, and how blocks load: through shared memory or not."""
        return self.device, self.algorithm, self.block_load

    @property
    def has_barriers(self) -> bool:
        """Return True: the threads of a block exchange."""
        return True

    # ---- check ---------------------------------------------------------------------------------

    def check_fit(self, recurrence: Recurrence, machine: Machine) -> None:
        """Check threads, the tree, the tiles, items and shared memory."""
        threads = self.threads_per_block
        self.require(
            2 <= threads <= machine.threads,
            f"2 to {machine.threads} threads per block",
            f"threads_per_block={threads}",
            "use fewer threads per block",
        )
        self._check_tree(recurrence, machine)
        self._check_tiles(recurrence, machine)
        self.require(
            1 <= self.items_per_thread <= 64,
            "1 to 64 items per thread",
            f"items_per_thread={self.items_per_thread}",
            "use 4 to 16",
        )
        self.check_own(recurrence, machine)
        self.check_room(recurrence, machine)

    def check_own(self, recurrence: Recurrence, machine: Machine) -> None:
        """Check what this schedule alone asks for."""

    def _check_tree(self, recurrence: Recurrence, machine: Machine) -> None:
        threads, tree = self.threads_per_block, self.block_tree
        self.require(
            tree in TREES,
            "one of " + ", ".join(TREES),
            f"block_tree={tree}",
            "leave block_tree at its default",
        )
        self.require(
            threads & (threads - 1) == 0,
            f"a power of two for the {_NAMES[tree]} tree",
            f"threads_per_block={threads}",
            f"use {1 << (threads.bit_length() - 1)}",
        )
        if tree == "warp":
            words = "32 or 64" if machine.device.shuffle_bits == 64 else "at most 32"
            self.check_shuffles(machine, SHUFFLES, "the warp tree", "use another block_tree")
            self.require(
                threads % WARP == 0,
                f"whole warps of {WARP} threads for the warp tree",
                f"threads_per_block={threads}",
                f"use {WARP}, or another tree",
            )
            self.require(
                takes_warp_tree(recurrence, machine.device.shuffle_bits),
                f"elements that shuffles of {machine.device.name} move, of {words} bits",
                ", ".join(dict.fromkeys(dtype for _, dtype in element_parts(recurrence))),
                "use block_tree=blelloch",
            )

    def _check_tiles(self, recurrence: Recurrence, machine: Machine) -> None:
        self.check_moves(machine)
        together = self.lanes_per_block
        self.require(
            together >= 1 and together * self.threads_per_block <= machine.threads,
            f"at least one lane per block, and at most {machine.threads} threads of all of them",
            f"lanes_per_block={together} of {self.threads_per_block} threads",
            "use fewer lanes or threads",
        )
        if self.block_load == "transposed":
            self.require(
                bool(streams_of(self, recurrence) or tables_of(self, recurrence)),
                "an array whose memory runs along time, and several vectors per thread, to "
                "transpose",
                f"none, with {self.items_per_thread} items per thread",
                "use block_load=direct",
            )

    # ---- count ---------------------------------------------------------------------------------

    def tile_bytes(self, recurrence: Recurrence) -> list[int]:
        """Return the bytes of every array of which the plan keeps tiles."""
        tables = [table.bytes * self.stages for table in tables_of(self, recurrence)]
        streams = streams_of(self, recurrence)
        lent = lenders_of(streams)
        return tables + [
            stream.bytes * self.lanes_per_block * (1 if stream.stored else self.stages)
            for stream in streams
            if stream not in lent
        ]

    def shared_bytes(self, recurrence: Recurrence) -> int:
        """Shared memory of one block in bytes: every part of every element, padded."""
        return aligned(
            [
                *self.slots_bytes(recurrence, self.threads_per_block),
                *self.tile_bytes(recurrence),
            ]
        )

    def slots_bytes(self, recurrence: Recurrence, threads: int) -> list[int]:
        """Bytes of every shared array of the tree, over so many threads of each lane."""
        return [
            slots * cells * tir.byte_size(dtype) * self.lanes_per_block
            for cells, dtype in element_parts(recurrence)
            for slots in slots_of(self.block_tree, threads, dtype)
        ]

    # ---- space and picture ---------------------------------------------------------------------

    @classmethod
    def space(cls, recurrence: Recurrence, machine: Machine) -> Iterator[Branch]:
        """Yield every tree worth trying, and tiles through shared memory."""
        length = known_extent(recurrence.time.extent)
        # A block of more than two times the length has no work for most of its threads.
        threads = tuple(t for t in powers(8, 1024) if t <= machine.threads and t <= 2 * length)
        items = tuple(i for i in powers(1, 64) if threads and i * threads[0] <= 2 * length)
        if not threads or not items:
            return
        for tree in trees_worth(recurrence, machine):
            # The warp tree takes whole warps.
            some = tuple(t for t in threads if tree != "warp" or t >= WARP)
            if some:
                base = cls.of(
                    cls.device,
                    cls.algorithm,
                    threads_per_block=some[0],
                    items_per_thread=items[0],
                    block_tree=tree,
                )
                choices: Choices = (("threads_per_block", some), ("items_per_thread", items))
                if moves_vectors(machine) and has_vectors(recurrence):
                    choices += (("vector_loads", (0, 1)),)
                yield Branch(base, choices)
        if "block_load" in cls.decisions():
            yield from cls._through_shared_memory(recurrence, machine, threads, items)

    @classmethod
    def _through_shared_memory(
        cls,
        recurrence: Recurrence,
        machine: Machine,
        threads: tuple[int, ...],
        items: tuple[int, ...],
    ) -> Iterator[Branch]:
        """Tiles in shared memory: several items of whole warps, in one tree, as wide as may be."""
        threads = tuple(t for t in threads if WARP <= t <= 512)
        items = tuple(i for i in items if 4 <= i <= (16 if cls.holds_items else 32))
        if not threads or not items:
            return
        base: Any = cls.of(
            cls.device,
            cls.algorithm,
            threads_per_block=threads[0],
            items_per_thread=items[0],
            block_tree=trees_worth(recurrence, machine)[-1],
            vector_loads=moves_vectors(machine) and has_vectors(recurrence),
            block_load="transposed",
        )
        if not along_time(base, recurrence):
            return
        choices: Choices = (("threads_per_block", threads), ("items_per_thread", items))
        if "stages" in cls.decisions():
            choices += (buffer_choices(machine),)
        several = "lanes_per_block" in cls.decisions()
        if several and tables_of(base.with_(lanes_per_block=2), recurrence):
            choices += (("lanes_per_block", (1, 2, 4, 8)),)
        yield Branch(base, choices)

    @classmethod
    def lengths(cls, recurrence: Recurrence, machine: Machine) -> tuple[int | None, ...]:
        """Several where it is not known and rows are few.

        What one block per row takes for a long one is a hundred times what many blocks take.
        """
        return _LENGTHS if leaves_chip_empty(recurrence, machine) else (None,)

    @classmethod
    def shortlist(cls, recurrence: Recurrence, machine: Machine) -> Iterator[ScanPlan]:
        """Yield blocks of some sizes, those of equal cost in the order of preference."""
        size, (rows, length) = element_bytes(recurrence), sizes_of(recurrence)
        if (length is not None and length <= 32) or 2 * size > 4 * _ELEMENT_WORDS:
            return
        known = rows is not None and length is not None
        # Of lengths that are not known, small tiles leave fewer threads without steps.
        items = 8 if size <= 16 and known else 4
        # Two barriers for a tile instead of some thirty, and next to no shared memory. Where all
        # of them are the block's, Kogge-Stone has half as many as Blelloch.
        worth = trees_worth(recurrence, machine)
        tree = "warp" if "warp" in worth else worth[0 if waits_in_warps(machine) else -1]
        # Of sizes that are not known, neither few rows nor short ones can be counted on.
        empty = leaves_chip_empty(recurrence, machine)
        sizes = (128, 256, 512) if empty else (128,)
        wide = cls.wide if empty or items == 8 else (1,)
        for threads in (256, 128, 512, 64, 32) if known else sizes:
            few = length is not None and threads > 32 and threads * items >= 2 * length
            large = threads > 128 and size > 4 * _SMALL_WORDS
            if few or large:
                continue
            for each in (items * times for times in wide):
                plan: Any = cls.of(
                    cls.device,
                    cls.algorithm,
                    threads_per_block=threads,
                    items_per_thread=each,
                    block_tree=tree,
                    vector_loads=moves_vectors(machine) and has_vectors(recurrence, each),
                )
                if each > items and not plan.registers_fit(recurrence):
                    continue
                every = cls._loads(plan, recurrence, machine)
                yield from (p for p in every if p.fits(recurrence, machine))

    @classmethod
    def _loads(cls, plan: Any, recurrence: Recurrence, machine: Machine) -> Iterator[ScanPlan]:
        """The plan, and with tiles in shared memory: two buffers hide memory's latency."""
        yield plan
        staged = plan.with_(block_load="transposed")
        if not streams_of(staged, recurrence):
            return
        # Threads that read their own items touch every line of a warp several times.
        yield staged
        if "stages" not in cls.decisions():
            return
        ahead = staged.with_(stages=2)
        whole = all(can_copy(s.copied_bytes) for s in streams_of(ahead, recurrence) if not s.stored)
        if machine.async_copies and whole:
            yield ahead

    def registers_fit(self, recurrence: Recurrence) -> bool:
        """Return whether the registers suffice, by an estimate: four elements and staged inputs."""
        staged = 0 if any(c.state_axes for c in recurrence.carries) else len(recurrence.inputs)
        held = self.holds_items or self.block_load == "direct"
        words = 4 * -(-element_bytes(recurrence) // 4)
        words += staged * (self.items_per_thread if held else VECTOR // 4)
        needed = _BASE_REGISTERS + words
        return needed <= _THREAD_REGISTERS and needed * self.threads_per_block <= _REGISTERS

    def drawn(self, recurrence: Recurrence, grid: str, legend: str) -> Picture:
        """Draw the tree of a block; ``grid`` says what the blocks do, ``legend`` what is next."""
        shared = f"{self.shared_bytes(recurrence)} bytes of shared memory"
        tree = {
            "blelloch": f"Blelloch tree in padded {shared}",
            "kogge_stone": f"Kogge-Stone tree in {shared}",
            "warp": f"shuffles within warps, their totals through {shared}",
        }[self.block_tree]
        size = f"{element_bytes(recurrence)} bytes per element"
        lines = [
            ("grid", grid),
            ("block", f"{self.threads_per_block} threads, {tree} ({size})"),
            (
                "thread",
                f"{self.items_per_thread} steps in a row, reduced in registers, then replayed",
            ),
        ]
        if self.block_load == "transposed":
            lines.append(("loads", tiles_of(self.stages)))
        drawing = Tree(self.block_tree, self.threads_per_block, self.items_per_thread, legend)
        return Picture(tuple(lines), (drawing,))


def leaves_chip_empty(recurrence: Recurrence, machine: Machine) -> bool:
    """Return whether a block per row leaves the chip half empty, where no length is known."""
    rows, length = sizes_of(recurrence)
    takes_lanes = (
        not isinstance(split_of(recurrence), NoSplit) or contiguous_axis(recurrence) == "lane"
    )
    few = rows is not None and rows < 2 * machine.multiprocessors
    return few and length is None and not takes_lanes


def slots_of(tree: str, threads: int, dtype: str) -> list[int]:
    """Elements that each shared array of a tree holds."""
    if tree == "warp":
        return [2 * threads // WARP] if threads > WARP else []
    if tree == "kogge_stone":
        return [2 * threads]
    return [padded(threads - 1, dtype) + 1, 1]


def trees_worth(recurrence: Recurrence, machine: Machine) -> list[str]:
    """The trees worth trying: Kogge-Stone only where the elements cannot be shuffled."""
    shuffled = shuffles(machine, SHUFFLES) and takes_warp_tree(
        recurrence, machine.device.shuffle_bits
    )
    last = "warp" if shuffled else "kogge_stone"
    return ["blelloch", last]
