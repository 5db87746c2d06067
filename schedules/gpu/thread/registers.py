"""Cells of a thread's register arrays."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan.schedules.common.ir import int_const


def cell_of(array: Var, index: int = 0) -> Any:
    """Value of a cell of an array of one axis."""
    return tirx.BufferLoad(array, [int_const(index, "int32")])


def set_cell(array: Var, value: Any, index: int = 0) -> Any:
    """Statement that sets such a cell."""
    return tirx.BufferStore(array, value, [int_const(index, "int32")])
