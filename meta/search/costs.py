"""What a plan costs, from the plan and the recurrence alone: no kernel is looked at.

The numbers are those of the stage builders' docstrings: work and depth in combines, traffic in
bytes, exchanges in barriers. They tell plans apart before anything has been measured, and are the
breakdown that ``tvm-scan show`` prints.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields
from math import ceil, log2, prod
from typing import Any

from tvm.target import Target

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.sizes import element_bytes, known_extent
from tvm_scan.schedules.common.strides import contiguous_axis
from tvm_scan.schedules.gpu.shared.walk_layout import walk_steps
from tvm_scan.schedules.machine.limits import limits_of

__all__ = ["COMBINE", "Costs", "costs_of"]

#: A combine of elements costs about this many steps, for the families with two parts.
COMBINE = 2
#: Registers that each step of its own costs a thread that shares a lane.
_STAGED = 6
#: Lanes of a vector of float32, on the CPUs that are common.
_VECTOR = 16.0


@dataclass(frozen=True)
class Costs:
    """Analytic costs of one plan.

    Attributes
    ----------
    work : float
        Steps and combines of all tasks together.
    depth : float
        Steps and combines on the longest chain of dependences.
    tasks : float
        Independent tasks: CPU tasks or CUDA blocks.
    parallel : float
        Of those, what the machine runs at once, with the lanes of vectors or threads.
    bytes : float
        Read and written in main memory, scratch included.
    accesses : float
        Of how many accesses to memory these are made, at the width that the plan asks for.
    barriers : float
        Barriers that one block passes; on a CPU, joins of the thread pool.
    smem : float
        Shared memory of a block in bytes.
    registers : float
        Estimated 32-bit registers of a thread; on a CPU, of a task.
    span : float
        ``max(depth, work / parallel)``: Brent's bound in steps.
    """

    work: float
    depth: float
    tasks: float
    parallel: float
    bytes: float
    accesses: float
    barriers: float
    smem: float
    registers: float
    span: float

    def vector(self) -> list[float]:
        """The logarithms, for a cost model."""
        return [log2(1.0 + value) for value in astuple(self)]

    @classmethod
    def names(cls) -> list[str]:
        """Names of the values, in order."""
        return [field.name for field in fields(cls)]


def costs_of(plan: Any, target: Target, recurrence: Recurrence) -> Costs:
    """Work, depth, traffic and exchanges of a plan.

    Parameters
    ----------
    plan : ScanPlan
        A plan that fits.
    target : tvm.target.Target
        Whose cores and limits count.
    recurrence : Recurrence
        What runs. Extents that are symbolic are taken as large.

    Returns
    -------
    Costs
    """
    limits = limits_of(target)
    rows = float(prod(known_extent(lane.extent) for lane in recurrence.lanes))
    length = float(known_extent(recurrence.time.extent))
    width = float(element_bytes(recurrence))
    once = rows * length * _step_bytes(recurrence)
    if plan.device == "cpu":
        # Vector lanes whose memory lies apart are read one by one.
        light = element_bytes(recurrence) <= 16 and not plan.transpose
        apart = contiguous_axis(recurrence) == "time" and light
        found = _cpu(plan, limits.cores, rows, length, width, once, 2.0 if apart else _VECTOR)
    else:
        machine = float(limits.multiprocessors * 2048)
        found = _cuda(plan, machine, rows, length, width, once)
        found["smem"] = float(plan.smem_bytes(recurrence))
    found["accesses"] = found["bytes"] / (16 if getattr(plan, "vector_loads", False) else 4)
    span = max(found["depth"], found["work"] / max(1.0, found["parallel"]))
    return Costs(**found, span=span)


def _cpu(
    plan: Any,
    cores: int,
    rows: float,
    length: float,
    width: float,
    once: float,
    vector: float,
) -> dict[str, float]:
    block = float(plan.lane_block)
    lanes = min(block, vector) if plan.vectorize else min(block, 4.0)
    registers = block * width / 4
    if plan.time_vector:
        return _vectors_of_time(plan, cores, rows, length, width, once)
    if plan.algorithm == "sequential":
        return _of(rows * length, rows * length, 1.0, 1.0, once, 0.0, registers)
    if plan.algorithm == "lanes":
        tasks = max(1.0, ceil(rows / block))
        return _of(rows * length, length, tasks, min(tasks, cores) * lanes, once, 1.0, registers)
    tasks = rows * plan.chunks / block
    work = rows * (length * (1 + COMBINE) + plan.chunks * COMBINE)
    depth = (1 + COMBINE) * length / plan.chunks + plan.chunks * COMBINE
    scratch = 4 * rows * plan.chunks * width
    return _of(work, depth, tasks, min(tasks, cores) * lanes, 2 * once + scratch, 3.0, registers)


def _vectors_of_time(
    plan: Any, cores: int, rows: float, length: float, width: float, once: float
) -> dict[str, float]:
    """Every vector makes a combination per level; the next one waits for one application."""
    steps = float(plan.time_vector)
    # Runs of 4 steps meet once for 4 vectors, and are turned twice.
    levels = (3 + log2(steps / 4)) / 4 + 1 if plan.time_runs else log2(steps)
    replay = length * (1 + levels * COMBINE)
    registers = 2 * steps * width / 4
    if plan.algorithm == "lanes":
        depth = length / steps * COMBINE
        found = min(rows, cores) * steps
        return _of(rows * replay, depth, max(1.0, rows), found, once, 1.0, registers)
    tasks = rows * plan.chunks
    work = rows * (replay + length * COMBINE + plan.chunks * COMBINE)
    depth = 2 * length / plan.chunks / steps * COMBINE + plan.chunks * COMBINE
    scratch = 4 * rows * plan.chunks * width
    found = min(tasks, cores) * steps
    return _of(work, depth, tasks, found, 2 * once + scratch, 3.0, registers)


def _cuda(
    plan: Any, machine: float, rows: float, length: float, width: float, once: float
) -> dict[str, float]:
    threads, items = float(plan.threads_per_block), float(max(1, plan.items_per_thread))
    if plan.algorithm in ("sequential", "lanes"):
        shared = float(plan.threads_per_lane)
        blocks = ceil(rows * shared / threads)
        at_once = min(rows * shared, machine)
        # Shared, a thread's own steps lie in registers, and a step's sum takes some levels.
        registers = width / 4 / shared + (items * _STAGED if shared > 1 else 0)
        work = rows * length * (1 + log2(shared) * COMBINE)
        # Tiles in shared memory are a line of steps at least.
        waits = _barriers(plan) * length / walk_steps(plan)
        if plan.chunks == 0:
            return _of(work, length, blocks, at_once, once, waits, registers)
        # Every chunk is reduced and replayed; elements and carries pass through memory.
        chunks = float(plan.chunks)
        depth = (1 + COMBINE) * length / chunks + chunks * COMBINE
        work = work * (1 + COMBINE) + rows * chunks * COMBINE
        at_once = min(rows * shared * chunks, machine)
        moved = 2 * once + 4 * rows * chunks * width
        return _of(work, depth, blocks * chunks, at_once, moved, 2 * waits / chunks, registers)
    tiles = ceil(length / (threads * items))
    levels, combines, exchanges = _tree(plan)
    exchanges += _barriers(plan)
    tree = rows * tiles * combines * threads * COMBINE
    one = items * (1 + COMBINE) + levels * COMBINE
    registers = 4 * width / 4 + items * width / 4
    work = rows * length * (1 + COMBINE) + tree
    if plan.algorithm == "serial_tiles":
        at_once = min(rows * threads, machine)
        return _of(work, tiles * one, rows, at_once, once, tiles * exchanges, registers)
    at_once = min(rows * tiles * threads, machine)
    scratch = 4 * rows * tiles * width
    depth = 2 * one + log2(max(2, tiles)) * COMBINE
    barriers = 3 * exchanges
    return _of(work + tree, depth, rows * tiles, at_once, 2 * once + scratch, barriers, registers)


def _barriers(plan: Any) -> float:
    """Barriers of a tile in shared memory: around its inputs, and in a tree its outputs."""
    if plan.block_load == "direct":
        return 0.0
    inputs = 2.0 if plan.stages == 1 else 1.0
    return inputs + (0.0 if plan.algorithm == "lanes" else inputs)


def _tree(plan: Any) -> tuple[float, float, float]:
    """Levels of a plan's tree, combines of a thread, and barriers of a tile."""
    doublings = log2(plan.threads_per_block)
    if plan.block_tree == "warp":
        # Within the warps, over their totals, and one to put the two together.
        return doublings + 1, doublings + 1, 2.0 if plan.threads_per_block > 32 else 0.0
    if plan.block_tree == "kogge_stone":
        return doublings, doublings, doublings + 2
    # As emitted: a barrier between the reads and the writes of a level, too.
    return 2 * doublings, 2.0, 4 * doublings + 3


def _of(
    work: float,
    depth: float,
    tasks: float,
    parallel: float,
    moved: float,
    barriers: float,
    registers: float,
) -> dict[str, float]:
    return {
        "work": work,
        "depth": depth,
        "tasks": float(tasks),
        "parallel": parallel,
        "bytes": moved,
        "barriers": barriers,
        "smem": 0.0,
        "registers": registers,
    }


def _step_bytes(recurrence: Recurrence) -> float:
    """Bytes of inputs and outputs of a step: those of buffers that time indexes."""
    rows = prod(known_extent(lane.extent) for lane in recurrence.lanes)
    steps = max(1, rows * known_extent(recurrence.time.extent))
    total = 0.0
    # A history that the step reads back comes from a register.
    each = tir.VarMap((b, True) for b in (*recurrence.inputs, *recurrence.outputs))
    for buffer in each.keys():
        digits = "".join(c for c in tir.dtype_of(buffer) if c.isdigit())
        cells = prod(known_extent(extent) for extent in tir.shape_of(buffer))
        total += cells * max(1, int(digits or 8) // 8) / steps
    return total
