"""Cells of a thread's register arrays."""

from __future__ import annotations

from itertools import product
from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.schedules.common.ir import int_const


def cells_of(array: Var) -> list[list[Any]]:
    """Indices of every cell of an array of constant extents."""
    extents = [range(int(e)) for e in tir.shape_of(array)]
    return [[int_const(i, "int32") for i in cell] for cell in product(*extents)]


def cell_of(array: Var, index: int = 0) -> Any:
    """Value of a cell of an array of one axis."""
    return tirx.BufferLoad(array, [int_const(index, "int32")])


def set_cell(array: Var, value: Any, index: int = 0) -> Any:
    """Statement that sets such a cell."""
    return tirx.BufferStore(array, value, [int_const(index, "int32")])
