"""What a plan costs on a GPU, on paper: five bounds, of which the largest is the prediction.

memory       bytes / bandwidth, each array once (twice in three phases), and what is wasted of a
             32-byte sector; few threads cannot keep enough bytes under way (Little's law)
exponentials special functions / 16 per clock and multiprocessor
issue        instructions / 4 warps per clock and multiprocessor
lines        lines of memory that accesses touch, and shuffles / 1 per clock and multiprocessor
chain        the longest chain of dependences: latencies of memory, shuffles and barriers, times
             the waves of blocks that follow one another

The constants are those of an H200 and are checked by ``bench.gpu`` where there is one; the model
ranks plans, and its microseconds are no promise. See docs/cuda.md; ``machine.gpu_chip`` has the
constants, the schedules say what their plans do, ``walk.counts`` the instructions.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.sizes import known_extent, known_rows
from tvm_scan.schedules.gpu.shared.counts import bytes_ahead
from tvm_scan.schedules.gpu.thread.plans import GpuPlan
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
)
from tvm_scan.schedules.machine.limits import Limits

__all__ = ["BANDWIDTH", "CLOCK", "CudaCost", "predict"]


@dataclass(frozen=True)
class CudaCost:
    """The prediction for one plan.

    Attributes
    ----------
    bytes, specials, instructions : float
        Of the whole run; instructions are counted in warps.
    barriers, shared : float
        Barriers that a block passes, of all kernels together; accesses of warps to shared memory
        in the whole run, each of 128 bytes at most.
    occupancy : float
        Share of the threads that the chip holds: as many as there are, and as blocks of this size
        and with this shared memory leave room for. Registers are not modelled.
    memory, exponentials, issue, lines, chain : float
        Bounds in seconds.
    seconds : float
        The largest of them and the launches.
    """

    bytes: float
    specials: float
    instructions: float
    barriers: float
    shared: float
    occupancy: float
    memory: float
    exponentials: float
    issue: float
    lines: float
    chain: float
    seconds: float


def predict(
    plan: GpuPlan, recurrence: Recurrence, limits: Limits, length: int | None = None
) -> CudaCost:
    """Predict what a plan takes.

    Parameters
    ----------
    plan : GpuPlan
        Fit for the recurrence.
    recurrence : Recurrence
        What runs. Extents that are symbolic are taken as 4096.
    limits : Limits
        Of the target; only the number of multiprocessors counts.
    length : int, optional
        Number of steps, where it is symbolic, in place of 4096.

    Returns
    -------
    CudaCost
    """
    chip = float(limits.multiprocessors)
    rows = float(known_rows(recurrence))
    steps = float(length or known_extent(recurrence.time.extent))
    work = plan.work(recurrence, rows, steps)
    threads = work.threads
    # Each thread has some loads under way while it waits: vectors, or those of unrolled steps.
    waiting = 64.0 if plan.vector_loads else plan.waiting_bytes
    under_way = threads * max(waiting, bytes_ahead(plan, recurrence))
    speed = min(1.0, under_way / (BANDWIDTH * MEMORY / CLOCK))
    held = chip * _threads_at_once(plan, recurrence)
    memory = work.moved / (BANDWIDTH * max(speed, 1e-6))
    # A multiprocessor without a block does nothing.
    blocks = max(1.0, threads / plan.threads_per_block)
    busy = min(chip, blocks)
    exponentials = work.specials / (SPECIAL * busy * CLOCK)
    issue = work.issued / (ISSUE * busy * CLOCK)
    # Blocks that follow one another each wait for themselves.
    latency = (work.chain * max(1.0, threads / (chip * RESIDENT)) + work.once) / CLOCK
    lines = work.lines / (busy * CLOCK)
    worst = max(memory, exponentials, issue, lines, latency)
    return CudaCost(
        work.moved,
        work.specials,
        work.issued,
        work.barriers,
        work.shared,
        min(threads, held) / (chip * THREADS),
        memory,
        exponentials,
        issue,
        lines,
        latency,
        worst + work.launches * LAUNCH,
    )


def _threads_at_once(plan: GpuPlan, recurrence: Recurrence) -> int:
    """Threads that a multiprocessor holds at once: of whole blocks, and with their memory."""
    block = plan.threads_per_block * plan.lanes_per_block
    by_memory = SHARED_BYTES // (plan.shared_bytes(recurrence) + BLOCK_BYTES)
    return block * max(1, min(BLOCKS, by_memory, THREADS // max(1, block)))
