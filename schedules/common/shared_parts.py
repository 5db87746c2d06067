"""Parts of a step's element that all states of a group share, made once for the step.

The element of a state is a formula of the step's inputs, in which what the step computes before
its states stands in full: of a selective scan a softplus, in both parts of all elements. nvcc sees
that they are the same where the code is straight; ``log1pf`` has a branch, so that it makes one for
every state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.ir import Call, Var

from tvm_scan import tir
from tvm_scan.schedules.common.invariants import is_costly, largest, replaced

_KINDS = (Call, tirx.Mul, tirx.Add, tirx.Sub, tirx.Div, tirx.Max, tirx.Min, tirx.Select)


def shared_parts(
    element: Sequence[Any], states: Sequence[Var]
) -> tuple[list[tuple[Var, Any]], list[Any]]:
    """Take what costs something, and that no state changes, out of an element.

    Parameters
    ----------
    element : sequence of Expr
        The parts of a step's element.
    states : sequence of Var
        The axes of its group's states.

    Returns
    -------
    list of (Var, Expr)
        Names, and what each stands for: the largest such expressions.
    list of Expr
        The element with the names.
    """

    def take(node: Any) -> Any:
        return node if not tir.contains_var(node, states) and is_costly(node) else None

    if not states:
        return [], list(element)
    shared = tir.each_once(node for part in element for node in largest(part, _KINDS, take))
    names = [
        (tirx.Var(f"shared{number}", tir.dtype_of(value)), value)
        for number, value in enumerate(shared)
    ]
    parts = list(element)
    for name, value in names:
        parts = [replaced(part, value, name) for part in parts]
    return names, parts
