"""Rows that a vector of time reads or writes against the order of memory, reversed in registers.

TVM's code generator makes a vector whose cells lie in memory in falling order cell by cell: three
instructions for each. A row that is read in rising order and reversed by one shuffle takes two for
all of them.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Var
from tvm.ir.expr import TensorLoad

from tvm_scan import tir
from tvm_scan.extraction.nest import linear_in
from tvm_scan.schedules.common.branches import unconditional_loads
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
        loaded: list[tuple[TensorLoad, Vector]] = []
        stored = tir.buffers_stored(code)
        read = tir.buffers_loaded(code)
        bound = tir.variables_bound(code)

        def row_of(buffer: Var, indices: list[Any]) -> list[Any] | None:
            """The indices of a row in rising order, if it falls with ``v``."""
            wide = tir.byte_size(tir.dtype_of(buffer)) in REVERSED_BYTES
            if str(buffer.scope()) == "local" or not indices or not wide:
                return None
            last = linear_in(indices[-1], v)
            if last is None or last[0] != -1 or tir.contains_var(indices[:-1], [v]):
                return None
            if any(var in bound for var in tir.variables(indices).keys()):
                return None
            lowest = last[1] - tirx.IntImm(tir.dtype_of(last[1]), self.width - 1)
            return [*indices[:-1], tirx.Ramp(tir.simplify(lowest), 1, self.width)]

        def registers(buffer: Var) -> Vector:
            vector = Vector(f"reversed{len(self.buffers)}", self.width, tir.dtype_of(buffer))
            self.buffers.append(vector.buffer)
            return vector

        for load in unconditional_loads(code):
            # What the step writes itself it may read again.
            row = None if load.source in stored else row_of(load.source, list(load.indices))
            if row is None or any(tir.structurally_equal(load, other) for other, _ in loaded):
                continue
            vector = registers(load.source)
            before.append(vector.store(self._reversed(tirx.BufferLoad(load.source, row))))
            loaded.append((load, vector))

        def on_load(load: TensorLoad) -> Any:
            for other, vector in loaded:
                if load.source.same_as(other.source) and tir.structurally_equal(load, other):
                    return tirx.BufferLoad(vector.buffer, [v])
            return load

        written = _stored_always(code)

        def on_store(store: tirx.BufferStore) -> Any:
            row = None
            if store.buffer in written and store.buffer not in read:
                row = row_of(store.buffer, list(store.indices))
            if row is None:
                return store
            vector = registers(store.buffer)
            after.append(tirx.BufferStore(store.buffer, self._reversed(vector.load()), row))
            return tirx.BufferStore(vector.buffer, store.value, [v])

        code = tvm_ffi.structural_map(code, (TensorLoad, on_load))
        code = tvm_ffi.structural_map(code, (tirx.BufferStore, on_store))
        return before, code, after

    def _reversed(self, row: Any) -> Any:
        return tirx.Shuffle([row], list(reversed(range(self.width))))


def _stored_always(code: Any) -> tir.VarMap:
    """Buffers that the code stores to once, whatever its conditions are."""
    every = tir.nodes(code, tirx.BufferStore)
    always = tir.nodes(code, tirx.BufferStore, outside=(tirx.IfThenElse, tirx.For))
    return tir.VarMap(
        (store.buffer, True)
        for store in always
        if sum(other.buffer.same_as(store.buffer) for other in every) == 1
    )
