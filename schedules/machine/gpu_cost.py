"""Cost of a plan on a GPU, on paper: six bounds, of which the largest is the prediction.

memory       bytes / bandwidth, each array once (twice in three phases), and what is wasted of a
             32-byte sector; few threads cannot keep enough bytes under way (Little's law)
exponentials special functions / 16 per clock and multiprocessor
issue        instructions / 4 warps per clock and multiprocessor
lines        lines of memory that accesses touch, and shuffles / 1 per clock and multiprocessor
tensor       multiply-adds on tensor cores / what the documents of the architecture say
chain        the longest chain of dependences: latencies of memory, shuffles and barriers, times
             the waves of blocks that follow one another

The constants are those of an H200 and are checked by ``bench.gpu`` where there is one; the model
ranks plans, and its microseconds are no promise. See docs/cuda/model.md; ``gpu_chip`` has the
constants, the schedules say what their plans do, ``walk.counts`` the instructions.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm_scan.schedules.machine.cost import Cost
from tvm_scan.schedules.machine.gpu_chip import (
    BANDWIDTH,
    BLOCK_BYTES,
    BLOCKS,
    CLOCK,
    ISSUE,
    LAUNCH,
    MEMORY,
    RESIDENT,
    SHARED_BYTES,
    SPECIAL,
    THREADS,
    Work,
)

__all__ = ["BANDWIDTH", "CLOCK", "Block", "GpuCost", "gpu_cost"]

#: What a bound that is not the largest still costs, as a share: overlap is not perfect.
_NOT_HIDDEN = 0.1


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
        Bounds in seconds; ``seconds`` is the largest of them and the launches.
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

    @property
    def ranked(self) -> float:
        """The seconds, and a share of every bound."""
        bounds = self.memory + self.exponentials + self.issue + self.lines + self.chain
        bounds += self.tensor
        return self.seconds + _NOT_HIDDEN * bounds


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
    """

    threads: int
    all_threads: int
    shared_bytes: int
    waiting_bytes: float

    @property
    def at_once(self) -> int:
        """Threads that a multiprocessor holds: of whole blocks, and with their memory."""
        by_memory = SHARED_BYTES // (self.shared_bytes + BLOCK_BYTES)
        held = max(1, min(BLOCKS, by_memory, THREADS // max(1, self.all_threads)))
        return self.all_threads * held


def gpu_cost(work: Work, block: Block, multiprocessors: int, tensor_rate: float = 0.0) -> GpuCost:
    """Predict what a plan takes.

    Parameters
    ----------
    work : Work
        What its schedule counts.
    block : Block
        Of its grid.
    multiprocessors : int
        Of the device.
    tensor_rate : float
        ``Machine.tensor_rate``, for work on tensor cores.
    """
    chip, threads = float(multiprocessors), work.threads
    under_way = threads * block.waiting_bytes
    speed = min(1.0, under_way / (BANDWIDTH * MEMORY / CLOCK))
    held = chip * block.at_once
    memory = work.moved / (BANDWIDTH * max(speed, 1e-6))
    # A multiprocessor without a block does nothing.
    blocks = max(1.0, threads / block.threads)
    busy = min(chip, blocks)
    exponentials = work.specials / (SPECIAL * busy * CLOCK)
    issue = work.issued / (ISSUE * busy * CLOCK)
    # Blocks that follow one another each wait for themselves.
    latency = (work.chain * max(1.0, threads / (chip * RESIDENT)) + work.once) / CLOCK
    lines = work.lines / (busy * CLOCK)
    tensor = work.tensor / (tensor_rate * busy * CLOCK) if work.tensor else 0.0
    worst = max(memory, exponentials, issue, lines, latency, tensor)
    return GpuCost(
        seconds=worst + work.launches * LAUNCH,
        bytes=work.moved,
        work=work.issued,
        tasks=threads,
        waits=work.barriers,
        specials=work.specials,
        shared=work.shared,
        occupancy=min(threads, held) / (chip * THREADS),
        memory=memory,
        exponentials=exponentials,
        issue=issue,
        lines=lines,
        chain=latency,
        tensor=tensor,
    )
