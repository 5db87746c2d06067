"""One step of the loop body, executed on symbols: the carry after the step as an expression.

Every cell that the body reads before it writes it is a carry (``cells``). Stores are followed
through the body, through conditions, and through inner loops in three cases:

- each iteration touches a cell of its own, which the loop variable selects: the value is the
  same expression in every iteration, and other iterations cannot have changed it;
- each iteration first overwrites the one cell that it uses: the last value remains;
- else the cells are opaque from the head of the loop on (a contraction over the state). An
  opaque value may be emitted, but no step may depend on it.
"""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.extraction.access import Layouts
from tvm_scan.extraction.accesses import accesses_of
from tvm_scan.extraction.cells import Cell, Cells, Key, Place
from tvm_scan.extraction.flatten import Alloc, Condition, Let, Loop, Store, stores_in
from tvm_scan.extraction.halves import widen
from tvm_scan.extraction.nest import rename

__all__ = ["StepState", "execute_step"]

Slot = tuple[int, Key]


class StepState:
    """Values of all cells at one point of the body."""

    def __init__(self, layouts: Layouts, half: bool) -> None:
        self.layouts = layouts
        self.half = half
        self.cells = Cells(layouts)
        self.values: dict[Slot, Any] = {}
        self.places: dict[Slot, Place] = {}
        self.origins: dict[Slot, Any] = {}
        self.preloaded: tir.VarMap = tir.VarMap()
        self.opaque: tir.VarMap = tir.VarMap()
        self.lets: tir.VarMap = tir.VarMap()
        self.inner: list[Loop] = []

    @property
    def carried(self) -> list[Cell]:
        """Cells whose value before the step is used, by the step or by an emit."""
        return list(self.cells.found.values())

    def covers(self, buffer: Var) -> bool:
        """Whether every cell of the register array of ``buffer`` has a value."""
        ident, key = self.cells.whole(buffer).slot
        if (ident, key) in self.values:
            return True
        single = [k for b, k in self.values if b == ident and "s" not in k]
        return len(single) == prod(self.layouts.boxes[buffer].extents)

    # ---- expressions --------------------------------------------------------------------

    def evaluate(self, expr: Any) -> Any:
        """``expr`` at this point: loads of written cells and bindings replaced by values."""

        def on_load(load: Any) -> Any:
            return self._load(load) if load.source in self.layouts else load

        value = widen(expr, on_load) if self.half else tir.map_loads(expr, on_load)
        return tir.substitute(value, self.lets)

    def _load(self, load: Any) -> Any:
        buffer = load.source
        split = self.layouts.split(buffer, list(load.indices), self.inner)
        box = self.layouts.boxes[buffer]
        if split is not None and not box.stored_inside:
            # Set before the time loop and only read in it: an input, held in a register.
            index = [o - low for o, low in zip(split.offsets, box.lower, strict=True)]
            return tirx.BufferLoad(self.layouts.registers[buffer].local, index)
        place = None
        if split is not None:
            place = self.cells.place(buffer, split.offsets, self.inner)
        if place is None or self._overlaps(place):
            dtype = tir.wide_dtype(tir.dtype_of(buffer))
            return self.new_opaque(dtype, self._everything(buffer))
        if split.lag == 1:
            return self.cells.carry(place)
        if place.slot in self.values:
            return place.to_loops(self.values[place.slot])
        if box.time_dim is not None:
            # A history read at its own step before it is written: its content is an input.
            self.preloaded[buffer] = True
            return load
        return self.cells.carry(place)

    def _overlaps(self, place: Place) -> bool:
        """Whether another key that is in use names some of the same cells."""
        ident, key = place.slot
        used = {k for b, k in (*self.values, *self.cells.found) if b == ident and k != key}
        return any(
            all(a == b or "s" in (a, b) for a, b in zip(key, other, strict=True)) for other in used
        )

    def _everything(self, buffer: Var) -> list[Any]:
        """All values and carries of ``buffer``; a load of any of its cells depends on these."""
        whole = self.cells.whole(buffer)
        values = [value for (b, _), value in self.values.items() if b == whole.slot[0]]
        if whole.slot in self.values:
            return values
        box = self.layouts.boxes[buffer]
        if box.time_dim is not None and not box.has_lag:
            self.preloaded[buffer] = True
            return values
        return [*values, self.cells.carry(whole)]

    def new_opaque(self, dtype: str, depends: list[Any]) -> Var:
        """A value that is not known as an expression, with what it may depend on."""
        var = tirx.Var(f"opaque{len(self.opaque)}", dtype)
        self.opaque[var] = depends
        return var

    def depends_on(self, expr: Any, wanted: tir.VarMap) -> bool:
        """Whether ``expr`` depends on any of the variables, through opaque values as well."""
        seen: tir.VarMap = tir.VarMap()
        todo = [expr]
        while todo:
            for var in tir.variables(todo.pop()).keys():
                if var in seen:
                    continue
                seen[var] = True
                if var in wanted:
                    return True
                todo += self.opaque.get(var, [])
        return False

    # ---- statements ---------------------------------------------------------------------

    def run(self, stmts: list[Any]) -> None:
        """Execute ``stmts``."""
        for stmt in stmts:
            if isinstance(stmt, Store):
                self._store(stmt)
            elif isinstance(stmt, Let):
                self.lets[stmt.var] = self.evaluate(stmt.value)
            elif isinstance(stmt, Condition):
                self._condition(stmt)
            elif isinstance(stmt, Loop):
                self._loop(stmt)
            else:
                assert isinstance(stmt, Alloc)

    def _store(self, stmt: Store) -> None:
        value = self.evaluate(stmt.value)
        split = self.layouts.split(stmt.buffer, stmt.indices, self.inner)
        place = None
        if split is not None:
            place = self.cells.place(stmt.buffer, split.offsets, self.inner)
        if place is None or self._overlaps(place):
            self._forget(stmt.buffer, [value])
            return
        self.values[place.slot] = place.to_states(value)
        self.places[place.slot] = place
        self.origins[place.slot] = stmt.origin

    def _forget(self, buffer: Var, depends: list[Any]) -> None:
        """Make every cell of ``buffer`` opaque."""
        depends += self._everything(buffer)
        whole = self.cells.whole(buffer)
        used = (*self.values, *self.cells.found)
        keys = {k for b, k in used if b == whole.slot[0]} | {whole.key}
        dtype = tir.wide_dtype(tir.dtype_of(buffer))
        for key in keys:
            place = self.cells.named(buffer, key)
            self.values[place.slot] = self.new_opaque(dtype, depends)
            self.places[place.slot] = place

    def _condition(self, stmt: Condition) -> None:
        cond = self.evaluate(stmt.cond)
        before = dict(self.values)
        self.run(stmt.then)
        taken, taken_places = self.values, dict(self.places)
        self.values = dict(before)
        self.run(stmt.orelse)
        other = self.values
        self.values = dict(before)
        for slot in {**taken, **other}:
            changed = [
                places[slot]
                for values, places in ((taken, taken_places), (other, self.places))
                if slot in values and values[slot] is not before.get(slot)
            ]
            if not changed:
                continue
            place = changed[0]
            left = self._value_or_carry(taken, place)
            right = self._value_or_carry(other, place)
            if left is right or tir.structurally_equal(left, right):
                self.values[slot] = left
            elif any(not _same_vars(place.loops, p.loops) for p in changed):
                depends = [cond, left, right]
                self.values[slot] = self.new_opaque(tir.dtype_of(left), depends)
            else:
                # The condition chooses per iteration of the loops that select the cell.
                chosen = place.to_states(cond)
                self.values[slot] = tirx.op.if_then_else(chosen, left, right)
            self.places[slot] = place

    def _value_or_carry(self, values: dict[Slot, Any], place: Place) -> Any:
        if place.slot in values:
            return values[place.slot]
        box = self.layouts.boxes[place.buffer]
        here = self.cells.named(place.buffer, place.key)
        if box.time_dim is None:
            return self.cells.carry(here)
        # Memory keeps what it had where the condition is false.
        self.preloaded[place.buffer] = True
        indices = []
        for dim, key in enumerate(place.key):
            local = self.cells.state(place.buffer, dim) if key == "s" else key
            index = box.base[dim] + box.lower[dim] + local
            if dim == box.time_dim:
                index = box.base[dim] + self.layouts.nest.time.var * box.time_step
            indices.append(tir.simplify(index))
        load = tirx.BufferLoad(place.buffer, indices)
        dtype = tir.wide_dtype(tir.dtype_of(load))
        return load if tir.dtype_of(load) == dtype else tirx.Cast(dtype, load)

    # ---- loops --------------------------------------------------------------------------

    def _loop(self, loop: Loop) -> None:
        loop = self._without_init(loop)
        runs = (tir.as_int(loop.extent) or 0) >= 1
        self.inner.append(loop)
        running: list[tuple[Var, list[Any]]] = []
        for buffer in tir.VarMap((s.buffer, True) for s in stores_in(loop.body)).keys():
            if runs and (self._own_cell(loop, buffer) or _fresh_cell(loop, buffer)):
                continue
            depends: list[Any] = []
            running.append((buffer, depends))
            self._forget(buffer, depends)
        self.run(loop.body)
        for buffer, depends in running:
            ident = buffer.__hash__()
            depends += [value for (b, _), value in self.values.items() if b == ident]
            self._forget(buffer, depends)
        self.inner.pop()
        last = tir.VarMap([(loop.var, loop.extent - 1)])
        for slot, value in list(self.values.items()):
            if tir.contains_var(value, [loop.var]):
                self.values[slot] = tir.substitute(value, last)

    def _without_init(self, loop: Loop) -> Loop:
        """Run ``if n == 0: init`` at the head of ``for n`` first: a block's reduction init."""
        body = list(loop.body)
        zero = tir.VarMap([(loop.var, tir.zero_like(loop.var))])
        later = tir.VarMap([(loop.var, loop.var + 1)])
        extent = tir.as_int(loop.extent) or 0
        while extent >= 1 and body and isinstance(body[0], Condition) and not body[0].orelse:
            cond = body[0].cond
            never_again = tir.simplify(
                tir.substitute(cond, later), [(loop.var, max(extent - 1, 1))]
            )
            first = tir.simplify(tir.substitute(cond, zero))
            if not tir.is_true(first) or tir.as_int(never_again) != 0:
                break
            self.run(rename(body.pop(0).then, zero))
        return Loop(loop.var, loop.extent, body, loop.origin, loop.thread)

    def _own_cell(self, loop: Loop, buffer: Var) -> bool:
        """Whether all accesses in the loop select their cell by its variable, in one dimension."""
        dims = set(range(len(self.layouts.boxes[buffer].lower)))
        lower = self.layouts.boxes[buffer].lower
        for access in accesses_of([loop]):
            if not access.buffer.same_as(buffer):
                continue
            inner = [*self.inner[:-1], *access.inner]
            split = self.layouts.split(buffer, access.indices, inner)
            if split is None:
                return False
            places = [tir.simplify(x - low) for x, low in zip(split.offsets, lower, strict=True)]
            dims &= {d for d, p in enumerate(places) if isinstance(p, Var) and p.same_as(loop.var)}
        return bool(dims)


def _same_vars(left: list[Var], right: list[Var]) -> bool:
    return len(left) == len(right) and all(a.same_as(b) for a, b in zip(left, right, strict=True))


def _fresh_cell(loop: Loop, buffer: Var) -> bool:
    """Whether the loop uses one cell of ``buffer``, which each iteration first overwrites."""
    accesses = [a for a in accesses_of(loop.body) if a.buffer.same_as(buffer)]
    used = next(
        (
            s
            for s in loop.body
            if not isinstance(s, Alloc) and any(a.buffer.same_as(buffer) for a in accesses_of([s]))
        ),
        None,
    )
    if not isinstance(used, Store) or not used.buffer.same_as(buffer):
        return False
    if sum(a.buffer.same_as(buffer) for a in accesses_of([used])) != 1:
        return False
    return all(
        tir.structurally_equal(mine, other)
        for access in accesses
        for mine, other in zip(access.indices, used.indices, strict=True)
    )


def execute_step(layouts: Layouts, body: list[Any], half: bool) -> StepState:
    """Execute one step of the time loop on symbols.

    Parameters
    ----------
    layouts : Layouts
        The boxes of the written buffers.
    body : list
        The flattened body of the time loop.
    half : bool
        Whether half arithmetic is done in float32.

    Returns
    -------
    StepState
        Values after the step, carried cells, opaque values.
    """
    state = StepState(layouts, half)
    state.run(body)
    return state
