"""Work of an H200 per clock, its latencies, and what a plan asks of it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BANDWIDTH", "CLOCK", "Work"]

#: Bytes per second of a measured copy, and the clock under load.
BANDWIDTH, CLOCK = 4.3e12, 1.755e9
#: Per clock and multiprocessor: special functions, instructions of warps.
SPECIAL, ISSUE = 16.0, 4.0
#: Cycles until memory answers, a level of shuffles or of a tree, a barrier, an exponential.
MEMORY, LEVEL, BARRIER, EXP = 700.0, 35.0, 40.0, 60.0
#: Seconds of a launch after another one.
LAUNCH = 2.5e-6
#: In a tree, instructions around a special function; threads that a multiprocessor holds at 64
#: registers.
AROUND, RESIDENT = 6.0, 1024
#: Threads, blocks and bytes of shared memory of a multiprocessor; bytes of a block beside its own.
THREADS, BLOCKS, SHARED_BYTES, BLOCK_BYTES = 2048, 32, 228 << 10, 1 << 10
#: Steps that the compiler overlaps in a serial loop.
UNROLLED = 4
#: What a byte from the second-level cache costs, as a share of one from memory; its bytes.
CACHED, CACHE_BYTES = 0.4, 30e6


@dataclass(frozen=True)
class Work:
    """Work of a plan, before it is known how fast.

    Attributes
    ----------
    moved, specials, issued : float
        Bytes, special functions, instructions of warps.
    barriers, shared : float
        Barriers that a block passes, of all kernels together; accesses of warps to shared memory,
        each of 128 bytes at most.
    threads : float
        All of them.
    chain, once : float
        Cycles that every block waits for itself; cycles that only pass once.
    launches : float
        Kernels.
    lines : float
        Cycles in which a multiprocessor's load and store unit is busy, of all of them together.
    tensor : float
        Multiply-adds of tf32 on tensor cores.
    """

    moved: float
    specials: float
    issued: float
    barriers: float
    shared: float
    threads: float
    chain: float
    once: float
    launches: float
    lines: float
    tensor: float = 0.0
