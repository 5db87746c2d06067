"""One use of a recurrence in a kernel: its statements over fresh registers and given lanes.

A plan replays the loop body in several places. Every place gets its own registers, its own loop
variables and its own lane expressions; ``Replica`` makes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Var
from tvm.ir.expr import TensorLoad
from tvm.tirx import ForKind

from tvm_scan import tir
from tvm_scan.recurrence import Carry, Recurrence
from tvm_scan.schedules.ir import as_dtype, each, int_const, local

__all__ = [
    "Elements",
    "Replica",
    "carry_scratch",
    "clear",
    "decode_lanes",
    "guard_of",
    "lane_count",
    "state_buffers",
]

_UNROLL_LIMIT = 64


def lane_count(recurrence: Recurrence) -> Any:
    """Number of lanes; int64 where the lanes' own dtype may not hold it."""
    extents = [lane.extent for lane in recurrence.lanes]
    if not extents:
        return int_const(1, recurrence.time.var)
    known = [tir.as_int(extent) for extent in extents]
    if None not in known and prod(known) >= 1 << 31:
        extents = [as_dtype(extent, "int64") for extent in extents]
    total = extents[0]
    for extent in extents[1:]:
        total = total * extent
    return tir.simplify(total)


def decode_lanes(recurrence: Recurrence, row: Any) -> list[Any]:
    """Lane indices of the row-major lane number ``row``."""
    values: list[Any] = []
    dtype = tir.dtype_of(row)
    for lane in reversed(recurrence.lanes):
        # Without lanes no row is ever decoded, but TVM folds a division by a constant zero.
        extent = int_const(1, dtype) if tir.as_int(lane.extent) == 0 else lane.extent
        extent = as_dtype(extent, dtype)
        outermost = len(values) == len(recurrence.lanes) - 1
        values.append(as_dtype(row if outermost else row % extent, tir.dtype_of(lane.var)))
        row = row // extent
    return values[::-1]


def clear(buffers: Sequence[Var]) -> Any:
    """Statement that sets buffers of constant extents to zero."""

    def zero(buffer: Var) -> Any:
        value = tirx.const(0, tir.dtype_of(buffer))
        shape = [int(extent) for extent in tir.shape_of(buffer)]
        return each(shape, lambda place: tirx.BufferStore(buffer, value, place), False)

    return tir.seq([zero(buffer) for buffer in buffers])


def guard_of(recurrence: Recurrence, lanes: Sequence[Any]) -> Any:
    """Condition under which the lane at ``lanes`` exists; None where every one does."""
    if recurrence.guard is None:
        return None
    table = tir.VarMap((a.var, v) for a, v in zip(recurrence.lanes, lanes, strict=True))
    return tir.substitute(recurrence.guard, table)


def carry_scratch(recurrence: Recurrence, lead: Sequence[Any]) -> list[Var]:
    """Global scratch for the state of a lane, ``lead`` times: one buffer per carry."""
    return [
        local(
            f"carry{i}", [*lead, *(int(a.extent) for a in carry.state_axes)], carry.dtype, "global"
        )
        for i, carry in enumerate(recurrence.carries)
    ]


def state_buffers(recurrence: Recurrence) -> list[Var]:
    """The user's buffers that hold an in-place state, which the first step reads."""
    return [r.buffer for r in recurrence.registers if r.visible and not r.timed]


class Elements:
    """Storage for one element of every carry of a lane, ``lead`` times.

    Parameters
    ----------
    recurrence : Recurrence
        Whose elements.
    name : str
        Prefix of the buffer names.
    lead : sequence of Expr
        Leading extents (threads of a block, chunks of a row).
    scope : str
        Storage scope.
    """

    def __init__(self, recurrence: Recurrence, name: str, lead: Sequence[Any], scope: str) -> None:
        self.parts: list[list[Var]] = []
        self.trailing: list[list[int]] = []
        self.state_first = scope.startswith("shared")
        for i, (carry, algebra) in enumerate(
            zip(recurrence.carries, recurrence.algebras, strict=True)
        ):
            states = [int(axis.extent) for axis in carry.state_axes]
            # In shared memory the threads are the fastest dimension: neighbours hit
            # neighbouring banks, whatever the number of states.
            shape = [*states, *lead] if self.state_first else [*lead, *states]
            self.trailing.append(states)
            self.parts.append(
                [
                    local(f"{name}{i}{'abc'[j]}", shape, dtype, scope)
                    for j, dtype in enumerate(algebra.dtypes)
                ]
            )

    @property
    def buffers(self) -> list[Var]:
        """All buffers."""
        return [buffer for parts in self.parts for buffer in parts]

    def _index(self, carry: int, lead: Sequence[Any], place: Sequence[Any]) -> list[Any]:
        states = list(place)
        if self.state_first:
            return [*states, *lead] or [int_const(0, "int32")]
        return [*lead, *states] or [int_const(0, "int32")]

    def load(self, carry: int, lead: Sequence[Any], place: Sequence[Any]) -> tuple[Any, ...]:
        """Element of one carry cell."""
        index = self._index(carry, lead, place)
        return tuple(tirx.BufferLoad(buffer, index) for buffer in self.parts[carry])

    def store(
        self, carry: int, lead: Sequence[Any], place: Sequence[Any], element: Sequence[Any]
    ) -> Any:
        """Store an element, whose parts may be computed from what the place held."""
        index = self._index(carry, lead, place)
        parts = self.parts[carry]
        order = _write_order(parts, element)
        if order is not None:
            return tir.seq([tirx.BufferStore(parts[j], element[j], index) for j in order])
        names = [tirx.Var(f"e{j}", tir.dtype_of(buffer)) for j, buffer in enumerate(parts)]
        binds = [tirx.Bind(v, e) for v, e in zip(names, element, strict=True)]
        return tir.seq(
            [
                *binds,
                *(tirx.BufferStore(b, v, index) for b, v in zip(parts, names, strict=True)),
            ]
        )


def _write_order(parts: Sequence[Var], element: Sequence[Any]) -> list[int] | None:
    """Order in which no part is written before another one that is computed from it.

    None where they depend on each other in a circle. Where there is an order, no value needs a
    name, and TVM's pass that legalises bfloat16 overlooks values that have one.
    """
    loads = [tir.buffers_loaded(value) for value in element]
    left = list(range(len(parts)))
    order: list[int] = []
    while left:
        free = [i for i in left if not any(parts[i] in loads[j] for j in left if j != i)]
        if not free:
            return None
        order.append(free[0])
        left.remove(free[0])
    return order


class Replica:
    """The statements of a recurrence for one place of a kernel.

    Parameters
    ----------
    recurrence : Recurrence
        What to replay.
    lanes : sequence of Expr
        Value of each lane variable.
    unroll : bool
        Whether small constant loops are unrolled, so that registers are registers (CUDA).
    width : int
        Lanes that advance together: registers get a trailing dimension of that extent.
    inner : Expr or None
        Index into that dimension.
    """

    def __init__(
        self,
        recurrence: Recurrence,
        lanes: Sequence[Any],
        *,
        unroll: bool,
        width: int = 1,
        tag: str = "",
    ) -> None:
        self.recurrence = recurrence
        self.unroll = unroll
        self.width = width
        self._lanes = tir.VarMap(
            (lane.var, value) for lane, value in zip(recurrence.lanes, lanes, strict=True)
        )
        self._registers = tir.VarMap()
        self._staged: list[tuple[TensorLoad, Var]] = []
        for register in recurrence.registers:
            for old in (register.local, register.previous):
                if old is not None:
                    shape = [*tir.shape_of(old), width] if width > 1 else tir.shape_of(old)
                    self._registers[old] = local(f"{old.name}{tag}", shape, tir.dtype_of(old))

    @property
    def buffers(self) -> list[Var]:
        """Register arrays to allocate."""
        return [new for _, new in self._registers.items()]

    # ---- the recurrence's own statements --------------------------------------------------

    def _place(self, stmt: Any, inner: Any = None, time: Any = None) -> Any:
        table = self._lanes.copy()
        if time is not None:
            table[self.recurrence.time.var] = time
        if self.width > 1:
            stmt = self._widen(stmt, inner)
            if inner is not None:
                last = self.recurrence.lanes[-1].var if self.recurrence.lanes else None
                if last is not None and self._lane_moves:
                    table[last] = table[last] + inner
        else:
            for old, new in self._registers.items():
                table[old] = new
        stmt = tir.fresh_copy(stmt)
        stmt = tir.substitute(stmt, table)
        return unrolled(stmt) if self.unroll else stmt

    _lane_moves = True

    def _widen(self, stmt: Any, inner: Any) -> Any:
        """Registers with a trailing index: one set for each lane of the block."""

        def on_load(load: TensorLoad) -> Any:
            new = self._registers.get(load.source)
            return load if new is None else tirx.BufferLoad(new, [*load.indices, inner])

        def on_store(store: tirx.BufferStore) -> Any:
            new = self._registers.get(store.buffer)
            if new is None:
                return store
            return tirx.BufferStore(new, store.value, [*store.indices, inner])

        return tvm_ffi.structural_map(stmt, [(TensorLoad, on_load), (tirx.BufferStore, on_store)])

    def begin(self, inner: Any = None) -> Any:
        """Registers before the first step: prologue, initial state."""
        r = self.recurrence
        return self._place(tir.seq([r.prologue, r.start]), inner)

    def prologue(self, inner: Any = None) -> Any:
        """Registers that every chunk needs and that no step changes."""
        return self._place(tir.seq([self.recurrence.prologue]), inner)

    def boundary(self, inner: Any = None) -> Any:
        """Writes to memory before the first step; None where there are none."""
        if self.recurrence.boundary is None:
            return None
        return self._place(self.recurrence.boundary, inner)

    def step(self, time: Any, inner: Any = None) -> Any:
        """One step at ``time``."""
        return self._place(self.recurrence.body, inner, time)

    def finish(self, inner: Any = None) -> Any:
        """Writes after the last step; None where there are none."""
        if self.recurrence.finish is None:
            return None
        return self._place(self.recurrence.finish, inner)

    # ---- carries ----------------------------------------------------------------------------

    def carry(self, index: int, place: Sequence[Any], inner: Any = None) -> tuple[Var, list[Any]]:
        """Register array and index of a carry cell."""
        carry: Carry = self.recurrence.carries[index]
        buffer = self._registers[carry.register.state]
        axes = tir.VarMap((axis.var, p) for axis, p in zip(carry.state_axes, place, strict=True))
        cell = [tir.substitute(c, axes) for c in carry.cell]
        return buffer, [*cell, inner] if self.width > 1 else cell

    def get_carry(self, index: int, place: Sequence[Any], inner: Any = None) -> Any:
        """Value of a carry cell."""
        buffer, cell = self.carry(index, place, inner)
        return tirx.BufferLoad(buffer, cell)

    def set_carry(self, index: int, place: Sequence[Any], value: Any, inner: Any = None) -> Any:
        """Statement that sets a carry cell."""
        buffer, cell = self.carry(index, place, inner)
        return tirx.BufferStore(buffer, value, cell)

    def for_each_cell(self, make: Any) -> Any:
        """``make(carry index, place)`` for every carry cell."""
        stmts = []
        for i, carry in enumerate(self.recurrence.carries):
            extents = [int(axis.extent) for axis in carry.state_axes]
            unroll = self.unroll and prod(extents) <= _UNROLL_LIMIT
            stmts.append(each(extents, lambda place, i=i: make(i, place), unroll))
        return tir.seq(stmts)

    # ---- elements -----------------------------------------------------------------------------

    def lift(self, index: int, place: Sequence[Any], time: Any, inner: Any = None) -> list[Any]:
        """Element of the step at ``time`` for one carry cell."""
        r = self.recurrence
        carry, algebra = r.carries[index], r.algebras[index]
        element = list(algebra.lift())
        if carry.first is not None:
            first = tirx.EQ(r.time.var, tir.zero_like(r.time.var))
            constant = algebra.constant(carry.first)
            element = [
                tirx.op.if_then_else(first, c, e) for c, e in zip(constant, element, strict=True)
            ]
        axes = tir.VarMap((axis.var, p) for axis, p in zip(carry.state_axes, place, strict=True))
        return [self._place(tir.substitute(part, axes), inner, time) for part in element]

    def keep(self, scratch: Sequence[Var], lead: Sequence[Any]) -> Any:
        """``scratch[lead] = carry`` for every carry cell."""

        def one(i: int, place: list[Any]) -> Any:
            return tirx.BufferStore(scratch[i], self.get_carry(i, place), [*lead, *place])

        return self.for_each_cell(one)

    def fetch(self, scratch: Sequence[Var], lead: Sequence[Any]) -> Any:
        """``carry = scratch[lead]`` for every carry cell."""

        def one(i: int, place: list[Any]) -> Any:
            return self.set_carry(i, place, tirx.BufferLoad(scratch[i], [*lead, *place]))

        return self.for_each_cell(one)

    def copy(
        self, target: Elements, to: Sequence[Any], source: Elements, where: Sequence[Any]
    ) -> Any:
        """``target[to] = source[where]`` for the element of every carry cell."""

        def one(i: int, place: list[Any]) -> Any:
            return target.store(i, to, place, source.load(i, where, place))

        return self.for_each_cell(one)

    def extend(self, elements: Elements, lead: Sequence[Any], time: Any, inner: Any = None) -> Any:
        """``elements[lead] = elements[lead]`` followed by the step at ``time``."""

        def one(i: int, place: list[Any]) -> Any:
            algebra = self.recurrence.algebras[i]
            earlier = elements.load(i, lead, place)
            step = self.lift(i, place, time, inner)
            return elements.store(i, lead, place, algebra.extend(earlier, tuple(step)))

        return self.for_each_cell(one)

    def set_identity(self, elements: Elements, lead: Sequence[Any]) -> Any:
        """``elements[lead] = identity``."""

        def one(i: int, place: list[Any]) -> Any:
            return elements.store(i, lead, place, self.recurrence.algebras[i].identity())

        return self.for_each_cell(one)

    def apply(
        self,
        elements: Elements,
        lead: Sequence[Any],
        source: Replica | None = None,
        inner: Any = None,
    ) -> Any:
        """Carry registers := elements[lead] applied to the carry of ``source`` (or to its own)."""
        source = source or self

        def one(i: int, place: list[Any]) -> Any:
            algebra = self.recurrence.algebras[i]
            value = algebra.apply(elements.load(i, lead, place), source.get_carry(i, place, inner))
            return self.set_carry(i, place, value, inner)

        return self.for_each_cell(one)


def unrolled(stmt: Any) -> Any:
    """Small constant serial loops as unrolled ones."""

    def on_for(node: tirx.For) -> Any:
        extent = tir.as_int(node.extent)
        if node.kind != ForKind.SERIAL or extent is None or extent > _UNROLL_LIMIT:
            return node
        return tirx.For(
            node.loop_var,
            node.min,
            node.extent,
            ForKind.UNROLLED,
            node.body,
            node.thread_binding,
            node.annotations,
        )

    return tvm_ffi.structural_map(stmt, (tirx.For, on_for))
