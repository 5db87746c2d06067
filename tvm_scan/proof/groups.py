"""The groups of a recurrence as problems."""

from __future__ import annotations

from tvm_scan import tir
from tvm_scan.proof.problem import Problem
from tvm_scan.recurrence import Group, Recurrence


def problems_of(recurrence: Recurrence) -> list[Problem]:
    """Problems to be proven, one for every group, in order of the levels.

    Carries of other groups are inputs of a group's step: they are replayed before it.
    """
    return [_problem(recurrence, group) for group in recurrence.groups]


def _problem(recurrence: Recurrence, group: Group) -> Problem:
    carries = [recurrence.carries[i] for i in group.carries]
    axes = (*recurrence.lanes, recurrence.time, *recurrence.state_axes(group))
    moving = tir.VarMap([(recurrence.time.var, True)])
    for carry in recurrence.carries:
        moving[carry.before] = True
    return Problem(
        algebra=group.algebra,
        steps=tuple(carry.step for carry in carries),
        olds=tuple(carry.old for carry in carries),
        dtypes=tuple(carry.dtype for carry in carries),
        first=carries[0].first,
        extents=tir.VarMap((axis.var, axis.extent) for axis in axes),
        moving=moving,
        length=tir.as_int(recurrence.time.extent),
    )
