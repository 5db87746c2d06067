"""Decisions of the walk over time of a delta rule on a CPU, and what they take.

``cpu`` writes it for loops that are delta rules, and `tvm_scan.loops.delta_forward` for torch's
functions: a task has some columns of one state, and takes a few steps at once. Fewer columns make
more tasks, of which each repeats what all columns share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import product
from math import prod
from typing import Any

from tvm.target import Target

from tvm_scan import tir
from tvm_scan.delta_rule import DeltaRule
from tvm_scan.schedules.common.sizes import known_extent
from tvm_scan.schedules.machine.cpu_cost import CpuCost, CpuWork, cpu_cost
from tvm_scan.schedules.machine.machine import Machine

__all__ = ["WalkPlan", "WalkShape", "decide", "shape_of", "walk_of", "walks_of"]

#: Steps at once, those of `tvm_scan.loops.delta_chunk`. With more, what they read of each other
#: takes more than is saved: chunks of 16 as products of matrices took 1.27 times as long (512 steps
#: of 32 x 128 x 128 on an Emerald Rapids).
STEPS = 4
#: Vector operations for a vector of the state and one step, of each term of the rule.
_READ, _WRITTEN = 2.0, 1.0
#: The same for a vector of a row and so many steps: products of pairs, gates, copies.
PREPARED = 60.0
#: Cycles of a chunk in which a sum waits for the one before: sums of pairs, substitution.
_WAITS = 250.0
#: A thread of the pool that sleeps, as they do beside torch's, wakes so many times as slowly as
#: one that waits in a loop: 48 us after 4 ms without a call (2 vCPUs of an Emerald Rapids), and
#: its caches are cold then. There 64 steps of 8 x 64 x 64 took 185 us with the pool and 110
#: without it, a step in place of 32 x 128 x 128 took 249 and 100.
ASLEEP = 60.0


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


@dataclass(frozen=True)
class WalkPlan:
    """The decisions.

    Attributes
    ----------
    columns : int
        Most columns of a task.
    strip : int
        Columns whose sums are in registers.
    vector : int
        Cells of a vector.
    threads : bool
        Whether tasks go to other threads, which have to be woken.
    """

    columns: int
    strip: int
    vector: int
    threads: bool

    @staticmethod
    def space(shape: WalkShape, machine: Machine) -> list[WalkPlan]:
        """Return the plans of a machine for a shape."""
        width = machine.chip.vector_bytes
        vector = max(1, min(16, width // shape.cell))
        # Of 32 registers eight sums of two vectors leave enough; of 16, eight of one.
        strip = vector * (2 if width == 64 else 1)
        columns = [n for n in (16, 32, 64, 128) if n <= max(16, shape.values)]
        threads = [False] + [True] * (machine.cores > 1)
        return [WalkPlan(n, strip, vector, is_on) for n, is_on in product(columns, threads)]

    def __str__(self) -> str:
        threads = str(self.threads).lower()
        decided = f"columns={self.columns}, strip={self.strip}, vector={self.vector}"
        return f"cpu/walk({decided}, threads={threads})"

    def cost(self, shape: WalkShape, machine: Machine, wakes: float = ASLEEP) -> CpuCost:
        """Predict what the walk takes; to wake its threads, so many times what the machine says."""
        chip = machine.chip
        columns = min(self.columns, shape.values)
        tasks = shape.states * -(-shape.values // columns)
        lanes = chip.vector_bytes // shape.cell
        rows, vectors = -(-shape.keys // lanes), shape.keys * -(-columns // lanes)
        each = _READ + _WRITTEN * shape.terms + 1 / STEPS
        steps = shape.length / STEPS
        cycles = vectors * each * STEPS / chip.vector_issue + _WAITS
        cycles += rows * PREPARED * shape.terms / chip.vector_issue
        tile = shape.keys * columns * shape.cell
        if tile + 4 * STEPS * shape.keys * shape.cell > chip.nearest:
            cycles += 3 * tile / (chip.private_rate * chip.cycle)
        state = shape.states * shape.keys * shape.values * shape.cell
        tokens = shape.states * shape.length * 2 * (shape.keys + shape.values) * shape.cell
        work = CpuWork(
            cycles=tasks * steps * cycles,
            tasks=tasks,
            joins=wakes * self.threads,
            moved=(2 if shape.in_place else 3) * state + tokens,
            footprint=(1 if shape.in_place else 2) * state + tokens,
        )
        return cpu_cost(work, chip, machine.cores)


def decide(
    options: Mapping[str, Any], sizes: Mapping[str, int], target: Target
) -> Mapping[str, Any]:
    """Return the options of `tvm_scan.loops.delta_walk` that its caller leaves open.

    Parameters
    ----------
    options : mapping
        Those that the caller gives.
    sizes : mapping of str to int
        ``batch``, ``heads`` (of the keys) and ``length``.
    target : tvm.target.Target
        A CPU.

    Returns
    -------
    mapping
        The decisions of the plan that is predicted to be the fastest.
    """
    machine, shape = Machine.of(target), shape_of(options, sizes)
    plans = WalkPlan.space(shape, machine)
    return asdict(min(plans, key=lambda plan: plan.cost(shape, machine).seconds))


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


def walk_of(rule: DeltaRule, target: Target) -> WalkPlan:
    """Return the plan of a delta rule on a CPU that is predicted to be the fastest."""
    return walks_of(rule, target)[0][0]


def walks_of(rule: DeltaRule, target: Target) -> list[tuple[WalkPlan, CpuCost]]:
    """Return the plans of a delta rule on a CPU and what they take, the fastest first.

    Parameters
    ----------
    rule : DeltaRule
        What will run. Lanes whose extents are not known count as one where columns are cut, and
        wake threads, since they may be many.
    target : tvm.target.Target
        A CPU.

    Returns
    -------
    list of (WalkPlan, CpuCost)
    """
    machine = Machine.of(target)
    lanes = [tir.as_int(axis.extent) for axis in rule.lanes]
    shape = WalkShape(
        prod(n for n in lanes if n is not None),
        known_extent(rule.rows.extent),
        known_extent(rule.columns.extent),
        known_extent(rule.time.extent),
        terms=len(rule.terms),
        cell=tir.byte_size(rule.dtype),
        in_place=rule.initial is None and rule.is_kept,
    )
    plans = WalkPlan.space(shape, machine)
    if None in lanes and machine.cores > 1:
        plans = [plan for plan in plans if plan.threads]
    costs = [(plan, plan.cost(shape, machine, 1.0)) for plan in plans]
    return sorted(costs, key=lambda pair: pair[1].seconds)
