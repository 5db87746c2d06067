"""The axis of a recurrence along which memory is contiguous."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Var
from tvm.ir.expr import TensorLoad

from tvm_scan.extraction.nest import linear_in
from tvm_scan.recurrence import Recurrence


@lru_cache(maxsize=64)
def contiguous_axis(recurrence: Recurrence) -> str | None:
    """``time`` or ``lane``: which one moves the last index of most accesses by one.

    Parameters
    ----------
    recurrence : Recurrence
        Whose body's accesses to memory are looked at.

    Returns
    -------
    str or None
        None where neither does.
    """
    lane = recurrence.lanes[-1].var if recurrence.lanes else None
    votes = {"time": 0, "lane": 0}

    def count(buffer: Var, indices: list[Any]) -> None:
        if str(buffer.scope()) == "local" or not indices:
            return
        last = indices[-1]
        for name, var in (("time", recurrence.time.var), ("lane", lane)):
            if var is None:
                continue
            part = linear_in(last, var)
            if part is not None and abs(part[0]) == 1:
                votes[name] += 1

    tvm_ffi.structural_walk(
        recurrence.body,
        [
            (TensorLoad, lambda load: count(load.source, list(load.indices))),
            (tirx.BufferStore, lambda store: count(store.buffer, list(store.indices))),
        ],
    )
    if votes["time"] == votes["lane"] == 0:
        return None
    return "time" if votes["time"] >= votes["lane"] else "lane"


def time_is_outside(recurrence: Recurrence) -> bool:
    """Return whether the user's nest has a lane loop inside its time loop.

    Parameters
    ----------
    recurrence : Recurrence
        Whose nest is looked at.

    Returns
    -------
    bool
        True where TVM's sequential code is a vector loop over lanes at every step.
    """
    inside: list[bool] = []

    def visit(loop: tirx.For) -> None:
        if loop.loop_var.same_as(recurrence.time.var):
            inside.append(any(_is_loop_of(loop.body, lane.var) for lane in recurrence.lanes))

    tvm_ffi.structural_walk(recurrence.nest, [(tirx.For, visit)])
    return any(inside)


def _is_loop_of(body: object, var: Var) -> bool:
    matches: list[bool] = []

    def visit(loop: tirx.For) -> None:
        matches.append(loop.loop_var.same_as(var))

    tvm_ffi.structural_walk(body, [(tirx.For, visit)])
    return any(matches)
