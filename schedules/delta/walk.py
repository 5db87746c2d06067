"""The walk over time of a delta rule on a CPU: its shape, and what it takes.

``cpu_plan`` decides it for loops that are delta rules, and ``walk_plan`` for torch's functions,
which `tvm_scan.loops.delta_forward` writes: a task has some columns of one state, and takes a few
steps at once. Fewer columns make more tasks, of which each repeats what all columns share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from tvm_scan import tir
from tvm_scan.delta_rule import DeltaRule
from tvm_scan.schedules.common.sizes import known_extent
from tvm_scan.schedules.machine.cpu_cost import CpuCost, CpuWork, cpu_cost
from tvm_scan.schedules.machine.machine import Machine

#: Steps at once, those of `tvm_scan.loops.delta_chunk`. With more, what they read of each other
#: takes more than is saved: chunks of 16 as products of matrices took 1.27 times as long (512 steps
#: of 32 x 128 x 128 on an Emerald Rapids).
STEPS = 4
#: Vector operations for a vector of the state and one step: for what a step reads before it, as
#: much for its outputs, and for each term of the rule.
_READ, _WRITTEN = 1.0, 1.0
#: The same for a vector of a row and so many steps: products of pairs, gates, copies, and the lines
#: of queries and keys, which no prefetcher follows.
PREPARED = 120.0
#: Cycles of a chunk and strip of columns in which a sum waits for the one before.
_WAITS = 250.0
#: Share of the time in which a state moves between the caches that is not hidden. Tasks with 128
#: columns, of 64 KiB, were faster than those of 32, which fit the first cache: 9.1 and 11.0 ms (512
#: steps of 32 x 128 x 128 on two cores of a Zen 4).
_MISSED = 0.15
#: The same of a product of two cells of the maps and states of segments of time.
_CARRIED = 1.2
#: Torch's threads, which kernels run on, wake so many times as slowly as those of a pool that has
#: nothing else to do. Between operators of torch on two cores of a Zen 3, with threads and without,
#: 64 steps of 8 x 64 x 64 took 107 and 187 us, a step in place of 32 x 128 x 128 90 and 118, one of
#: 8 x 64 x 64 36 and 36; after 4 ms without a call threads were as far ahead.
WAKES = 8.0


@dataclass(frozen=True)
class WalkShape:
    """The extents of a walk: states, their rows and columns, steps of each, and the rule.

    Attributes
    ----------
    states, keys, values, length : int
        Independent states, their rows and columns, and steps.
    terms : int
        Products of two vectors that a step adds.
    cell : int
        Bytes of a cell.
    group : int
        States that share their keys.
    in_place : bool
        Whether the states after time are where those before it were.
    """

    states: int
    keys: int
    values: int
    length: int
    terms: int = 1
    cell: int = 4
    group: int = 1
    in_place: bool = False


def shape_of(options: Mapping[str, Any], sizes: Mapping[str, int]) -> WalkShape:
    """Return the extents of a kernel, given its options and sizes."""
    group = int(options["group"])
    return WalkShape(
        sizes["batch"] * sizes["heads"] * group,
        int(options["keys"]),
        int(options["values"]),
        sizes["length"],
        terms=1 if options["rule"] == "delta" else 2,
        cell=tir.byte_size(str(options["dtype"])),
        group=group,
        in_place=bool(options.get("in_place", False)),
    )


def shape_of_rule(rule: DeltaRule, steps: int | None = None) -> WalkShape:
    """Return the extents of a delta rule.

    Parameters
    ----------
    rule : DeltaRule
        Lanes whose extents are not known count as one: there may be few.
    steps : int, optional
        Number of steps where it is not known.
    """
    lanes = [tir.as_int(axis.extent) for axis in rule.lanes]
    return WalkShape(
        prod(n for n in lanes if n is not None),
        known_extent(rule.rows.extent),
        known_extent(rule.columns.extent),
        known_extent(rule.time.extent) if steps is None else steps,
        terms=len(rule.terms),
        cell=tir.byte_size(rule.dtype),
        in_place=rule.initial is None and rule.is_kept,
    )


def vectors_of(machine: Machine, cell: int) -> tuple[int, int]:
    """Cells of a vector of a machine, and columns whose sums are in its registers.

    Two vectors share what is loaded of each row; where registers are few, they are in turns those
    of what is known and of outputs.
    """
    vector = max(1, min(16, machine.chip.vector_bytes // cell))
    return vector, 2 * vector


def column_counts(values: int) -> list[int]:
    """Return how many columns a task may have."""
    return [n for n in (16, 32, 64, 128) if n <= max(16, values)]


def walk_cost(
    shape: WalkShape, machine: Machine, columns: int, at_once: int, joins: float
) -> CpuCost:
    """Predict what a walk takes.

    Parameters
    ----------
    shape : WalkShape
        What walks.
    machine : Machine
        Where.
    columns, at_once : int
        Most columns of a task, and steps that it takes at once.
    joins : float
        Times that the pool is woken, each as the machine says.
    """
    work = _work(shape, machine, columns, at_once, joins)
    return cpu_cost(work, machine)


def cut_cost(
    shape: WalkShape, machine: Machine, columns: int, at_once: int, joins: float, segments: int
) -> CpuCost:
    """Predict what the passes over segments of time take, and the one from segment to segment.

    The other parameters are those of `walk_cost`.
    """
    chip = machine.chip
    length = -(-shape.length // segments)
    part = replace(shape, states=shape.states * segments, length=length)
    maps = replace(part, values=shape.keys)
    work = _work(part, machine, columns, at_once, joins, outputs=False)
    work = work + _work(maps, machine, columns, at_once, joins, outputs=False)
    work = work + _work(part, machine, columns, at_once, joins)
    blocks = -(-shape.values // columns)
    tasks = shape.states * blocks
    vectors = -(-shape.values // (chip.vector_bytes // shape.cell))
    cycles = shape.states * segments * shape.keys**2 * vectors * _CARRIED / chip.vector_issue
    cells = part.states * shape.keys * (blocks * shape.keys + 3 * shape.values)
    # A task takes segment after segment, so that there may be fewer than cores.
    used = min(machine.cores, tasks) if joins else 1
    carried = CpuWork(0.0, tasks, joins, moved=cells * shape.cell, alone=cycles / used)
    return cpu_cost(work + carried, machine)


def _work(
    shape: WalkShape,
    machine: Machine,
    columns: int,
    at_once: int,
    joins: float,
    outputs: bool = True,
) -> CpuWork:
    """Count what a walk does, with its outputs or without."""
    chip = machine.chip
    columns = min(columns, shape.values)
    tasks = shape.states * -(-shape.values // columns)
    width = chip.vector_bytes // shape.cell
    rows, vectors = -(-shape.keys // width), shape.keys * -(-columns // width)
    each = _READ * (1 + outputs) + _WRITTEN * shape.terms + 1 / at_once
    # Pairs of steps grow with their square, what waits for the step before with their number.
    strips = -(-columns // vectors_of(machine, shape.cell)[1])
    pairs, waits = (at_once / STEPS) ** 2, _WAITS * strips * at_once / STEPS
    cycles = vectors * each * at_once / chip.vector_issue + waits
    cycles += rows * PREPARED * pairs * shape.terms / chip.vector_issue
    tile = shape.keys * columns * shape.cell
    if tile + 4 * at_once * shape.keys * shape.cell > chip.nearest:
        cycles += _MISSED * 2 * tile / (chip.private_rate * chip.cycle)
    state = shape.states * shape.keys * shape.values * shape.cell
    tokens = shape.states * shape.length * 2 * (shape.keys + shape.values) * shape.cell
    return CpuWork(
        cycles=tasks * shape.length / at_once * cycles,
        tasks=tasks,
        joins=joins,
        moved=(2 if shape.in_place else 3) * state + tokens,
        footprint=(1 if shape.in_place else 2) * state + tokens,
    )
