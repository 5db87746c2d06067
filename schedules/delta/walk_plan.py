"""Decisions of the walk of torch's functions, which `tvm_scan.loops.delta_forward` writes.

They are those of ``cpu_plan`` but for what that loop has no choice of, so that a record of the
plain loop holds for it, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import product
from typing import Any

from tvm.target import Target

from tvm_scan.schedules.delta.cpu_plan import DeltaWalk
from tvm_scan.schedules.delta.walk import (
    STEPS,
    WAKES,
    WalkShape,
    column_counts,
    shape_of,
    vectors_of,
    walk_cost,
)
from tvm_scan.schedules.machine.cpu_cost import CpuCost
from tvm_scan.schedules.machine.machine import Machine
from tvm_scan.schedules.plan import ScanPlan


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

    @classmethod
    def space(cls, shape: WalkShape, machine: Machine) -> list[WalkPlan]:
        """Return the plans of a machine for a shape."""
        vector, strip = vectors_of(machine, shape.cell)
        pairs = product(cls.columns_of(shape), [False, True] if machine.cores > 1 else [False])
        return [cls(columns, strip, vector, threads) for columns, threads in pairs]

    @classmethod
    def columns_of(cls, shape: WalkShape) -> Sequence[int]:
        """Return how many columns a task may have."""
        return column_counts(shape.values)

    @classmethod
    def fastest(
        cls, options: Mapping[str, Any], sizes: Mapping[str, int], target: Target
    ) -> Mapping[str, Any]:
        """Return the decisions of the plan that is predicted to be the fastest; see `decide`."""
        machine, shape = Machine.of(target), shape_of(options, sizes)
        plans = cls.space(shape, machine)
        return asdict(min(plans, key=lambda plan: plan.cost(shape, machine).seconds))

    def cost(self, shape: WalkShape, machine: Machine) -> CpuCost:
        """Predict what the walk takes on torch's threads."""
        joins = WAKES * self.threads
        return walk_cost(shape, machine, self.columns, STEPS, joins)


def decide(
    options: Mapping[str, Any],
    sizes: Mapping[str, int],
    target: Target,
    recorded: ScanPlan | None = None,
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
    recorded : ScanPlan, optional
        What was measured for the plain loop of these sizes.

    Returns
    -------
    mapping
        The decisions of the recorded plan, if it is a walk that does not cut time; else of the plan
        that is predicted to be the fastest.
    """
    if isinstance(recorded, DeltaWalk) and not recorded.chunks:
        return {field.name: getattr(recorded, field.name) for field in fields(WalkPlan)}
    return WalkPlan.fastest(options, sizes, target)
