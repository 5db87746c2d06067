"""Checks of what a recurrence asks of a device under any plan: indices, dtypes, functions."""

from __future__ import annotations

from math import prod
from typing import Protocol

from tvm_scan import tir
from tvm_scan.delta_rule import TimeLoop
from tvm_scan.schedules.common.sizes import element_parts
from tvm_scan.schedules.machine.machine import Machine
from tvm_scan.schedules.machine.narrow import first_wide
from tvm_scan.schedules.machine.terms import missing_functions


class _Plan(Protocol):
    def require(self, holds: bool, expected: str, found: str, fix: str) -> None: ...
    def combines(self, steps: int) -> float: ...


def check_device(plan: _Plan, recurrence: TimeLoop, machine: Machine) -> None:
    """Check what a plan's kernels for a recurrence take of a device's language.

    Raises
    ------
    PlanError
        With what was expected, found, and the fix.
    """
    _check_indices(plan, recurrence, machine)
    if machine.device.lacks:
        _check_dtypes(plan, recurrence, machine)
    missing = missing_functions(machine.device, recurrence)
    plan.require(
        not missing,
        f"functions that TVM has for {machine.device.name}",
        ", ".join(missing),
        "write them by others, such as exp, log and sqrt",
    )


def _check_dtypes(plan: _Plan, recurrence: TimeLoop, machine: Machine) -> None:
    lacks, name = machine.device.lacks, machine.device.name
    for buffer in (*recurrence.inputs, *recurrence.outputs):
        dtype = tir.dtype_of(buffer)
        plan.require(
            dtype not in lacks,
            f"dtypes that {name} has",
            f"{dtype} for {buffer.name}",
            f"use another one than {', '.join(sorted(lacks))}",
        )
    wide = first_wide(recurrence) if "int64" in lacks else None
    plan.require(
        wide is None,
        f"integers of a step that fit 32 bits, as those of {name} have",
        str(wide),
        "compute it in float32, or with smaller extents",
    )
    # Elements lie in memory of threads that exchange; of bool they do so as bool.
    dtypes = {dtype for _, dtype in element_parts(recurrence)} if plan.combines(1) else set()
    plan.require(
        dtypes.isdisjoint(lacks - {"bool"}),
        f"elements of dtypes that {name} has",
        ", ".join(sorted(dtypes)),
        "use algorithm lanes, which makes none",
    )


def _check_indices(plan: _Plan, recurrence: TimeLoop, machine: Machine) -> None:
    axes = recurrence.axes
    narrow = "int64" in machine.device.lacks
    if not narrow and all(tir.dtype_of(axis.var) == "int64" for axis in axes):
        return
    expected, fix = (
        "int64 indices into a buffer of 2^31 elements or more",
        "write the extents of its loops as T.int64(n)",
    )
    if narrow:
        expected, fix = (
            f"fewer than 2^31 elements in a buffer on {machine.device.name}, whose indices have "
            "32 bits",
            "cut the buffer",
        )
    for buffer in (*recurrence.inputs, *recurrence.outputs):
        extents = [tir.as_int(extent) for extent in tir.shape_of(buffer)]
        size = prod(extent or 0 for extent in extents)  # 0 where one is not known
        plan.require(
            size < 1 << 31, expected, f"int32 indices into {buffer.name} of {size} elements", fix
        )
