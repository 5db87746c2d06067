"""Decisions that plans of GPUs have in common: the code of several schedules reads them.

A value here stands for every schedule in which it is no decision; a schedule whose decision it is
has a field of that name.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from math import log2
from typing import ClassVar

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.sizes import (
    element_bytes,
    element_parts,
    known_extent,
    known_rows,
    sizes_of,
)
from tvm_scan.schedules.gpu.thread.banks import WARP
from tvm_scan.schedules.machine.gpu_chip import GpuChip, Work
from tvm_scan.schedules.machine.gpu_cost import Block, GpuCost, gpu_cost
from tvm_scan.schedules.machine.machine import Machine
from tvm_scan.schedules.plan import ScanPlan

#: The trees over the threads of a block.
TREES = ("blelloch", "kogge_stone", "warp")
#: Where the items of a block's threads are exchanged.
BLOCK_LOADS = ("direct", "transposed")
#: Bits of a vector of ``vector_loads``.
VECTOR_BITS = 128
#: TVM aligns every shared array to this many bytes.
_ALIGNMENT = 64
#: Most buffers for the inputs of a tile.
_MOST_BUFFERS = 3
#: Steps that the tiles or chunks of a row may have beyond its end.
_BEYOND = 1 << 24


class GpuPlan(ScanPlan):
    """A plan of a GPU.

    Attributes
    ----------
    threads_per_block : int
        Threads of a block; in a tree, of a lane in a block.
    items_per_thread : int
        Consecutive steps that one thread takes.
    vector_loads : bool
        Loads and stores of 128 bits, where length and layout align them.
    block_load : {"direct", "transposed"}
        Whether each thread moves its own items, or the block moves whole lines, which its threads
        exchange in padded shared memory.
    stages : int
        Buffers for the inputs of a tile, 1 to 3; the asynchronous copies of all but one are under
        way while a tile is computed.
    lanes_per_block : int
        Lanes of a block of a tree, each with ``threads_per_block`` threads.
    chunks : int
        Chunks of time per lane, each walked by threads of its own: reduced first, and replayed from
        its carry; 0 for none.
    waiting_bytes : float
        Bytes of memory that a thread has under way while it waits.
    in_turn : bool
        Whether a block asks memory for little while it computes.
    walks_tiles : bool
        Whether a block of a tree takes one tile of its lanes after another.
    """

    device: ClassVar[str] = "cuda"
    words: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "block_tree": TREES,
        "block_load": BLOCK_LOADS,
    }
    threads_per_block: int = 0
    items_per_thread: int = 0
    vector_loads: bool = False
    block_load: str = "direct"
    stages: int = 1
    lanes_per_block: int = 1
    chunks: int = 0
    waiting_bytes: ClassVar[float] = 16.0
    in_turn: ClassVar[bool] = False
    walks_tiles: ClassVar[bool] = False

    @property
    def has_scratch(self) -> bool:
        """Return whether kernels hand elements and carries to each other."""
        return False

    @abstractmethod
    def work(self, recurrence: Recurrence, rows: float, steps: float, chip: GpuChip) -> Work:
        """Count what the plan does for so many lanes and steps, on a chip with such a cache."""

    @abstractmethod
    def blocks(self, rows: int, steps: int) -> int:
        """Blocks of the largest grid."""

    @abstractmethod
    def tile_bytes(self, recurrence: Recurrence) -> list[int]:
        """Shared memory of every array of which the plan keeps tiles, all its buffers together."""

    def cost(self, recurrence: Recurrence, machine: Machine, steps: int | None = None) -> GpuCost:
        """Predict the time; extents that are not known count as ``UNKNOWN``."""
        length = float(steps or known_extent(recurrence.time.extent))
        block = Block(
            self.threads_per_block,
            self.threads_per_block * self.lanes_per_block,
            self.shared_bytes(recurrence),
            # Each thread has some loads under way: vectors, or those of unrolled steps.
            max(64.0 if self.vector_loads else self.waiting_bytes, self._bytes_ahead(recurrence)),
            self.in_turn,
            self.walks_tiles,
        )
        work = self.work(recurrence, float(known_rows(recurrence)), length, machine.gpu)
        return gpu_cost(work, block, machine.gpu, in_pairs=machine.device.pairs)

    def _bytes_ahead(self, recurrence: Recurrence) -> float:
        """Bytes that a thread has under way while it computes: its share of all buffers but one."""
        if self.stages == 1:
            return 0.0
        share = (self.stages - 1) / self.stages / self.threads_per_block
        return sum(self.tile_bytes(recurrence)) * share

    def check_moves(self, machine: Machine) -> None:
        """Check the decisions about how a block loads its tiles, and its threads their items."""
        self.require(
            not self.vector_loads or moves_vectors(machine),
            f"a device that loads {VECTOR_BITS} bits at once, for vector_loads",
            f"{machine.device.vector_bits} of {machine.device.name}",
            "leave vector_loads at its default",
        )
        self.require(
            self.block_load in BLOCK_LOADS,
            "one of " + ", ".join(BLOCK_LOADS),
            f"block_load={self.block_load}",
            "leave block_load at its default",
        )
        self.require(
            1 <= self.stages <= _MOST_BUFFERS,
            f"1 to {_MOST_BUFFERS} buffers of a tile",
            f"stages={self.stages}",
            "use 2",
        )
        if self.stages == 1:
            return
        self.require(
            self.block_load == "transposed",
            "block_load=transposed for several buffers of a tile",
            f"block_load={self.block_load}, stages={self.stages}",
            "use stages=1",
        )
        self.require(
            machine.device.async_copies,
            "a device with asynchronous copies to shared memory for several buffers of a tile",
            f"{machine.device.name}, which has none",
            "use stages=1",
        )
        self.require(
            machine.async_copies,
            "a target of sm_80 or later for several buffers of a tile",
            "an older one, or one that does not say",
            'use stages=1, or name the target\'s "arch"',
        )

    def check_shuffles(self, machine: Machine, kinds: Iterable[str], what: str, fix: str) -> None:
        """Check that threads of a warp can exchange what is said, by shuffles."""
        device, wanted = machine.device, ", ".join(f"tvm_warp_shuffle{kind}" for kind in kinds)
        has = [f"tvm_warp_shuffle{kind}" for kind in sorted(device.shuffles)]
        self.require(
            shuffles(machine, kinds),
            f"a device with shuffles of {WARP} threads ({wanted}) for {what}",
            f"{device.name} with {', '.join(has) or 'no shuffles'}, in warps of {machine.warp}",
            fix,
        )

    def check_room(self, recurrence: Recurrence, machine: Machine) -> None:
        """Check the shared memory of a block, and how many blocks and steps are counted.

        Time holds less than 2^31 steps. Symbolic extents are taken as fitting.
        """
        used = self.shared_bytes(recurrence)
        fewer = "fewer buffers of a tile (stages), or " if self.stages > 1 else ""
        self.require(
            used <= machine.shared_bytes,
            f"at most {machine.shared_bytes} bytes of shared memory",
            f"{used} bytes ({element_bytes(recurrence)} per thread, padded, for "
            f"{self.threads_per_block} threads)",
            f"use {fewer}fewer threads per block",
        )
        self._check_buffers(recurrence, machine)
        rows, length = sizes_of(recurrence)
        wide = tir.dtype_of(recurrence.time.var) == "int64" and "int64" not in machine.device.lacks
        most = (1 << (63 if wide else 31)) - _BEYOND
        self.require(
            length is None or length <= most,
            f"at most {most} steps, so that the end of the last tile can be counted",
            f"{length} steps",
            "cut time into several loops"
            if "int64" in machine.device.lacks
            else "write the extents of its loops as T.int64(n), and fewer than 2^63",
        )
        if rows is None or length is None:
            return
        blocks = self.blocks(rows, length)
        self.require(
            blocks <= machine.device.blocks,
            f"at most {machine.device.blocks} blocks, as a grid has",
            f"{blocks} blocks",
            "use larger tiles, or algorithm lanes",
        )

    def _check_buffers(self, recurrence: Recurrence, machine: Machine) -> None:
        """Check how many buffers a kernel of the plan is given at most."""
        arrays = tir.VarMap((b, True) for b in (*recurrence.inputs, *recurrence.outputs))
        elements, carries = len(element_parts(recurrence)), len(recurrence.carries)
        # Of three kernels, the middle one has no arrays but the states' own.
        scratch = max(elements, carries) if self.has_scratch else 0
        count = len(arrays) + scratch
        least = f"{len(arrays)} of the loop itself" + (
            f", {scratch} between kernels" * (scratch > 0)
        )
        self.require(
            count <= machine.device.buffers,
            f"at most {machine.device.buffers} buffers in a kernel of {machine.device.name}",
            f"{count} ({least})",
            "use an algorithm of one kernel, lanes or serial_tiles"
            if len(arrays) <= machine.device.buffers
            else "pack several arrays into one, or leave optional ones out",
        )


class WalkPlan(GpuPlan):
    """A plan whose threads walk time.

    Attributes
    ----------
    threads_per_lane : int
        Threads that share the states of a lane and walk time together, ``threads_per_lane *
        items_per_thread`` steps at a time; 1 for a thread with all states.
    exp_share : int
        Of 16 exponentials in base 2 over the states, how many a polynomial computes while the
        others take the special function unit.
    splits_steps : bool
        Whether the walk takes a step apart, into what concerns its states and what does not.
    """

    threads_per_lane: int = 1
    exp_share: int = 0
    waiting_bytes: ClassVar[float] = 32.0

    @property
    def splits_steps(self) -> bool:
        """Return whether threads share lanes, or the block has tiles."""
        return self.threads_per_lane > 1 or self.block_load == "transposed"

    def combines(self, steps: int) -> float:
        """Combinations of the reduction of chunks."""
        return float(steps + self.chunks) if self.chunks else 0.0

    def blocks(self, rows: int, steps: int) -> int:
        """Blocks of the grid, chunks included."""
        threads = rows * self.threads_per_lane * max(1, self.chunks)
        return -(-threads // max(1, self.threads_per_block))


class TreePlan(GpuPlan):
    """A plan whose blocks scan tiles of time by a tree over their threads.

    Attributes
    ----------
    block_tree : {"blelloch", "kogge_stone", "warp"}
        How the threads of a block exchange: upsweep and downsweep in padded shared memory, doubling
        distances in shared memory, or shuffles within warps and one element per warp.
    passes : int
        How often an input is loaded.
    holds_items : bool
        Whether threads hold in registers, from the reduction to the replay, what they take from a
        tile in shared memory, and do not take it twice.
    """

    block_tree: str = "blelloch"
    passes: ClassVar[int] = 1
    holds_items: ClassVar[bool] = True

    def combines(self, steps: int) -> float:
        """Combinations of every step into its thread's element, and of the tree of every tile."""
        threads = self.threads_per_block
        each = 2.0 if self.block_tree == "blelloch" else log2(threads) + 1
        return steps + -(-steps // self.tile) * threads * each

    @property
    def tile(self) -> int:
        """Steps in one tile of a block."""
        return self.threads_per_block * self.items_per_thread


def shuffles(machine: Machine, kinds: Iterable[str]) -> bool:
    """Return whether a machine has these shuffles, in groups as wide as kernels take warps for."""
    groups = machine.device.parts_of_warps and machine.warp % WARP == 0
    return (groups or machine.warp == WARP) and machine.device.shuffles.issuperset(kinds)


def waits_in_warps(machine: Machine) -> bool:
    """Return whether threads of a warp, as wide as kernels take it for, can wait for others."""
    return machine.warp == WARP and machine.device.warp_barrier


def moves_vectors(machine: Machine) -> bool:
    """Return whether a thread loads and stores a vector at once."""
    return machine.device.vector_bits >= VECTOR_BITS


def aligned(sizes: list[int]) -> int:
    """Bytes of arrays, in whatever order the assembler lays them out."""
    return sum(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)
