"""Expressions of a step in the words of its author, for messages."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_scan import tir
from tvm_scan.extraction.rewrite import BodyWriter
from tvm_scan.extraction.symbolic import StepState
from tvm_scan.text import as_text


def in_own_words(expr: Any, state: StepState, writer: BodyWriter) -> str:
    """Text of an expression, with the user's buffers for what stands for their cells.

    Cells along an axis of the state, and those that are computed in a wider dtype, keep the
    variables that stand for them, which have the buffer's name.
    """
    layouts = writer.layouts
    time = layouts.nest.time.var
    values, befores = tir.VarMap(), tir.VarMap()
    for cell in state.cells.values():
        if tir.dtype_of(cell.old) == tir.dtype_of(cell.buffer):
            befores[cell.before] = cell
            if all(isinstance(part, int) for part in cell.indices):
                values[cell.old] = _load(cell, cell.indices, writer, time)

    def on_load(load: Any) -> Any:
        cell = befores.get(load.source)
        return load if cell is None else _load(cell, list(load.indices), writer, time)

    return as_text(tir.map_loads(tir.substitute(expr, values), on_load))


def _load(cell: Any, cell_index: list[Any], writer: BodyWriter, time: Any) -> Any:
    register = writer.layouts.registers[cell.buffer]
    return tirx.BufferLoad(cell.buffer, writer.memory_index(register, cell_index, time - cell.lag))
