"""Rows that a vector of time reads or writes against the order of memory, reversed in registers.

TVM's code generator makes a vector whose cells lie in memory in falling order cell by cell: three
instructions for each. A row that is read in rising order and reversed by one shuffle takes two for
all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Var
from tvm.tirx import ForKind

from tvm_scan import tir
from tvm_scan.extraction.nest import linear_in
from tvm_scan.schedules.common.branches import unconditional_loads
from tvm_scan.schedules.common.ir import as_dtype, loop
from tvm_scan.schedules.cpu.line_stores import lone_stores
from tvm_scan.schedules.cpu.vector_values import Vector

#: Bytes of cells of which every processor shuffles whole vectors in one or two instructions.
REVERSED_BYTES = (4, 8)


class ReversedRows:
    """Rows of ``width`` steps in registers, in the order of time.

    Parameters
    ----------
    width : int
        Steps of a vector.

    Attributes
    ----------
    buffers : list of Var
        Registers to allocate.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self.buffers: list[Var] = []

    def taken_out(self, code: Any, v: Var) -> tuple[list[Any], Any, list[Any]]:
        """Take accesses in falling order of memory out of the code of a step.

        Parameters
        ----------
        code : Stmt
            Of step ``v`` of a vector, without branches.
        v : Var
            The step.

        Returns
        -------
        before : list of Stmt
            Loads of whole rows.
        code : Stmt
            The step, on registers.
        after : list of Stmt
            Stores of whole rows.
        """
        before: list[Any] = []
        after: list[Any] = []
        loaded = tir.ExprMap()
        stored = tir.buffers_stored(code)
        bound = tir.variables_bound(code)

        def row_of(buffer: Var, indices: list[Any]) -> _Row | None:
            """A row in rising order, if it falls with ``v``."""
            wide = tir.byte_size(tir.dtype_of(buffer)) in REVERSED_BYTES
            if str(buffer.scope()) == "local" or not wide:
                return None
            moving = [d for d, index in enumerate(indices) if tir.contains_var(index, [v])]
            if len(moving) != 1 or any(var in bound for var in tir.variables(indices).keys()):
                return None
            (axis,) = moving
            along = linear_in(indices[axis], v)
            # A column of a single lane is a row, too.
            within = [tir.as_int(extent) for extent in tir.shape_of(buffer)[axis + 1 :]]
            if along is None or along[0] != -1 or any(extent != 1 for extent in within):
                return None
            lowest = along[1] - tirx.IntImm(tir.dtype_of(along[1]), self.width - 1)
            return _Row(buffer, [*indices[:axis], tir.simplify(lowest), *indices[axis + 1 :]], axis)

        def registers(buffer: Var) -> Vector:
            vector = Vector(f"reversed{len(self.buffers)}", self.width, tir.dtype_of(buffer))
            self.buffers.append(vector.buffer)
            return vector

        for load in unconditional_loads(code):
            # What the step writes itself it may read again.
            row = None if load.source in stored else row_of(load.source, list(load.indices))
            if row is None or load in loaded:
                continue
            vector = registers(load.source)
            before += row.load_into(vector)
            loaded[load] = vector.at(v)

        alone = tir.VarMap((store.buffer, True) for store in lone_stores(code))

        def on_store(store: tirx.BufferStore) -> Any:
            row = row_of(store.buffer, list(store.indices)) if store.buffer in alone else None
            if row is None:
                return store
            vector = registers(store.buffer)
            after.extend(row.store_from(vector))
            return tirx.BufferStore(vector.buffer, store.value, [v])

        code = tir.map_loads(code, lambda load: loaded.get(load, load))
        code = tvm_ffi.structural_map(code, (tirx.BufferStore, on_store))
        return before, code, after


@dataclass(frozen=True)
class _Row:
    """Cells of a buffer from some indices on along an axis: neighbours, in the order of memory."""

    buffer: Var
    indices: list[Any]
    axis: int

    def load_into(self, vector: Vector) -> list[Any]:
        """Statements that set a vector to the cells, the last first."""
        cells = self._each(
            vector,
            lambda at, v: tirx.BufferStore(vector.buffer, tirx.BufferLoad(self.buffer, at), [v]),
        )
        return [cells, vector.store(_reversed(vector))]

    def store_from(self, vector: Vector) -> list[Any]:
        """Statements that set the cells to those of a vector, the last first."""
        cells = self._each(vector, lambda at, v: tirx.BufferStore(self.buffer, vector.at(v), at))
        return [vector.store(_reversed(vector)), cells]

    def _each(self, vector: Vector, cell: Callable[[list[Any], Var], Any]) -> Any:
        """One cell after another, in one operation: TVM's ramps are of the last axis alone."""
        lowest = self.indices[self.axis]

        def at(v: Var) -> Any:
            index = lowest + as_dtype(v, tir.dtype_of(lowest))
            return cell([*self.indices[: self.axis], index, *self.indices[self.axis + 1 :]], v)

        return loop("v", vector.width, at, ForKind.VECTORIZED)


def _reversed(vector: Vector) -> Any:
    return tirx.Shuffle([vector.load()], list(reversed(range(vector.width))))
