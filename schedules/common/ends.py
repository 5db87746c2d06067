"""Steps at either end of time that a loop may treat apart from those between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Range, Var
from tvm.sym import Analyzer

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence

#: Steps at either end that may be others than those between them.
_ENDS = 4
#: More steps than any loop has.
_ENDLESS = 1 << 30


def steps_between(time: Var, length: int) -> Callable[[Any], Any]:
    """Make the function that gives an expression or statement as it is between the ends of time.

    Parameters
    ----------
    time : Var
        The variable of time.
    length : int
        Number of steps.
    """
    if length <= 2 * _ENDS:
        return lambda node: node
    bounds = _steps_from(time, _ENDS, length - 2 * _ENDS)
    return lambda node: _within(node, time, bounds)


def first_steps(recurrence: Recurrence) -> int:
    """Return how many steps at the beginning have elements of another kind than those after them.

    A condition on time chooses a gate of theirs, say, which is a number at all other steps: LLVM
    multiplies numbers once, before the loop.
    """
    time = recurrence.time.var
    treated_apart = int(any(carry.first is not None for carry in recurrence.carries))
    parts = [part for group in recurrence.groups for part in group.algebra.lift()]
    chosen = [c.args[0] for part in parts for c in tir.nodes(part, Call) if _chooses_by(c, time)]
    if not chosen:
        return treated_apart
    bounds = [_steps_from(time, first, _ENDLESS) for first in range(_ENDS + 1)]
    return max([treated_apart, *(_until_known(condition, bounds) for condition in chosen)])


def _until_known(condition: Any, bounds: list[Analyzer]) -> int:
    """First step from which a condition has one value; 0 where there is none near the beginning."""
    known = [_value(condition, steps) for steps in bounds]
    if known[-1] is None:
        return 0
    return next(first for first, value in enumerate(known) if value is not None)


def _within(node: Any, time: Var, bounds: Analyzer) -> Any:
    """``node`` without the conditions that are one value for all steps that are known."""

    def on_call(call: Call) -> Any:
        if not _chooses_by(call, time):
            return call
        value = _value(call.args[0], bounds)
        return call if value is None else call.args[1] if value else call.args[2]

    return tvm_ffi.structural_map(node, (Call, on_call))


def _steps_from(time: Var, first: int, count: int) -> Analyzer:
    """Bounds of time in ``count`` steps from ``first`` on."""
    bounds = Analyzer()
    dtype = tir.dtype_of(time)
    bounds.bind(time, Range.from_min_extent(*(tirx.IntImm(dtype, n) for n in (first, count))))
    return bounds


def _value(condition: Any, bounds: Analyzer) -> bool | None:
    """Value of a condition for some steps; None where they differ."""
    value = bounds.simplify(condition)
    return bool(value.value) if isinstance(value, tirx.IntImm) else None


def _chooses_by(call: Call, time: Var) -> bool:
    """Return whether a call chooses by time, and by nothing that was read."""
    if tir.call_name(call) != "prim.if_then_else":
        return False
    condition = call.args[0]
    return tir.contains_var(condition, [time]) and not tir.loads(condition)
