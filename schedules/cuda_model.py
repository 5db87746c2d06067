"""What a plan costs on a GPU, on paper: five bounds, of which the largest is the prediction.

memory       bytes / bandwidth, each array once (twice in three phases), and what is wasted of a
             32-byte sector; few threads cannot keep enough bytes under way (Little's law)
exponentials special functions / 16 per clock and multiprocessor
issue        instructions / 4 warps per clock and multiprocessor
lines        of trees: lines of memory that accesses touch / 1 per clock and multiprocessor
chain        the longest chain of dependences: latencies of memory, shuffles and barriers, times
             the waves of blocks that follow one another

The constants are those of an H200 and are checked by ``bench.gpu`` where there is one; the model
ranks plans, and its microseconds are no promise. See docs/cuda.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, log2, prod
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call
from tvm.ir.expr import TensorLoad

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.cuda_checks import carry_threads, element_bytes, shared_bytes
from tvm_scan.schedules.cuda_exponentials import OF, exponentials_in_base_two
from tvm_scan.schedules.limits import Limits
from tvm_scan.schedules.plan import ScanPlan
from tvm_scan.schedules.staging_model import bytes_ahead, lines_of_step, shared_accesses
from tvm_scan.schedules.strides import contiguous_axis
from tvm_scan.schedules.walk_layout import walk_steps

__all__ = ["CudaCost", "StepCost", "predict", "step_cost"]

#: Bytes per second of a measured copy on an H200, and its clock under load.
BANDWIDTH, CLOCK = 4.3e12, 1.755e9
#: Per clock and multiprocessor: special functions, instructions of warps.
_SPECIAL, _ISSUE = 16.0, 4.0
#: Cycles until memory answers, a level of shuffles or of a tree, a barrier, an exponential.
_MEMORY, _LEVEL, _BARRIER, _EXP = 700.0, 35.0, 40.0, 60.0
#: Seconds of a launch after another one.
_LAUNCH = 2.5e-6
#: Instructions around a special function; threads that a multiprocessor holds at 64 registers.
_AROUND, _RESIDENT = 6.0, 1024
#: Instructions of ``exp2_in_range``: 4 of the interval, 3 of the reduction, 6 multiply-adds, 2 of
#: the power of two.
_POLYNOMIAL = 15.0
#: Steps that the compiler overlaps in a serial loop.
_UNROLLED = 4
_SPECIALS = ("exp", "exp2", "log", "log2", "log1p", "tanh", "sigmoid", "pow", "sqrt", "rsqrt")
_UNKNOWN = 4096
#: What a byte from the second-level cache costs, as a share of one from memory.
_CACHED = 0.4


@dataclass(frozen=True)
class StepCost:
    """What one step of one lane does.

    Attributes
    ----------
    flops, specials, accesses : float
        Arithmetic, special functions, loads and stores of memory.
    bytes : float
        Of all arrays, each element once, by the number of steps of all lanes.
    """

    flops: float
    specials: float
    accesses: float
    bytes: float


@dataclass(frozen=True)
class CudaCost:
    """The prediction for one plan.

    Attributes
    ----------
    bytes, specials, instructions : float
        Of the whole run; instructions are counted in warps.
    barriers, shared : float
        Barriers of a block, and its accesses to shared memory per thread.
    occupancy : float
        Share of the threads that the chip holds.
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


@lru_cache(maxsize=64)
def step_cost(recurrence: Recurrence) -> StepCost:
    """Count what the body of a recurrence does, loops over states included."""
    flops, specials, accesses = _counts(recurrence.body)
    arrays = tir.VarMap((b, True) for b in (*recurrence.inputs, *recurrence.outputs))
    total = 0.0
    for buffer in arrays.keys():
        digits = "".join(c for c in tir.dtype_of(buffer) if c.isdigit())
        cells = prod(_known(extent) for extent in tir.shape_of(buffer))
        total += cells * max(1, int(digits or 8) // 8)
    steps = prod(_known(axis.extent) for axis in (*recurrence.lanes, recurrence.time))
    return StepCost(flops, specials, accesses, total / max(1, steps))


def _known(extent: Any) -> int:
    value = tir.as_int(extent)
    return _UNKNOWN if value is None else value


def _counts(stmt: Any) -> tuple[float, float, float]:
    """Arithmetic, special functions and accesses of a statement."""
    found = [0.0, 0.0, 0.0]
    skip = tvm_ffi.WalkResult.SKIP

    def add(place: int, amount: float = 1.0) -> None:
        found[place] += amount

    def on_loop(loop: tirx.For) -> Any:
        inner = _counts(loop.body)
        for place, amount in enumerate(inner):
            add(place, amount * _known(loop.extent))
        return skip

    def on_call(call: Call) -> None:
        if tir.call_name(call).rpartition(".")[2] in _SPECIALS:
            add(1)

    def on_access(node: Any) -> None:
        buffer = node.source if isinstance(node, TensorLoad) else node.buffer
        if str(buffer.scope()) != "local":
            add(2)

    arithmetic = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min)
    # Index arithmetic is integer, is hoisted, and is not looked into.
    handlers: list[Any] = [
        (tirx.For, on_loop),
        (Call, on_call),
        (TensorLoad, lambda node: (on_access(node), skip)[1]),
        (tirx.BufferStore, on_access),
        *((kind, lambda _: add(0)) for kind in arithmetic),
    ]
    tvm_ffi.structural_walk(stmt, handlers, order="pre")
    return found[0], found[1], found[2]


def predict(plan: ScanPlan, recurrence: Recurrence, limits: Limits) -> CudaCost:
    """Predict what a plan takes.

    Parameters
    ----------
    plan : ScanPlan
        For CUDA, and fit for the recurrence.
    recurrence : Recurrence
        What runs. Extents that are symbolic are taken as 4096.
    limits : Limits
        Of the target; only the number of multiprocessors counts.

    Returns
    -------
    CudaCost
    """
    step, chip = step_cost(recurrence), float(limits.multiprocessors)
    rows = float(prod(_known(lane.extent) for lane in recurrence.lanes))
    length = float(_known(recurrence.time.extent))
    work = _serial if plan.algorithm in ("sequential", "lanes") else _tree
    found = work(plan, recurrence, step, rows, length, chip)
    moved, specials, issued, barriers, shared, threads, chain, once, launches = found
    # Each thread has some loads under way while it waits: vectors, or those of unrolled steps.
    alone = plan.algorithm in ("sequential", "lanes")
    waiting = 64.0 if plan.vector_loads else 32.0 if alone else 16.0
    under_way = threads * max(waiting, bytes_ahead(plan, recurrence))
    speed = min(1.0, under_way / (BANDWIDTH * _MEMORY / CLOCK))
    held = chip * 2048
    memory = moved / (BANDWIDTH * max(speed, 1e-6))
    # A multiprocessor without a block does nothing.
    blocks = max(1.0, threads / plan.threads_per_block)
    busy = min(chip, blocks)
    exponentials = specials / (_SPECIAL * busy * CLOCK)
    issue = issued / (_ISSUE * busy * CLOCK)
    # Blocks that follow one another each wait for themselves.
    latency = (chain * max(1.0, threads / (chip * _RESIDENT)) + once) / CLOCK
    lines = 0.0 if alone else rows * length * lines_of_step(plan, recurrence) / (busy * CLOCK)
    worst = max(memory, exponentials, issue, lines, latency)
    return CudaCost(
        moved,
        specials,
        issued,
        barriers,
        shared,
        min(1.0, threads / held),
        memory,
        exponentials,
        issue,
        lines,
        latency,
        worst + launches * _LAUNCH,
    )


Found = tuple[float, float, float, float, float, float, float, float, float]


def _serial(
    plan: ScanPlan,
    recurrence: Recurrence,
    step: StepCost,
    rows: float,
    length: float,
    chip: float,
) -> Found:
    """Lanes walk time: one thread each, or several that share the states."""
    steps, along_time = rows * length, contiguous_axis(recurrence) != "lane"
    shared = float(plan.threads_per_lane)
    special = step.flops + step.specials * _AROUND
    if shared == 1:
        # Threads far apart read sectors of 32 bytes, and the cache holds few of them.
        waste = 4.0 if along_time and rows > 4096 else 1.0
        wait = _MEMORY / 8 + _LEVEL if along_time else _MEMORY / _UNROLLED
        cells = max(1.0, special)
        chain = length * (wait + cells + (_EXP if step.specials else 0.0))
        issued = steps * (special + 2 * step.accesses) / 32
        moved = steps * step.bytes * waste
        return moved, steps * step.specials, issued, 0.0, 0.0, rows, chain, 0.0, 1.0
    items = float(plan.items_per_thread)
    levels, together = log2(shared), shared * items
    width = 4.0 if plan.vector_loads and along_time else 1.0
    exchanged = shared * (2 + 2 * levels)
    # Some of the states' exponentials are polynomials.
    poly = exponentials_in_base_two(recurrence) * plan.exp_share / OF
    more = poly * (_POLYNOMIAL - _AROUND)
    issued = steps * (special + more + exchanged + 2 * step.accesses / width) / 32
    # The steps of a group overlap but for the state; what they share is shuffled.
    one = _EXP + _LEVEL * (1 + levels) / _UNROLLED + special / shared
    groups = length / together
    chain = groups * (_MEMORY + together * one / 2)
    if plan.block_load == "transposed":
        # A tile is a line at least; with several buffers its wait is for a barrier.
        tiles = length / walk_steps(plan)
        waits = tiles * (_MEMORY + _BARRIER) if plan.stages == 1 else _MEMORY + tiles * _BARRIER
        chain = groups * together * one / 2 + waits
    moved = steps * step.bytes
    return moved, steps * (step.specials - poly), issued, 0.0, 0.0, rows * shared, chain, 0.0, 1.0


def _tree(
    plan: ScanPlan,
    recurrence: Recurrence,
    step: StepCost,
    rows: float,
    length: float,
    chip: float,
) -> Found:
    """Tiles of time: every step is lifted and combined, and then made again."""
    threads, items = float(plan.threads_per_block), float(plan.items_per_thread)
    tiles, words = ceil(length / plan.tile), element_bytes(recurrence) / 4
    doublings = log2(threads)
    if plan.block_tree == "warp":
        levels, barriers = doublings + 3, 2.0 if threads > 32 else 0.0
    elif plan.block_tree == "kogge_stone":
        levels, barriers = doublings, doublings + 2
    else:
        levels, barriers = 2 * doublings, 4 * doublings + 4
    exchange = levels * words * 4
    # Lifting costs about what the step costs, and a combine two operations per word.
    each = 2 * (step.flops + step.specials * _AROUND) + 2 * words
    width = 4.0 if plan.vector_loads else 1.0
    made = rows * tiles * plan.tile
    staged = shared_accesses(plan, recurrence)
    issued = made * (each + 3 * step.accesses / width + staged + exchange / items) / 32
    if plan.block_load == "transposed":
        barriers += 4.0 if plan.stages == 1 else 2.0
    at_memory = _MEMORY if not step.specials else _MEMORY + 2 * _EXP * items
    one = at_memory + items * each + levels * (_LEVEL + words) + barriers * _BARRIER
    shared = exchange if shared_bytes(plan, recurrence) else 0.0
    steps = rows * length
    coalesced = 1.0 if contiguous_axis(recurrence) != "lane" else 8.0
    if plan.algorithm == "serial_tiles":
        moved = steps * step.bytes * coalesced
        chain = tiles * one
        if plan.stages > 1:
            # All tiles but the first one are there when their turn comes.
            chain -= (tiles - 1) * (_MEMORY - _LEVEL)
        return (
            moved,
            2 * steps * step.specials,
            issued,
            barriers,
            shared,
            rows * threads,
            chain,
            0.0,
            1.0,
        )
    if plan.algorithm == "single_pass":
        # Every tile hands over its element, and reads those of half a window on average.
        looked_up = min(tiles, threads) / 2 * (words + 1) * 4
        handed = rows * tiles * (4 * words + 12)
        moved = steps * step.bytes * coalesced + handed + rows * tiles * looked_up * _CACHED
        # Windows follow one another by two trips through the cache.
        chain = 2 * one + _MEMORY
        once = 2 * _MEMORY * ceil(tiles / threads)
        count = rows * tiles * threads
        specials = 2 * steps * step.specials
        return moved, specials, issued, 2 * barriers + 2, shared, count, chain, once, 2.0
    scratch = 16.0 * rows * tiles * words
    moved = 2 * steps * step.bytes * coalesced * 0.85 + scratch
    # The elements of a lane are scanned in chunks by one block; each chunk waits for memory twice.
    chunks = ceil(tiles / (8 * carry_threads(plan, recurrence)))
    carries = 2 * _MEMORY + levels * (_LEVEL + words) + barriers * _BARRIER
    chain, once = 2 * one, chunks * carries
    count = rows * tiles * threads
    issued *= 1.7
    return moved, 3 * steps * step.specials, issued, 3 * barriers, shared, count, chain, once, 3.0
