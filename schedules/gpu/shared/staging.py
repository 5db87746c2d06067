"""Inputs and outputs of a thread's items in registers: read once, used by reduction and replay.

Only loads that happen at every step whatever the data are staged (one under a condition may be
out of bounds where the condition is false), and only those that no inner loop indexes. With
vectors, outputs are staged too, and both move between registers and memory by 128 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from typing import TYPE_CHECKING, Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Var
from tvm.ir.expr import TensorLoad

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.ir import int_const, local
from tvm_scan.schedules.common.replica import Replica
from tvm_scan.schedules.common.state_split import StateSplit
from tvm_scan.schedules.gpu.thread.held import HOLDS_NOTHING, HeldIndices
from tvm_scan.schedules.gpu.thread.vector_access import VectorAccess, steady_stores, vector_access

if TYPE_CHECKING:
    from tvm_scan.schedules.gpu.shared.staged import Staged


#: Inputs that a thread keeps in registers at most; registers for them beside many cells.
MAX_STAGED, _BESIDE_CELLS = 8, 16


@dataclass(frozen=True, eq=False)
class _InRegisters:
    """One access (a load or a store), its registers, its vectors, or how the block moves it."""

    access: Any
    registers: Var
    vectors: VectorAccess
    stream: Staged | None = None


class StagedItems:
    """Register copies of what every step reads and, with vectors, of what it writes.

    Parameters
    ----------
    recurrence : Recurrence
        Whose inputs and outputs.
    replica : Replica
        Where they are used; gives the lanes.
    items : int
        Items per thread.
    vectors : bool
        Whether to move several items at once.
    loads : list of TensorLoad, optional
        What to stage; if not given, every steady load; of states of many cells, if there is room.
    streams : sequence of Staged
        What the block moves between memory and registers: ``fill`` and ``empty`` leave it out.
    held : HeldIndices
        Holds what the number of the thread decides of the index of a vector that is stored.
    writes : bool
        Whether outputs are written.
    """

    def __init__(
        self,
        recurrence: Recurrence,
        replica: Replica,
        items: int,
        vectors: bool,
        loads: list[TensorLoad] | None = None,
        streams: Sequence[Staged] = (),
        *,
        held: HeldIndices = HOLDS_NOTHING,
        writes: bool = True,
    ) -> None:
        self.recurrence, self.replica, self.items = recurrence, replica, items
        self.held = held
        self.loads: list[_InRegisters] = []
        self.stores: list[_InRegisters] = []
        #: What the block moves, and the registers on the thread's side.
        self.by_block: list[tuple[Any, Var]] = []
        if loads is None:
            loads = steady_loads(recurrence.body, recurrence, [recurrence.time.var])
            if any(carry.state_axes for carry in recurrence.carries):
                # Elements of many cells leave few registers for what is read by vectors.
                loads = loads if vectors and items * len(loads) <= _BESIDE_CELLS else []
            loads = tir.each_once([*(s.access for s in streams if not s.stored), *loads])
        for load in loads[:MAX_STAGED]:
            self.loads.append(self._staged(load, load.source, "in", vectors, streams))
        taken = [s.access for s in streams if s.stored]
        for store in steady_stores(recurrence) if writes and (vectors or taken) else []:
            staged = self._staged(store, store.buffer, "out", vectors, streams)
            if staged.vectors.lanes > 1 or staged.stream is not None:
                self.stores.append(staged)

    def _staged(
        self, access: Any, buffer: Var, suffix: str, vectors: bool, streams: Sequence[Staged]
    ) -> _InRegisters:
        registers = local(f"{buffer.name}_{suffix}", [self.items], tir.dtype_of(buffer))
        for stream in streams:
            if stream.access.same_as(access):
                self.by_block.append((stream, registers))
                return _InRegisters(access, registers, stream.vectors, stream)
        access_vectors = VectorAccess()
        if vectors:
            access_vectors = vector_access(
                buffer, list(access.indices), self.recurrence, self.items
            )
        return _InRegisters(access, registers, access_vectors)

    @property
    def buffers(self) -> list[Var]:
        """Register arrays to allocate."""
        return [staged.registers for staged in (*self.loads, *self.stores)]

    @property
    def loads_alone(self) -> bool:
        """Return whether threads load something themselves."""
        return any(staged.stream is None for staged in self.loads)

    @property
    def stores_alone(self) -> bool:
        """Return whether threads store something themselves."""
        return any(staged.stream is None for staged in self.stores)

    @property
    def group(self) -> int:
        """Consecutive items that exist together, or not at all: those of the widest vector."""
        widths = [staged.vectors.lanes for staged in (*self.loads, *self.stores)]
        return max([1, *(gcd(width, self.items) for width in widths)])

    def fill(self, item: Any, time: Any) -> Any:
        """Load the inputs of the ``group`` items that begin at ``item``, at ``time``."""
        return self._move(self.loads, item, time, self._load)

    def empty(self, item: Any, time: Any) -> Any:
        """Store the outputs of such a group."""
        return self._move(self.stores, item, time, self._store)

    def _move(self, all_staged: list[_InRegisters], item: Any, time: Any, make: Any) -> Any:
        stmts = []
        for staged in all_staged:
            if staged.stream is not None:
                continue
            for offset in range(0, self.group, staged.vectors.lanes):
                stmts.append(make(staged, item + offset, time + offset))
        return tir.seq(stmts)

    def _load(self, staged: _InRegisters, item: Any, time: Any) -> Any:
        load = self._at(staged.access, time)
        vectors = staged.vectors
        if vectors.lanes == 1:
            return tirx.BufferStore(staged.registers, load, [item])
        value = tirx.BufferLoad(load.source, vectors.ramp(list(load.indices)))
        items = tirx.Ramp(item, int_const(1, item), vectors.lanes)
        return tirx.BufferStore(staged.registers, value, [items])

    def _store(self, staged: _InRegisters, item: Any, time: Any) -> Any:
        vectors = staged.vectors
        items = tirx.Ramp(item, int_const(1, item), vectors.lanes)
        indices = [self.replica.instantiate(index, None, time) for index in staged.access.indices]
        indices = self.held.element(staged.access.buffer, vectors.ramp(indices))
        value = tirx.BufferLoad(staged.registers, [items])
        return tirx.BufferStore(staged.access.buffer, value, indices)

    def _at(self, load: TensorLoad, time: Any) -> Any:
        return self.replica.instantiate(load, None, time)

    def use(self, stmt: Any, item: Any, time: Any) -> Any:
        """``stmt`` with the staged accesses made to registers."""
        inputs = tir.ExprMap((self._at(s.access, time), s) for s in self.loads)
        outputs = tir.VarMap((s.access.buffer, s) for s in self.stores)

        def on_load(load: TensorLoad) -> Any:
            staged = inputs.get(load)
            if staged is None:
                return load
            return tirx.BufferLoad(staged.registers, [staged.vectors.slot(item)])

        def on_store(store: tirx.BufferStore) -> Any:
            staged = outputs.get(store.buffer)
            if staged is None:
                return store
            return tirx.BufferStore(staged.registers, store.value, [staged.vectors.slot(item)])

        stmt = tir.map_loads(stmt, on_load) if self.loads else stmt
        if self.stores:
            stmt = tvm_ffi.structural_map(stmt, (tirx.BufferStore, on_store))
        return stmt


def steady_loads(
    body: Any, recurrence: Recurrence, over: Sequence[Var], *, free_of: Sequence[Var] = ()
) -> list[TensorLoad]:
    """Different loads of pure inputs outside of any condition or inner loop.

    Their indices move with all of ``over`` and else with lanes at most, and not with ``free_of``.
    """
    return list(_steady_loads(body, recurrence, tuple(over), tuple(free_of)))


def loads_beside_states(split: StateSplit, recurrence: Recurrence) -> list[TensorLoad]:
    """Different `steady_loads` of a step that move with time and are alike for all states."""
    time = [recurrence.time.var]
    parts = (split.outside, *(part.body for part in split.loops))
    return tir.each_once(load for part in parts for load in steady_loads(part, recurrence, time))


@lru_cache(maxsize=256)  # every plan of a recurrence asks the same
def _steady_loads(
    body: Any, recurrence: Recurrence, over: tuple[Var, ...], free_of: tuple[Var, ...]
) -> tuple[TensorLoad, ...]:
    written = tir.VarMap((b, True) for b in recurrence.outputs)
    allowed = tir.VarMap((lane.var, True) for lane in recurrence.lanes)
    for var in over:
        allowed[var] = True
    loads: list[TensorLoad] = []
    skip = tvm_ffi.WalkResult.SKIP

    def on_load(load: TensorLoad) -> None:
        names = [v for index in load.indices for v in tir.variables(index).keys()]
        if load.source in written or str(load.source.scope()) == "local":
            return
        inside = all(v in allowed or v in symbols for v in names)
        moves = all(any(v.same_as(o) for v in names) for o in over)
        if inside and moves and not any(v.same_as(f) for v in names for f in free_of):
            loads.append(load)

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
    return tuple(tir.each_once(loads))
