"""One use of a recurrence in a kernel: its statements over fresh registers and given lanes.

A plan replays the loop body several times. Every copy gets its own registers, its own loop
variables and its own lane expressions; ``Replica`` makes them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from math import prod
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Var
from tvm.tirx import ForKind

from tvm_scan import tir
from tvm_scan.algebra import Algebra
from tvm_scan.algebra.base import Element
from tvm_scan.recurrence import Axis, Carry, Group, Recurrence
from tvm_scan.schedules.common.elements import Elements, store_all
from tvm_scan.schedules.common.ir import each, like_register
from tvm_scan.schedules.common.shared_parts import shared_parts

_UNROLL_LIMIT = 64


class Replica:
    """The statements of a recurrence, for one copy of them in a kernel.

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
    tag : str
        Suffix of the registers' names.
    moves : bool
        Whether that dimension is the last lane (else the caller says which step it is).
    """

    def __init__(
        self,
        recurrence: Recurrence,
        lanes: Sequence[Any],
        *,
        unroll: bool,
        width: int = 1,
        tag: str = "",
        moves: bool = True,
    ) -> None:
        self.recurrence = recurrence
        self.unroll = unroll
        self.width = width
        self.moves = moves
        self._lanes = tir.VarMap(
            (lane.var, value) for lane, value in zip(recurrence.lanes, lanes, strict=True)
        )
        self._registers = tir.VarMap()
        for register in recurrence.registers:
            for old in (register.local, *register.previous):
                shape = [*tir.shape_of(old), width] if width > 1 else tir.shape_of(old)
                name = f"{old.name}{tag}"
                self._registers[old] = like_register(name, shape, tir.dtype_of(old))
        self._befores = tir.VarMap((c.before, c.state) for c in recurrence.carries)

    @property
    def buffers(self) -> list[Var]:
        """Register arrays to allocate."""
        return [new for _, new in self._registers.items()]

    def register(self, old: Var) -> Var:
        """The array that stands for a register of the recurrence here."""
        return self._registers[old]

    # ---- the recurrence's own statements --------------------------------------------------

    def instantiate(self, stmt: Any, inner: Any = None, time: Any = None) -> Any:
        """``stmt`` over these registers and lanes, for one lane of the block at ``time``."""
        table = self._lanes.copy()
        if time is not None:
            table[self.recurrence.time.var] = time
        if self.width > 1:
            stmt = self._widen(stmt, inner)
            if inner is not None:
                last = self.recurrence.lanes[-1].var if self.recurrence.lanes else None
                if last is not None and self.moves:
                    table[last] = table[last] + inner
        else:
            for old, new in self._registers.items():
                table[old] = new
        stmt = tir.fresh_copy(stmt)
        stmt = tir.substitute(stmt, table)
        return unrolled(stmt) if self.unroll else stmt

    def _widen(self, stmt: Any, inner: Any) -> Any:
        """Registers with a trailing index: one set for each lane of the block."""

        def moved(buffer: Var, indices: list[Any]) -> tuple[Var, list[Any]] | None:
            new = self._registers.get(buffer)
            return None if new is None else (new, [*indices, inner])

        return tir.map_accesses(stmt, moved)

    def begin(self, inner: Any = None) -> Any:
        """Registers before the first step: prologue, initial state."""
        r = self.recurrence
        return self.instantiate(tir.seq([r.prologue, r.start]), inner)

    def prologue(self) -> Any:
        """Registers that every chunk needs and that no step changes."""
        return self.instantiate(tir.seq([self.recurrence.prologue]))

    def boundary(self, inner: Any = None) -> Any:
        """Writes to memory before the first step; None where there are none."""
        boundary = self.recurrence.boundary
        return None if boundary is None else self.instantiate(boundary, inner)

    def step(self, time: Any, inner: Any = None) -> Any:
        """One step at ``time``."""
        return self.instantiate(self.recurrence.body, inner, time)

    def finish(self, inner: Any = None) -> Any:
        """Writes after the last step; None where there are none."""
        finish = self.recurrence.finish
        return None if finish is None else self.instantiate(finish, inner)

    # ---- carries ----------------------------------------------------------------------------

    def carry(self, index: int, cell: Sequence[Any], inner: Any = None) -> tuple[Var, list[Any]]:
        """Register array and index of a carry cell."""
        carry: Carry = self.recurrence.carries[index]
        buffer = self._registers[carry.state]
        axes = tir.VarMap((axis.var, p) for axis, p in zip(carry.state_axes, cell, strict=True))
        indices = [tir.substitute(c, axes) for c in carry.cell]
        return buffer, [*indices, inner] if self.width > 1 else indices

    def get_carry(self, index: int, cell: Sequence[Any], inner: Any = None) -> Any:
        """Value of a carry cell."""
        buffer, indices = self.carry(index, cell, inner)
        return tirx.BufferLoad(buffer, indices)

    def set_carry(self, index: int, cell: Sequence[Any], value: Any) -> Any:
        """Statement that sets a carry cell."""
        buffer, indices = self.carry(index, cell)
        return tirx.BufferStore(buffer, value, indices)

    def like(self, tag: str) -> Replica:
        """Registers of the same lanes under other names."""
        lanes = [self._lanes[lane.var] for lane in self.recurrence.lanes]
        return Replica(self.recurrence, lanes, unroll=self.unroll, tag=tag)

    def states_of(self, levels: Collection[int]) -> list[Var]:
        """Register arrays of the carries of some levels."""
        r = self.recurrence
        carries = (r.carries[i] for g in r.groups if g.level in levels for i in g.carries)
        states = tir.VarMap((carry.state, True) for carry in carries)
        return [self._registers[state] for state in states.keys()]

    def copy_carries(self, level: int, source: Replica) -> Any:
        """Carry registers of a level := those of ``source``."""

        def of_cell(i: int, cell: list[Any]) -> Any:
            return self.set_carry(i, cell, source.get_carry(i, cell))

        return self.for_carries(range(level, level + 1), of_cell)

    def take(self, other: Replica, inner: Any) -> Any:
        """Registers that are no carries := those of ``other`` at ``inner``."""
        states = tir.VarMap((carry.state, True) for carry in self.recurrence.carries)
        stmts = []
        for old, new in self._registers.items():
            if old in states:
                continue
            source = other._registers[old]

            def take_cell(index: list[Any], new: Var = new, source: Var = source) -> Any:
                return tirx.BufferStore(new, tirx.BufferLoad(source, [*index, inner]), index)

            stmts.append(each([int(e) for e in tir.shape_of(new)], take_cell, self.unroll))
        return tir.seq(stmts) if stmts else None

    def _each(self, axes: Sequence[Axis], make: Callable[[list[Any]], Any]) -> Any:
        extents = [int(axis.extent) for axis in axes]
        return each(extents, make, self.unroll and prod(extents) <= _UNROLL_LIMIT)

    def for_carries(self, levels: range, make: Callable[[int, list[Any]], Any]) -> Any:
        """``make(carry index, cell)`` for every carry cell of some levels."""
        r = self.recurrence
        return tir.seq(
            self._each(r.carries[i].state_axes, partial(make, i))
            for group in r.groups
            if group.level in levels
            for i in group.carries
        )

    def for_each_element(self, level: int, make: Callable[[int, list[Any]], Any]) -> Any:
        """``make(group index, cell)`` for every cell of the groups of a level."""
        r = self.recurrence
        return tir.seq(
            self._each(r.state_axes(group), partial(make, i))
            for i, group in enumerate(r.groups)
            if group.level == level
        )

    def keep(self, scratch: Sequence[Var], lead: Sequence[Any], level: int) -> Any:
        """``scratch[lead] = carry`` for every carry cell of a level."""

        def of_cell(i: int, cell: list[Any]) -> Any:
            return tirx.BufferStore(scratch[i], self.get_carry(i, cell), [*lead, *cell])

        return self.for_carries(range(level, level + 1), of_cell)

    def fetch(self, scratch: Sequence[Var], lead: Sequence[Any], levels: range) -> Any:
        """``carry = scratch[lead]`` for every carry cell of some levels."""

        def of_cell(i: int, cell: list[Any]) -> Any:
            return self.set_carry(i, cell, tirx.BufferLoad(scratch[i], [*lead, *cell]))

        return self.for_carries(levels, of_cell)

    # ---- elements -----------------------------------------------------------------------------

    def _at(self, group: Group, expr: Any, cell: Sequence[Any], time: Any, inner: Any) -> Any:
        """An expression of the recurrence at one cell; other carries are read from registers."""
        axes = self.recurrence.state_axes(group)
        table = tir.VarMap((axis.var, p) for axis, p in zip(axes, cell, strict=True))
        return self.instantiate(
            tir.substitute(tir.substitute(expr, table), self._befores), inner, time
        )

    def lift(
        self,
        index: int,
        cell: Sequence[Any],
        time: Any,
        inner: Any = None,
        *,
        element: Sequence[Any] | None = None,
    ) -> list[Any]:
        """Element of the step at ``time`` for one cell of a group; ``element`` has its formulas."""
        r = self.recurrence
        group = r.groups[index]
        element = group.algebra.lift() if element is None else element
        first = r.carries[group.carries[0]].first
        if first is not None:
            at_first = tirx.EQ(r.time.var, tir.zero_like(r.time.var))
            constant = group.algebra.constant((first,))
            element = [
                tirx.op.if_then_else(at_first, c, e) for c, e in zip(constant, element, strict=True)
            ]
        return [self._at(group, part, cell, time, inner) for part in element]

    def copy(
        self, target: Elements, to: Sequence[Any], source: Elements, where: Sequence[Any]
    ) -> Any:
        """``target[to] = source[where]`` for the element of every cell."""

        def of_cell(i: int, cell: list[Any]) -> Any:
            return target.store(i, to, cell, source.load(i, where, cell))

        return self.for_each_element(target.level, of_cell)

    def extend(
        self, elements: Elements, lead: Sequence[Any], time: Any, *, flush: bool = False
    ) -> Any:
        """``elements[lead] = elements[lead]`` followed by the step at ``time``.

        The carries of earlier levels are those before the step, and are advanced with it.
        ``flush`` leaves out denormal products.
        """
        once: dict[int, list[Any]] = {}
        binds: list[Any] = []
        for i, group in enumerate(self.recurrence.groups):
            if group.level == elements.level:
                states = [axis.var for axis in self.recurrence.state_axes(group)]
                shared, once[i] = shared_parts(group.algebra.lift(), states)
                for name, value in shared:
                    value = tir.substitute(value, self._befores)
                    binds.append(tirx.Bind(name, self.instantiate(value, None, time)))

        def of_cell(i: int, cell: list[Any]) -> Any:
            algebra = self.recurrence.groups[i].algebra
            earlier = elements.load(i, lead, cell)
            lifted = self.lift(i, cell, time, element=once[i])
            names, step = _named(algebra, tuple(lifted))
            extended = algebra.extend(earlier, step)
            extended = algebra.flush(extended) if flush else extended
            return tir.seq([*names, elements.store(i, lead, cell, extended)])

        extended = self.for_each_element(elements.level, of_cell)
        return tir.seq([*binds, extended, *self._advance(elements.level, time)])

    def _advance(self, below: int, time: Any) -> list[Any]:
        """One step of the carries of the levels ``< below``, the latest level first.

        A level reads earlier ones as they were before the step, so that those move on last.
        """
        r = self.recurrence

        def of_group(group: Group) -> Any:
            def at(cell: list[Any]) -> Any:
                targets = [self.carry(i, cell) for i in group.carries]
                values = [self._next(group, r.carries[i], cell, time) for i in group.carries]
                return store_all(targets, values)

            return self._each(r.state_axes(group), at)

        return [of_group(g) for g in reversed(r.groups) if g.level < below]

    def _next(self, group: Group, carry: Carry, cell: list[Any], time: Any) -> Any:
        """The carry after a step."""
        step = carry.step
        if carry.first is not None:
            time_var = self.recurrence.time.var
            at_first = tirx.EQ(time_var, tir.zero_like(time_var))
            step = tirx.op.if_then_else(at_first, carry.first, step)
        members = [self.recurrence.carries[i] for i in group.carries]
        olds = tir.VarMap((c.old, tirx.BufferLoad(c.before, list(c.cell))) for c in members)
        return self._at(group, tir.substitute(step, olds), cell, time, None)

    def set_identity(self, elements: Elements, lead: Sequence[Any]) -> Any:
        """``elements[lead] = identity``."""

        def of_cell(i: int, cell: list[Any]) -> Any:
            return elements.store(i, lead, cell, self.recurrence.groups[i].algebra.identity())

        return self.for_each_element(elements.level, of_cell)

    def apply(
        self,
        elements: Elements,
        lead: Sequence[Any],
        source: Replica | None = None,
        inner: Any = None,
        formulas: Callable[[Algebra], Any] | None = None,
    ) -> Any:
        """Carry registers := elements[lead] applied to the carries of ``source`` (or its own).

        ``formulas`` gives what has ``apply``, if not the algebra itself.
        """
        source = source or self

        def of_cell(i: int, cell: list[Any]) -> Any:
            group = self.recurrence.groups[i]
            carries = tuple(source.get_carry(c, cell, inner) for c in group.carries)
            which: Any = group.algebra if formulas is None else formulas(group.algebra)
            values = which.apply(elements.load(i, lead, cell), carries)
            return store_all([self.carry(c, cell, inner) for c in group.carries], values)

        return self.for_each_element(elements.level, of_cell)


def _named(algebra: Algebra, step: Element) -> tuple[list[Any], Element]:
    """Bindings for the parts of a step's element that its composition uses many times."""
    if not algebra.reuses_parts:
        return [], step
    names = tuple(tirx.Var(f"step{j}", tir.dtype_of(part)) for j, part in enumerate(step))
    return [tirx.Bind(name, part) for name, part in zip(names, step, strict=True)], names


def unrolled(stmt: Any) -> Any:
    """Small constant serial loops as unrolled ones."""

    def on_for(node: tirx.For) -> Any:
        extent = tir.as_int(node.extent)
        if node.kind != ForKind.SERIAL or extent is None or extent > _UNROLL_LIMIT:
            return node
        return tir.loop_with(node, node.body, ForKind.UNROLLED)

    return tvm_ffi.structural_map(stmt, (tirx.For, on_for))
