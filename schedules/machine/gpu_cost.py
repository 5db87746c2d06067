"""Cost of a plan on a GPU, on paper: six bounds, of which the largest is the prediction.

memory       bytes / bandwidth, each array once (twice in three phases), and what is wasted of a
             32-byte sector; few threads cannot keep enough bytes under way (Little's law)
exponentials special functions / 16 per clock and multiprocessor
issue        instructions / 4 warps per clock and multiprocessor
lines        lines of memory that accesses touch, and shuffles / 1 per clock and multiprocessor
tensor       multiply-adds on tensor cores / what the documents of the architecture say
chain        the longest chain of dependences: latencies of memory, shuffles and barriers, and the
             instructions of one warp, which cannot follow each other at once; times the waves of
             blocks that follow one another

The other bounds are not wholly hidden behind the largest one. The constants are those of
``gpu_chip``, a row for every architecture; ``bench.gpu_choice`` compares predictions with times.
See docs/cuda/model.md; the schedules say what their plans do, ``walk.counts`` and
``block.tree_counts`` the instructions.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from tvm_scan.schedules.machine.cost import Cost
from tvm_scan.schedules.machine.gpu_chip import APART, LAUNCH, MEMORY, GpuChip, Work

#: What a bound that is not the largest still costs, as a share: overlap is not perfect. Of the
#: chain nothing, which other warps hide.
_NOT_HIDDEN = 0.12
#: Of the chain, what is not hidden where a block asks memory for little while it computes: beside
#: other blocks; and alone on its multiprocessor, where tiles follow one another.
_IN_TURN, _ALONE = 0.5, 1.0


@dataclass(frozen=True)
class GpuCost(Cost):
    """The prediction for one plan.

    Attributes
    ----------
    specials, shared : float
        Special functions; accesses of warps to shared memory, each of 128 bytes at most.
    occupancy : float
        Share of the threads that the chip holds: as many as there are, and as blocks of this size
        and with this shared memory leave room for. Registers are not modelled.
    memory, exponentials, issue, lines, chain, tensor : float
        Bounds in seconds; ``seconds`` is the largest of them, a share of the others, and the
        launches.
    """

    specials: float
    shared: float
    occupancy: float
    memory: float
    exponentials: float
    issue: float
    lines: float
    chain: float
    tensor: float


@dataclass(frozen=True)
class Block:
    """A block of a grid.

    Attributes
    ----------
    threads, all_threads : int
        Of a lane or of a walk; of all lanes of the block together.
    shared_bytes : int
        Of shared memory.
    waiting_bytes : float
        Bytes of memory that a thread has under way while it waits.
    in_turn : bool
        Whether a block asks memory for little while it computes, as trees do between two tiles.
    several_tiles : bool
        Whether a block takes one tile after another.
    """

    threads: int
    all_threads: int
    shared_bytes: int
    waiting_bytes: float
    in_turn: bool = False
    several_tiles: bool = False

    def at_once(self, chip: GpuChip) -> int:
        """Blocks that a multiprocessor holds, with their threads and their memory."""
        by_memory = chip.shared_bytes // max(1, self.shared_bytes + chip.block_bytes)
        return max(1, min(chip.blocks, by_memory, chip.threads // max(1, self.all_threads)))


def gpu_cost(work: Work, block: Block, chip: GpuChip, *, in_pairs: bool = False) -> GpuCost:
    """Predict what a plan takes.

    Parameters
    ----------
    work : Work
        What its schedule counts.
    block : Block
        Of its grid.
    chip : GpuChip
        The device.
    in_pairs : bool
        Whether its instructions multiply and add two numbers at once.
    """
    count, threads = float(chip.multiprocessors), work.threads
    under_way = threads * block.waiting_bytes
    speed = min(1.0, under_way / (chip.bandwidth * MEMORY / chip.clock))
    held = count * block.at_once(chip)
    waves = ceil(max(1.0, threads / block.all_threads / held))
    memory = (work.moved + work.lost) / (chip.bandwidth * max(speed, 1e-6))
    # A multiprocessor without a block does nothing.
    blocks = max(1.0, threads / block.threads)
    busy = min(count, blocks)
    exponentials = work.specials / (chip.special * busy * chip.clock)
    issued = work.issued - (work.paired if in_pairs else 0.0)
    issue = issued / (chip.issue * busy * chip.clock)
    # Blocks that follow one another each wait for themselves, and a warp for its own instructions.
    of_a_warp = APART * issued / max(1.0, threads / 32)
    latency = (max(work.chain, of_a_warp) * waves + work.once) / chip.clock
    lines = work.lines / (busy * chip.clock)
    tensor = work.tensor / (chip.tensor * busy * chip.clock)
    alone = block.several_tiles and blocks <= count
    shown = (_ALONE if alone else _IN_TURN) * block.in_turn
    rates = (memory + shown * latency, exponentials, issue, lines, tensor)
    others = sum(rates) - (max(rates) if max(rates) >= latency else 0.0)
    seconds = max(*rates, latency) + _NOT_HIDDEN * others
    return GpuCost(
        seconds=seconds + work.between / chip.clock + work.launches * LAUNCH,
        bytes=work.moved,
        work=issued,
        tasks=threads,
        waits=work.barriers,
        specials=work.specials,
        shared=work.shared,
        occupancy=min(threads, held * block.all_threads) / (count * chip.threads),
        memory=memory,
        exponentials=exponentials,
        issue=issue,
        lines=lines,
        chain=latency,
        tensor=tensor,
    )
