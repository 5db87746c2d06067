"""Along which axis of a recurrence memory is contiguous."""

from __future__ import annotations

import tvm_ffi
from tvm import tirx
from tvm.ir import Var
from tvm.ir.expr import TensorLoad

from tvm_scan.extraction.nest import linear_in
from tvm_scan.recurrence import Recurrence

__all__ = ["contiguous_axis"]


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

    def count(buffer: Var, indices: object) -> None:
        if str(buffer.scope()) == "local" or not len(indices):  # type: ignore[arg-type]
            return
        last = indices[-1]  # type: ignore[index]
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
