"""One step in three parts, so that several threads can share the states of a lane.

Theorem. Let the step be ``before; loops; after``, where each loop runs over all the states, its
iteration ``n`` touches of the state only cell ``n``, and everything else that it writes are sums
``y = y + e(n)``. Then the iterations are independent up to the order of the sums. Threads that
each run some of the iterations, with ``y`` from zero on, and then add up their sums, do the same
step, up to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Var
from tvm.ir.expr import TensorLoad

from tvm_scan import tir
from tvm_scan.algebra.literal import is_constant
from tvm_scan.recurrence import Recurrence


class NoSplit(Exception):
    """The step has another form; the message says where."""


@dataclass(frozen=True, eq=False)
class StateSplit:
    """The parts of a step.

    Attributes
    ----------
    states : int
        Cells of the state.
    dims : VarMap
        Register arrays of the state, and which of their dimensions counts the states.
    before, after : tuple of Stmt
        What the step does apart from the states, before and after them.
    loops : tuple of For
        The loops over the states; sums no longer have a first value.
    sums : tuple of TensorLoad
        What the loops add to: register and cell.
    """

    states: int
    dims: tir.VarMap
    before: tuple[Any, ...]
    loops: tuple[tirx.For, ...]
    after: tuple[Any, ...]
    sums: tuple[TensorLoad, ...]

    @cached_property
    def outside(self) -> Any:
        """The step apart from the states, as a statement."""
        return tir.seq([*self.before, *self.after])

    def begins_at_zero(self, cell: TensorLoad) -> bool:
        """Return whether a sum's first value is zero at every step."""
        writes = [s for s in self.before if cell.source in tir.buffers_stored(s)]
        return len(writes) == 1 and (
            isinstance(writes[0], tirx.BufferStore) and is_constant(writes[0].value, 0)
        )

    def part(self, stmt: Any, owner: Any, states_each: int, registers: tir.VarMap) -> Any:
        """``stmt`` with its loops over the states cut to those of one thread.

        Parameters
        ----------
        stmt : Stmt
            A part of the recurrence.
        owner : Expr
            Number of the thread among those of the lane.
        states_each : int
            States of a thread: thread ``owner`` has those from ``owner * own`` on.
        registers : VarMap
            The thread's registers for those of ``dims``.
        """

        def on_for(loop: tirx.For) -> Any:
            if tir.as_int(loop.extent) != self.states or not self._touches(loop.body):
                return loop
            inner = tirx.Var(loop.loop_var.name, tir.dtype_of(loop.loop_var))
            body = self._shrunk(loop.body, loop.loop_var, inner, registers)
            dtype = tir.dtype_of(inner)
            first = tirx.Cast(dtype, owner) if tir.dtype_of(owner) != dtype else owner
            table = tir.VarMap([(loop.loop_var, first * tirx.IntImm(dtype, states_each) + inner)])
            body = tir.substitute(body, table)
            return tirx.For(inner, loop.min, tirx.IntImm(dtype, states_each), loop.kind, body)

        return tvm_ffi.structural_map(stmt, (tirx.For, on_for))

    def _touches(self, stmt: Any) -> bool:
        return any(buffer in self.dims for buffer in tir.variables(stmt).keys())

    def _shrunk(self, stmt: Any, state: Var, inner: Var, registers: tir.VarMap) -> Any:
        def moved(buffer: Var, indices: list[Any]) -> tuple[Var, list[Any]] | None:
            if buffer not in self.dims:
                return None
            dim = self.dims[buffer]
            return registers[buffer], [inner if i == dim else e for i, e in enumerate(indices)]

        return tir.map_accesses(stmt, moved)


def split_states(recurrence: Recurrence) -> StateSplit:
    """Find the parts of a step.

    Raises
    ------
    NoSplit
        If the recurrence has another form.
    """
    dims, states = _state_dimensions(recurrence)
    read = tir.buffers_loaded(recurrence.body)
    if any(buffer in read for buffer in recurrence.outputs):
        raise NoSplit("a step that reads what it or another step wrote to memory")
    if recurrence.guard is not None or recurrence.boundary is not None:
        raise NoSplit("lanes under a condition, or writes before the first step")
    before: list[Any] = []
    loops: list[tirx.For] = []
    after: list[Any] = []
    sums: list[TensorLoad] = []
    for stmt in statements(recurrence.body):
        touched = [b for b in tir.variables(stmt).keys() if b in dims]
        if not touched:
            (after if loops else before).append(stmt)
        elif isinstance(stmt, tirx.For) and tir.as_int(stmt.extent) == states and not after:
            loops.append(_checked_loop(stmt, dims, before, sums))
        else:
            raise NoSplit("a statement of the step uses the state outside of one loop over it")
    _check_sums(before, loops, sums)
    for stmt in (recurrence.prologue, recurrence.start, recurrence.finish):
        _check_outside(stmt, dims, states, stmt is recurrence.finish)
    return StateSplit(states, dims, tuple(before), tuple(loops), tuple(after), tuple(sums))


@lru_cache(maxsize=64)
def split_of(recurrence: Recurrence) -> StateSplit | NoSplit:
    """``split_states``, its failure as a value."""
    try:
        return split_states(recurrence)
    except NoSplit as failure:
        return failure


def _state_dimensions(recurrence: Recurrence) -> tuple[tir.VarMap, int]:
    dims, extents = tir.VarMap(), set()
    for carry in recurrence.carries:
        if len(carry.state_axes) != 1 or carry.register.previous:
            raise NoSplit("a carry without one axis of states, or with a history")
        (axis,) = carry.state_axes
        dimensions = [i for i, c in enumerate(carry.cell) if c.same_as(axis.var)]
        if len(dimensions) != 1:
            raise NoSplit("a carry whose cell is not the number of the state")
        dims[carry.register.local] = dimensions[0]
        extents.add(int(axis.extent))
    if len(extents) != 1:
        raise NoSplit("carries of different numbers of states")
    return dims, extents.pop()


def statements(stmt: Any) -> list[Any]:
    """The statements of a sequence, or of one alone."""
    if stmt is None or tir.is_empty(stmt):
        return []
    return list(stmt.seq) if isinstance(stmt, tirx.SeqStmt) else [stmt]


def _checked_loop(
    loop: tirx.For, dims: tir.VarMap, before: list[Any], sums: list[TensorLoad]
) -> tirx.For:
    """The loop without its sums' first values, which are appended to ``before``."""
    state, stmts = loop.loop_var, []
    for stmt in _without_lets(loop):
        first = _first_value(stmt, state)
        if first is not None:
            if any(b in dims for b in tir.variables(first).keys()) or _is_sum(first.buffer, sums):
                raise NoSplit("a sum whose first value is not known before the states")
            before.append(first)
            continue
        if not isinstance(stmt, tirx.BufferStore):
            raise NoSplit("a loop over the states with more than stores in it")
        if stmt.buffer not in dims:
            sums.append(_sum_of(stmt, state))
        _check_cells(stmt, state, dims)
        stmts.append(stmt)
    return tirx.For(state, loop.min, loop.extent, loop.kind, tir.seq(stmts))


def _without_lets(loop: tirx.For) -> list[Any]:
    """The statements of a loop, with what `let` names in its place.

    Only of values that no statement of the loop changes: where a name stands does not matter then.
    """
    written, table, stmts = tir.buffers_stored(loop.body), tir.VarMap(), []
    for stmt in statements(loop.body):
        stmt = tir.substitute(stmt, table)
        if not isinstance(stmt, tirx.Bind):
            stmts.append(stmt)
        elif any(buffer in written for buffer in tir.buffers_loaded(stmt.value).keys()):
            raise NoSplit("a name in a loop over the states for what the loop changes")
        else:
            table[stmt.var] = stmt.value
    return stmts


def _is_sum(buffer: Var, sums: list[TensorLoad]) -> bool:
    return any(buffer.same_as(s.source) for s in sums)


def _first_value(stmt: Any, state: Var) -> tirx.BufferStore | None:
    """``store`` of ``if state == 0: store``."""
    if not isinstance(stmt, tirx.IfThenElse) or stmt.else_case is not None:
        return None
    zero = tirx.EQ(state, tir.zero_like(state))
    is_first = tir.structurally_equal(stmt.condition, zero)
    store = stmt.then_case
    if not is_first or not isinstance(store, tirx.BufferStore) or tir.contains_var(store, [state]):
        return None
    return store


def _sum_of(store: tirx.BufferStore, state: Var) -> TensorLoad:
    """The cell that a store adds to."""
    cell = tirx.BufferLoad(store.buffer, list(store.indices))
    value = store.value
    if str(store.buffer.scope()) != "local" or not isinstance(value, tirx.Add):
        raise NoSplit("a loop over the states writes what is neither a state nor a sum")
    parts = [value.a, value.b]
    rest = [part for part in parts if not tir.structurally_equal(part, cell)]
    if len(rest) != 1 or store.buffer in tir.buffers_loaded(rest[0]):
        raise NoSplit("a loop over the states writes what is neither a state nor a sum")
    if any(tir.contains_var(index, [state]) for index in store.indices):
        raise NoSplit("a sum for each of the states")
    return cell


def _check_cells(stmt: Any, state: Var, dims: tir.VarMap) -> None:
    def check(buffer: Var, indices: Any) -> None:
        if buffer not in dims:
            return
        dim = dims[buffer]
        outer = [index for i, index in enumerate(indices) if i != dim]
        if not indices[dim].same_as(state) or tir.contains_var(outer, [state]):
            raise NoSplit("an iteration that uses another state than its own")

    for load in tir.loads(stmt):
        check(load.source, load.indices)
    for store in tir.nodes(stmt, tirx.BufferStore):
        check(store.buffer, store.indices)


def _check_sums(before: list[Any], loops: list[tirx.For], sums: list[TensorLoad]) -> None:
    written = [b for stmt in before for b in tir.buffers_stored(stmt).keys()]
    if any(str(buffer.scope()) != "local" for buffer in written):
        raise NoSplit("a step that writes to memory before it walks its states")
    for number, cell in enumerate(sums):
        if not any(cell.source.same_as(b) for b in written):
            raise NoSplit("a sum without a first value")
        if any(cell.source.same_as(other.source) for other in sums[:number]):
            raise NoSplit("a register with two sums")
    for loop in loops:
        for stmt in statements(loop.body):
            target = stmt.buffer
            for buffer in tir.buffers_loaded(stmt).keys():
                if not buffer.same_as(target) and _is_sum(buffer, sums):
                    raise NoSplit("a loop over the states that reads a sum before it is complete")


def _check_outside(stmt: Any, dims: tir.VarMap, states: int, all_of_it: bool) -> None:
    """Check that the states are used in loops over them only, outside of the steps too.

    ``all_of_it``: and nothing else is done, so that no two threads write the same.
    """
    for part in statements(stmt):
        touched = [b for b in tir.variables(part).keys() if b in dims]
        if not touched and not all_of_it:
            continue
        if not isinstance(part, tirx.For) or tir.as_int(part.extent) != states:
            raise NoSplit("states used outside of a loop over all of them")
        for store in statements(part.body):
            if not isinstance(store, tirx.BufferStore):
                raise NoSplit("a loop over the states with more than stores in it")
            if all_of_it and not tir.contains_var(list(store.indices), [part.loop_var]):
                raise NoSplit("a final write that is not one for each state")
            if not touched:
                raise NoSplit("a final write of what another loop took from the states")
            _check_cells(store, part.loop_var, dims)
