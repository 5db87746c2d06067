"""Which values the decisions of a plan for CUDA may take."""

from __future__ import annotations

from math import prod
from typing import Any

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.state_split import NoSplit, split_of
from tvm_scan.schedules.gpu.checks import element_bytes, takes_single_pass, takes_warp_tree
from tvm_scan.schedules.gpu.shared.layout import along_time
from tvm_scan.schedules.gpu.shared.tables import tables_of
from tvm_scan.schedules.gpu.thread.vector_access import has_vectors
from tvm_scan.schedules.gpu.walk.chunk_checks import takes_chunks
from tvm_scan.schedules.gpu.walk.exponentials import exponentials_in_base_two
from tvm_scan.schedules.machine.limits import Limits
from tvm_scan.schedules.plan import ScanPlan

__all__ = ["cuda_branches", "extent_of", "powers", "registers_fit"]

#: A plan, and what is left to decide in it.
Bare = tuple[ScanPlan, tuple[tuple[str, tuple[int, ...]], ...]]
#: Stand-in for an extent that is not known until run time.
_UNKNOWN = 1 << 16
#: Lanes of a multiprocessor that leave no room for more, and steps of a chunk at least.
_FULL, _LEAST_CHUNK = 1024, 64
#: Threads of a block of a walk in chunks.
_SOME = (64, 128)
#: Threads of a warp.
_WARP = 32
#: 32-bit registers of a multiprocessor, and of one thread; the rest of a thread's own state.
_REGISTERS, _THREAD_REGISTERS, _BASE_REGISTERS = 65536, 255, 32


def cuda_branches(limits: Limits, recurrence: Recurrence) -> list[Bare]:
    """The space of plans on CUDA.

    Parameters
    ----------
    limits : Limits
        Of the target.
    recurrence : Recurrence
        What will run. Extents that are symbolic are taken as large.

    Returns
    -------
    list of (ScanPlan, choices)
        What a ``Branch`` is made of.
    """
    warp = min(32, limits.threads)
    found: list[Bare] = [(ScanPlan("cuda", "sequential", threads_per_block=warp), ())]
    threads = tuple(t for t in powers(32, 1024) if t <= limits.threads)
    rows = prod(extent_of(lane.extent) for lane in recurrence.lanes)
    if threads and rows > 1:
        base = ScanPlan("cuda", "lanes", threads_per_block=threads[0])
        found.append((base, (("threads_per_block", threads), *_chunks(1, limits, recurrence))))
    split = split_of(recurrence)
    states = 1 if isinstance(split, NoSplit) else split.states
    shared = tuple(s for s in powers(2, min(32, states)) if states % s == 0)
    if threads and shared:
        base = ScanPlan(
            "cuda",
            "lanes",
            threads_per_block=threads[0],
            items_per_thread=1,
            vector_loads=True,
            threads_per_lane=shared[0],
        )
        choices: tuple[Any, ...] = (("threads_per_block", tuple(t for t in threads if t <= 256)),)
        choices += (("items_per_thread", (1, 2, 4, 8)), ("threads_per_lane", shared))
        if exponentials_in_base_two(recurrence):
            choices += (("exp_share", (0, 4, 8)),)
        found.append((base, choices))
        found.append((base.with_(block_load="transposed"), (*choices, _stages(limits))))
        found += _shared_in_chunks(base, shared, limits, recurrence)
    length = extent_of(recurrence.time.extent)
    for algorithm in ("serial_tiles", "three_phase", "single_pass"):
        if algorithm == "single_pass" and not takes_single_pass(recurrence):
            continue
        # A block of more than two times the length has no work for most of its threads.
        in_block = tuple(t for t in powers(8, 1024) if t <= limits.threads and t <= 2 * length)
        items = tuple(i for i in powers(1, 64) if in_block and i * in_block[0] <= 2 * length)
        if in_block and items:
            for tree in _trees(recurrence):
                # The warp tree takes whole warps.
                some = tuple(t for t in in_block if tree != "warp" or t >= _WARP)
                if some:
                    base = ScanPlan("cuda", algorithm, some[0], items[0], tree)
                    choices = (("threads_per_block", some), ("items_per_thread", items))
                    if has_vectors(recurrence):
                        choices += (("vector_loads", (0, 1)),)
                    found.append((base, choices))
            if algorithm != "single_pass":
                found += _through_shared_memory(base, in_block, items, limits, recurrence)
    return found


def _chunks(shared: int, limits: Limits, recurrence: Recurrence) -> tuple[Any, ...]:
    """Chunks of time, where lanes alone leave the chip half empty and chunks have some lines."""
    rows = prod(extent_of(lane.extent) for lane in recurrence.lanes)
    if rows >= limits.multiprocessors * _FULL or not takes_chunks(shared, recurrence):
        return ()
    length = extent_of(recurrence.time.extent)
    few = tuple(c for c in (8, 32, 128) if c * _LEAST_CHUNK <= length)
    return (("chunks", (0, *few)),) if few else ()


def _shared_in_chunks(
    base: ScanPlan, shared: tuple[int, ...], limits: Limits, recurrence: Recurrence
) -> list[Bare]:
    """The same in chunks, with what else is decided as the default does."""
    chunks = _chunks(shared[0], limits, recurrence)
    if not chunks or limits.threads < _SOME[-1]:
        return []
    ((_, (_, *counts)),) = chunks
    base = base.with_(threads_per_block=_SOME[0], items_per_thread=4, chunks=counts[0])
    choices = (
        ("threads_per_block", _SOME),
        ("threads_per_lane", shared),
        ("chunks", tuple(counts)),
    )
    staged = base.with_(block_load="transposed", stages=2)
    return [(b, choices) for b in ([base, staged] if limits.async_copies else [base])]


def _stages(limits: Limits) -> tuple[str, tuple[int, ...]]:
    return "stages", (1, 2, 3) if limits.async_copies else (1,)


def _through_shared_memory(
    base: ScanPlan,
    threads: tuple[int, ...],
    items: tuple[int, ...],
    limits: Limits,
    recurrence: Recurrence,
) -> list[Bare]:
    """Tiles in shared memory: several items of whole warps, in one tree, as wide as may be."""
    threads = tuple(t for t in threads if _WARP <= t <= 512)
    items = tuple(i for i in items if 4 <= i <= 16)
    if not threads or not items:
        return []
    base = base.with_(
        threads_per_block=threads[0],
        items_per_thread=items[0],
        block_tree=_trees(recurrence)[-1],
        vector_loads=has_vectors(recurrence),
        block_load="transposed",
    )
    if not along_time(base, recurrence):
        return []
    choices: tuple[Any, ...] = (("threads_per_block", threads), ("items_per_thread", items))
    if base.algorithm == "serial_tiles":
        choices += (_stages(limits),)
    if tables_of(base.with_(lanes_per_block=2), recurrence):
        choices += (("lanes_per_block", (1, 2, 4, 8)),)
    return [(base, choices)]


def _trees(recurrence: Recurrence) -> list[str]:
    """The trees worth trying: Kogge-Stone only where the elements cannot be shuffled."""
    return ["blelloch", "warp" if takes_warp_tree(recurrence) else "kogge_stone"]


def registers_fit(plan: ScanPlan, recurrence: Recurrence) -> bool:
    """Whether the registers suffice, by an estimate from above: four elements and staged inputs."""
    if plan.algorithm in ("sequential", "lanes"):
        return True
    staged = 0 if any(c.state_axes for c in recurrence.carries) else len(recurrence.inputs)
    words = 4 * -(-element_bytes(recurrence) // 4) + staged * plan.items_per_thread
    needed = _BASE_REGISTERS + words
    return needed <= _THREAD_REGISTERS and needed * plan.threads_per_block <= _REGISTERS


def extent_of(extent: Any) -> int:
    """A constant extent, or a large one where it is symbolic."""
    value = tir.as_int(extent)
    return _UNKNOWN if value is None else value


def powers(first: int, last: int) -> list[int]:
    """Powers of two from ``first`` to ``last``."""
    return [1 << k for k in range(first.bit_length() - 1, last.bit_length())]
