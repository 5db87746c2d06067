"""Loads of the loops over a thread's own states: kept in registers for several steps.

Loads that move with time are taken as vectors of consecutive steps, where there are such; those
that do not move are loaded once. The others stay where they stand in the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.ir import Var
from tvm.ir.expr import TensorLoad

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.ir import as_dtype, int_const, local, loop
from tvm_scan.schedules.common.replica import Replica
from tvm_scan.schedules.common.state_split import StateSplit
from tvm_scan.schedules.gpu.shared.staging import steady_loads
from tvm_scan.schedules.gpu.shared.walk_tiles import WalkTiles
from tvm_scan.schedules.gpu.thread.plans import WalkPlan
from tvm_scan.schedules.gpu.thread.vector_access import VectorAccess, vector_access

_UNROLLED = tirx.ForKind.UNROLLED


class StateLoads:
    """Registers for the loads of the loops over a thread's states.

    Parameters
    ----------
    recurrence, plan, split, replica
        As the walk has them.
    owner : Expr
        Number of the thread among those of its lane.
    states_each : int
        States of a thread.
    tiles : WalkTiles
        Loads that the block has brought to shared memory.
    scale : callable
        ``scale(load, value)``: what the loops take for a value that time does not change.
    """

    def __init__(
        self,
        recurrence: Recurrence,
        plan: WalkPlan,
        split: StateSplit,
        replica: Replica,
        owner: Any,
        states_each: int,
        tiles: WalkTiles,
        scale: Callable[[TensorLoad, Any], Any],
    ) -> None:
        self.split, self.replica, self.owner, self.states_each = split, replica, owner, states_each
        self.tiles, self.scale = tiles, scale
        time, items = recurrence.time.var, plan.items_per_thread
        self._timed: list[tuple[TensorLoad, Var, VectorAccess]] = []
        self._fixed = tir.ExprMap()
        for part in split.loops:
            counter = part.loop_var
            for load in steady_loads(part.body, recurrence, [time, counter]):
                if tiles.has(load):
                    continue
                vectors = vector_access(load.source, list(load.indices), recurrence, items)
                if plan.vector_loads and vectors.lanes > 1:
                    name, shape = f"{load.source.name}_step", [states_each, vectors.lanes]
                    self._timed.append((load, local(name, shape, tir.dtype_of(load)), vectors))
            for load in steady_loads(part.body, recurrence, [counter], free_of=[time]):
                name = f"{load.source.name}_fixed"
                self._fixed[load] = local(name, [states_each], tir.dtype_of(scale(load, load)))

    @property
    def buffers(self) -> list[Var]:
        """Registers to allocate, all of which have a dimension that counts the states."""
        return [entry[1] for entry in (*self._timed, *self._fixed.items())]

    def registers_of(self, load: TensorLoad) -> Var | None:
        """The registers of a load that does not move with time; None if it has none."""
        return self._fixed.get(load)

    def begin(self) -> list[Any]:
        """Load, before the first step, what does not move with time."""

        def of_load(load: TensorLoad, buffer: Var) -> Any:
            return loop(
                "s", self.states_each, lambda s: self._copied(load, buffer, [s], s, None, None)
            )

        return [of_load(*entry) for entry in self._fixed.items()]

    def fill(self, k: int, time: Any) -> list[Any]:
        """Load, before an owner's ``k``-th step at ``time``, the vectors that begin with it."""
        fills = []
        for load, buffer, vectors in self._timed:
            if k % vectors.lanes == 0:
                fills.append(self._vector(load, buffer, time, vectors))
        return fills

    def _vector(self, load: TensorLoad, buffer: Var, time: Any, vectors: VectorAccess) -> Any:
        def of_state(s: Any) -> Any:
            zero = int_const(0, "int32")
            lanes = tirx.Ramp(zero, int_const(1, zero), vectors.lanes)
            return self._copied(load, buffer, [s, lanes], s, time, vectors)

        return loop("s", self.states_each, of_state, _UNROLLED)

    def _copied(
        self, load: TensorLoad, buffer: Var, to: list[Any], s: Any, time: Any, v: Any
    ) -> Any:
        """``buffer[to] = load`` for the thread's state ``s``; a whole vector if ``v`` says how."""
        counter = next(
            part.loop_var for part in self.split.loops if tir.contains_var(load, [part.loop_var])
        )
        dtype = tir.dtype_of(counter)
        state = as_dtype(self.owner, dtype) * self.states_each + as_dtype(s, dtype)
        table = tir.VarMap([(counter, state)])
        indices = [
            self.replica.instantiate(tir.substitute(index, table), None, time)
            for index in load.indices
        ]
        value = tirx.BufferLoad(load.source, v.ramp(indices) if v else indices)
        return tirx.BufferStore(buffer, value if v else self.scale(load, value), to)

    def read(self, load: TensorLoad, state: Var, k: int) -> Any:
        """The value for ``load`` in step ``k`` of its owner, for the thread's ``state``."""
        for timed, buffer, vectors in self._timed:
            if tir.structurally_equal(load, timed):
                slot = int_const(vectors.slot(k) % vectors.lanes, "int32")
                return tirx.BufferLoad(buffer, [state, slot])
        buffer = self.registers_of(load)
        if buffer is not None:
            return tirx.BufferLoad(buffer, [state])
        return self.tiles.read(load, state, k)
