"""Decisions of the way back of a delta rule on a CPU, and what it takes.

`tvm_scan.loops.delta_adjoint` writes it: a task has all columns of the states that share their
keys, block after block, and takes a few steps at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm.target import Target

from tvm_scan.schedules.delta.walk import PREPARED, STEPS, WAKES, WalkShape
from tvm_scan.schedules.delta.walk_plan import WalkPlan
from tvm_scan.schedules.machine.cpu_cost import CpuCost, CpuWork, cpu_cost
from tvm_scan.schedules.machine.machine import Machine
from tvm_scan.schedules.plan import ScanPlan

#: Vector operations for a vector of a state and one step: of any rule, and of each term of it.
_SHARED, _OF_TERM = 4.0, 3.0
#: Instructions that add up the cells of a vector, of several at once.
_ACROSS = 3.0
#: Columns of a block: the states of the chunks of a stretch are in the second cache.
_COLUMNS = 128


class AdjointPlan(WalkPlan):
    """The decisions, those of a walk."""

    @classmethod
    def columns_of(cls, shape: WalkShape) -> Sequence[int]:
        """Return how many columns a task has."""
        return [_COLUMNS]

    def cost(self, shape: WalkShape, machine: Machine) -> CpuCost:
        """Predict what the way back takes."""
        chip = machine.chip
        width = chip.vector_bytes // shape.cell
        vectors = shape.keys * -(-shape.values // width)
        sums = shape.values * shape.terms * _ACROSS
        prepared = 2 * PREPARED * shape.terms * -(-shape.keys // width) / STEPS
        cycles = (vectors * (_SHARED + _OF_TERM * shape.terms) + sums + prepared) * shape.length
        state = shape.states * shape.keys * shape.values * shape.cell
        tokens = shape.states * shape.length * 4 * (shape.keys + shape.values) * shape.cell
        work = CpuWork(
            cycles=shape.states * cycles / chip.vector_issue,
            tasks=shape.states // shape.group,
            joins=WAKES * self.threads,
            moved=4 * state + tokens,
            footprint=4 * state + tokens,
        )
        return cpu_cost(work, machine)


def decide(
    options: Mapping[str, Any],
    sizes: Mapping[str, int],
    target: Target,
    recorded: ScanPlan | None = None,
) -> Mapping[str, Any]:
    """Return the options of `tvm_scan.loops.delta_adjoint` that its caller leaves open.

    The parameters and the result are those of `tvm_scan.schedules.delta.walk_plan.decide`; nothing
    is recorded of a way back.
    """
    assert recorded is None, "no loop of its own is a delta rule"
    return AdjointPlan.fastest(options, sizes, target)
