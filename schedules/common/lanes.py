"""Lanes as numbers: how many there are, which one a number means, and what each of them keeps."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.ir import as_dtype, each, int_const, local


def lane_count(recurrence: Recurrence) -> Any:
    """Number of lanes; int64 where the lanes' own dtype may not hold it."""
    extents = [lane.extent for lane in recurrence.lanes]
    if not extents:
        return int_const(1, recurrence.time.var)
    known = [tir.as_int(extent) for extent in extents]
    if prod(extent or 0 for extent in known) >= 1 << 31:  # 0 where one is not known
        extents = [as_dtype(extent, "int64") for extent in extents]
    total = extents[0]
    for extent in extents[1:]:
        total = total * extent
    return tir.simplify(total)


def decode_lanes(recurrence: Recurrence, row: Any) -> list[Any]:
    """Lane indices of the row-major lane number ``row``."""
    values: list[Any] = []
    dtype = tir.dtype_of(row)
    for lane in reversed(recurrence.lanes):
        # Without lanes no row is ever decoded, but TVM folds a division by a constant zero.
        extent = int_const(1, dtype) if tir.as_int(lane.extent) == 0 else lane.extent
        extent = as_dtype(extent, dtype)
        outermost = len(values) == len(recurrence.lanes) - 1
        values.append(as_dtype(row if outermost else row % extent, tir.dtype_of(lane.var)))
        row = row // extent
    return values[::-1]


def clear(buffers: Sequence[Var]) -> Any:
    """Statement that sets buffers of constant extents to zero."""

    def zero(buffer: Var) -> Any:
        value = tirx.const(0, tir.dtype_of(buffer))
        shape = [int(extent) for extent in tir.shape_of(buffer)]
        return each(shape, lambda index: tirx.BufferStore(buffer, value, index), False)

    return tir.seq([zero(buffer) for buffer in buffers])


def guard_of(recurrence: Recurrence, lanes: Sequence[Any]) -> Any:
    """Condition under which the lane at ``lanes`` exists; None where every one does."""
    if recurrence.guard is None:
        return None
    table = tir.VarMap((a.var, v) for a, v in zip(recurrence.lanes, lanes, strict=True))
    return tir.substitute(recurrence.guard, table)


def carry_scratch(recurrence: Recurrence, lead: Sequence[Any]) -> list[Var]:
    """Global scratch for the state of a lane, ``lead`` times: one buffer per carry."""
    return [
        local(
            f"carry{i}", [*lead, *(int(a.extent) for a in carry.state_axes)], carry.dtype, "global"
        )
        for i, carry in enumerate(recurrence.carries)
    ]


def state_buffers(recurrence: Recurrence) -> list[Var]:
    """The user's buffers that hold an in-place state, which the first step reads."""
    return [r.buffer for r in recurrence.registers if r.visible and not r.timed]
