"""The axis of a recurrence along which memory is contiguous."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
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

    for load in tir.loads(recurrence.body):
        count(load.source, list(load.indices))
    for store in tir.nodes(recurrence.body, tirx.BufferStore):
        count(store.buffer, list(store.indices))
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
    return any(
        inner.loop_var.same_as(lane.var)
        for loop in tir.nodes(recurrence.nest, tirx.For)
        if loop.loop_var.same_as(recurrence.time.var)
        for inner in tir.nodes(loop.body, tirx.For)
        for lane in recurrence.lanes
    )
