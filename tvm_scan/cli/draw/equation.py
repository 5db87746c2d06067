"""A recurrence as an equation."""

from __future__ import annotations

from typing import Any

from tvm_scan import Recurrence, tir
from tvm_scan.delta_rule import TimeLoop
from tvm_scan.recurrence import Carry
from tvm_scan.text import as_text


def number(extent: Any) -> str:
    """An extent for people: ``5000``, not ``T.int64(5000)``."""
    constant = tir.as_int(extent)
    return as_text(extent) if constant is None else str(constant)


def lane_counts(recurrence: TimeLoop) -> str:
    """The extents of the lane axes for people: ``8 x n``, and ``1`` without any."""
    return " x ".join(number(axis.extent) for axis in recurrence.lanes) or "1"


def equations(recurrence: Recurrence) -> list[str]:
    """One line per carry: the carry after the step, over the carry before it and the inputs."""
    lines = []
    for carry in recurrence.carries:
        if carry.lag > 1:
            lines.append(f"    and {carry.old.name} is {carry.name} at t - {carry.lag}")
            continue
        where = _state_indices(carry)
        lines.append(f"{carry.name}{where} at t  =  {as_text(carry.step)}")
        if carry.first is not None:
            lines.append(f"{carry.name}{where} at 0  =  {as_text(carry.first)}")
        lines.append(f"    where {carry.old.name} on the right is the carry at t - 1")
        for other in recurrence.carries:
            if tir.contains_var(carry.step, [other.before]):
                lines.append(f"    and {other.before.name} is {other.name} at t - {other.lag}")
    return lines


def _state_indices(carry: Carry) -> str:
    return f"[{', '.join(axis.var.name for axis in carry.state_axes)}]" if carry.state_axes else ""


def describe(recurrence: Recurrence) -> dict[str, Any]:
    """Return a recurrence as plain data."""
    return {
        "function": str((recurrence.func.attrs or {}).get("global_symbol", "main")),
        "time": {"axis": recurrence.time.var.name, "extent": number(recurrence.time.extent)},
        "lanes": [{"axis": a.var.name, "extent": number(a.extent)} for a in recurrence.lanes],
        "equations": equations(recurrence),
        "carries": [
            {
                "name": carry.name,
                "dtype": carry.dtype,
                "cells_per_lane": [int(axis.extent) for axis in carry.state_axes],
                "family": group.algebra.name,
                "level": group.level,
                "formulas": group.algebra.formulas(),
            }
            for group in recurrence.groups
            for carry in (recurrence.carries[i] for i in group.carries)
        ],
        "emits": sorted({str(emit.buffer.name) for emit in recurrence.emits}),
        "inputs": [str(b.name) for b in recurrence.inputs],
    }
