"""Inputs of a thread's items in registers: read once, used by reduction and replay.

Only loads that happen at every step whatever the data are staged (one under a condition may be
out of bounds where the condition is false), and only those that no inner loop indexes.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Var
from tvm.ir.expr import TensorLoad

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.ir import local
from tvm_scan.schedules.replica import Replica

__all__ = ["StagedInputs"]

_MAX_STAGED = 8


class StagedInputs:
    """Register copies of the inputs that every step reads.

    Parameters
    ----------
    recurrence : Recurrence
        Whose inputs.
    replica : Replica
        Where they are used; gives the lanes.
    items : int
        Items per thread.
    """

    def __init__(self, recurrence: Recurrence, replica: Replica, items: int) -> None:
        self.time = recurrence.time.var
        self.replica = replica
        self.found: list[tuple[TensorLoad, Var]] = []
        if any(carry.state_axes for carry in recurrence.carries):
            return
        for load in _steady_loads(recurrence.body, recurrence, self.time):
            if not any(tir.structurally_equal(load, other) for other, _ in self.found):
                name = f"{load.source.name}_in"
                self.found.append((load, local(name, [items], tir.dtype_of(load))))
        self.found = self.found[:_MAX_STAGED]

    @property
    def buffers(self) -> list[Var]:
        """Register arrays to allocate."""
        return [buffer for _, buffer in self.found]

    def fill(self, item: Any, time: Any) -> Any:
        """Load the inputs of one item."""
        return tir.seq(
            [tirx.BufferStore(buffer, self._at(load, time), [item]) for load, buffer in self.found]
        )

    def _at(self, load: TensorLoad, time: Any) -> Any:
        return self.replica.place(load, None, time)

    def use(self, stmt: Any, item: Any, time: Any) -> Any:
        """``stmt`` with the staged loads taken from registers."""
        table = [(self._at(load, time), buffer) for load, buffer in self.found]

        def on_load(load: TensorLoad) -> Any:
            for staged, buffer in table:
                if load.source.same_as(staged.source) and tir.structurally_equal(load, staged):
                    return tirx.BufferLoad(buffer, [item])
            return load

        return tir.map_loads(stmt, on_load) if table else stmt


def _steady_loads(body: Any, recurrence: Recurrence, time: Var) -> list[TensorLoad]:
    """Loads of pure inputs at the step's own index, outside of any condition or inner loop."""
    written = tir.VarMap((b, True) for b in recurrence.outputs)
    allowed = tir.VarMap((lane.var, True) for lane in recurrence.lanes)
    allowed[time] = True
    found: list[TensorLoad] = []
    skip = tvm_ffi.WalkResult.SKIP

    def on_load(load: TensorLoad) -> None:
        names = [v for index in load.indices for v in tir.variables(index).keys()]
        if load.source in written or str(load.source.scope()) == "local":
            return
        inside = all(v in allowed or v in symbols for v in names)
        if inside and any(v.same_as(time) for v in names):
            found.append(load)

    symbols = tir.VarMap()
    for axis in (*recurrence.lanes, recurrence.time):
        for var in tir.variables(axis.extent).keys():
            symbols[var] = True

    def on_call(call: Call) -> Any:
        return skip if tir.call_name(call) == "prim.if_then_else" else None

    tvm_ffi.structural_walk(
        body,
        [
            (TensorLoad, on_load),
            (tirx.IfThenElse, lambda _: skip),
            (tirx.For, lambda _: skip),
            (tirx.Select, lambda _: skip),
            (tirx.And, lambda _: skip),
            (tirx.Or, lambda _: skip),
            (Call, on_call),
        ],
        order="pre",
    )
    return found
