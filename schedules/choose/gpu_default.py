"""The plan on CUDA when nobody tuned: the best of a few by the cost model on paper."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from statistics import geometric_mean

from tvm_scan.errors import PlanError
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.sizes import element_bytes, known_extent, known_rows, sizes_of
from tvm_scan.schedules.common.state_split import NoSplit, split_of
from tvm_scan.schedules.common.strides import contiguous_axis
from tvm_scan.schedules.gpu.lanes import Lanes
from tvm_scan.schedules.gpu.model import predict
from tvm_scan.schedules.gpu.serial_tiles import SerialTiles
from tvm_scan.schedules.gpu.shared.layout import streams_of
from tvm_scan.schedules.gpu.thread.async_copy import can_copy
from tvm_scan.schedules.gpu.thread.plans import GpuPlan
from tvm_scan.schedules.gpu.thread.vector_access import has_vectors
from tvm_scan.schedules.gpu.three_phase import ThreePhase
from tvm_scan.schedules.gpu.warp.tree import takes_warp_tree
from tvm_scan.schedules.machine.limits import Limits

__all__ = ["cuda_default"]

Tiles = SerialTiles | ThreePhase

#: Words of two elements that a thread, which has 255 registers, holds beside everything else.
_ELEMENT_WORDS = 160
#: Words of an element up to which blocks of more than 128 threads have registers enough.
_SMALL_WORDS = 4
#: Chunks of a walk, the fewest first; steps of one at least; threads of a multiprocessor beyond
#: which there is no need of any; how much less than without them they must cost.
_CHUNKS, _LEAST_CHUNK, _BUSY, _CLEARLY = (4, 8, 16, 32, 64, 128), 64, 1024, 0.85
#: Lengths for which plans are compared where it is not known and rows are few.
_LENGTHS = (256, 4096, 65536, 1 << 20)
#: What a bound that is not the largest still costs, as a share: overlap is not perfect.
_NOT_HIDDEN = 0.1


@lru_cache(maxsize=64)
def cuda_default(limits: Limits, recurrence: Recurrence) -> GpuPlan:
    """Choose among lanes, shared lanes and trees of several sizes.

    Lanes in chunks of time are taken where they cost clearly less: they launch three kernels.

    Parameters
    ----------
    limits : Limits
        Of the target.
    recurrence : Recurrence
        What will run. Extents that are symbolic are taken as 4096; the length of few rows, as
        each of several, whose costs have the least geometric mean: what one block per row takes
        for a long one is a hundred times what many blocks take.

    Returns
    -------
    GpuPlan
        A plan that passes ``check``; the first of those that the model cannot tell apart.
    """
    lanes = Lanes(threads_per_block=min(128, limits.threads))
    found = [lanes, *(p for p in _candidates(limits, recurrence) if _fits(p, limits, recurrence))]
    chunked = [p for p in _in_chunks(found, limits, recurrence) if _fits(p, limits, recurrence)]

    lengths = _LENGTHS if _has_few_rows(limits, recurrence) else (None,)

    def cost(plan: GpuPlan) -> float:
        costs = []
        for length in lengths:
            made = predict(plan, recurrence, limits, length)
            bounds = made.memory + made.exponentials + made.issue + made.lines + made.chain
            costs.append(made.seconds + _NOT_HIDDEN * bounds)
        # Two digits: what is closer than that, the order of the candidates decides.
        return float(f"{geometric_mean(costs):.1e}")

    best = min(found, key=cost)
    other = min(chunked, key=cost, default=best)
    return other if cost(other) < _CLEARLY * cost(best) else best


def _has_few_rows(limits: Limits, recurrence: Recurrence) -> bool:
    """Whether a block per row would leave the chip half empty, of a length that is not known."""
    rows, length = sizes_of(recurrence)
    walks = not isinstance(split_of(recurrence), NoSplit) or contiguous_axis(recurrence) == "lane"
    few = rows is not None and rows < 2 * limits.multiprocessors
    return few and length is None and not walks


def _in_chunks(plans: list[GpuPlan], limits: Limits, recurrence: Recurrence) -> Iterator[GpuPlan]:
    """Walks whose lanes leave the chip half empty, cut into chunks of some lines.

    Of sizes that are not known only lanes that are neighbours in memory, a thread each: a tree
    reads eight times what it needs there, and a whole walk of few lanes waits for memory at every
    step; chunks of many lanes read their inputs twice, which is the least evil.
    """
    known = None not in sizes_of(recurrence)
    rows = known_rows(recurrence)
    length = known_extent(recurrence.time.extent)
    for plan in plans:
        if not isinstance(plan, Lanes):
            continue
        if not known and (plan.threads_per_lane > 1 or contiguous_axis(recurrence) != "lane"):
            continue
        threads = rows * plan.threads_per_lane
        if 0 < threads < limits.multiprocessors * _BUSY:
            # Of short sequences, most of many chunks would be empty.
            for chunks in _CHUNKS if known else _CHUNKS[:2]:
                if chunks * _LEAST_CHUNK <= length:
                    yield plan.with_(chunks=chunks)


def _fits(plan: GpuPlan, limits: Limits, recurrence: Recurrence) -> bool:
    try:
        plan.check_fit(recurrence, limits)
    except PlanError:
        return False
    return True


def _candidates(limits: Limits, recurrence: Recurrence) -> Iterator[GpuPlan]:
    """Those of equal cost in the order in which they are preferred."""
    yield from _shared_lanes(limits, recurrence)
    size, (rows, length) = element_bytes(recurrence), sizes_of(recurrence)
    if (length is not None and length <= 32) or 2 * size > 4 * _ELEMENT_WORDS:
        return
    known = rows is not None and length is not None
    # Of lengths that are not known, small tiles leave fewer threads without steps.
    items = 8 if size <= 16 and known else 4
    warp = takes_warp_tree(recurrence)
    vectors = has_vectors(recurrence, items)
    for schedule in (SerialTiles, ThreePhase):
        # Of sizes that are not known, neither few rows nor short ones can be counted on.
        sizes = (128, 256, 512) if _has_few_rows(limits, recurrence) else (128,)
        for threads in (128, 256, 512, 64, 32) if known else sizes:
            few = length is not None and threads > 32 and threads * items >= 2 * length
            large = threads > 128 and size > 4 * _SMALL_WORDS
            if not few and not large:
                plan: Tiles = schedule(threads, items, vector_loads=vectors)
                # Two barriers for a tile instead of some thirty, and next to no shared memory.
                plan = plan.with_(block_tree="warp") if warp else plan
                yield plan
                yield from _through_shared_memory(plan, limits, recurrence)


def _shared_lanes(limits: Limits, recurrence: Recurrence) -> Iterator[GpuPlan]:
    """Threads share the states of a lane: every exponential once, time in series."""
    split = split_of(recurrence)
    if isinstance(split, NoSplit):
        return
    counts = [s for s in (4, 8, 16, 32, 2) if split.states % s == 0]
    # Two threads read half a sector of memory: only where the states allow no more.
    for shared in counts[:1] if counts == [2] else [s for s in counts if s > 2]:
        plan = Lanes(  # Few lanes spread over more multiprocessors in small blocks.
            threads_per_block=128 if shared <= 8 else 64,
            items_per_thread=4,
            vector_loads=True,
            threads_per_lane=shared,
        )
        yield plan
        if limits.async_copies:
            yield plan.with_(block_load="transposed", stages=2)


def _through_shared_memory(plan: Tiles, limits: Limits, recurrence: Recurrence) -> Iterator[Tiles]:
    """The same with tiles in shared memory: two buffers hide memory's latency between tiles."""
    staged = plan.with_(block_load="transposed")
    if not streams_of(staged, recurrence):
        return
    if not plan.vector_loads:
        # Threads that read their own items one by one touch every line of a warp each time.
        yield staged
    if not isinstance(staged, SerialTiles):
        return
    ahead = staged.with_(stages=2)
    whole = all(can_copy(s.copied_bytes) for s in streams_of(ahead, recurrence) if not s.stored)
    if limits.async_copies and whole:
        yield ahead
