"""One step of the loop body, executed on symbols: the carry after the step as an expression.

Every cell that the body reads before it writes it is a carry and gets a variable (``old``).
Stores are followed through the body, also through conditions and through inner loops whose
variable indexes the cell. A cell that an inner loop accumulates (a contraction over the state)
is opaque: it may be emitted, but no step may depend on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.ir import Range, Var
from tvm.sym import Analyzer

from tvm_scan import tir
from tvm_scan.extraction.accesses import accesses_of, rename
from tvm_scan.extraction.cells import Cells, Key
from tvm_scan.extraction.halves import widen
from tvm_scan.extraction.layouts import Layouts
from tvm_scan.extraction.statements import Alloc, Condition, Let, Loop, Store, stores_in


class StepState(Cells):
    """Cells, and the statements of a body that give them new values."""

    # ---- expressions --------------------------------------------------------------------

    def evaluate(self, expr: Any) -> Any:
        """``expr`` at this point: loads of written cells and bindings replaced by values."""

        def on_load(load: Any) -> Any:
            return self._load(load) if load.source in self.layouts else load

        if self.half:
            return widen(expr, on_load, self.lets)
        return tir.substitute(tir.map_loads(expr, on_load), self.lets)

    def _load(self, load: Any) -> Any:
        buffer = load.source
        split = self.layouts.split(buffer, list(load.indices), self.inner)
        dtype = tir.wide_dtype(tir.dtype_of(buffer))
        key_and_pairs = None if split is None else self._key(buffer, split.offsets)
        if split is None or key_and_pairs is None:
            return self.new_opaque(dtype, self._everything(buffer))
        key, pairs = key_and_pairs
        if self._overlaps(buffer, key) or self._half_written(buffer, pairs):
            return self.new_opaque(dtype, self._everything(buffer))
        box = self.layouts.boxes[buffer]
        if split.lag:
            return self._old(buffer, key, pairs, split.lag)
        slot = (self._id(buffer), key)
        if slot in self.values:
            return tir.substitute(self.values[slot], tir.VarMap((s, n) for n, s in pairs))
        if self._id(buffer) in self.running:
            depends = [*self.running[self._id(buffer)], *self._everything(buffer)]
            return self.new_opaque(dtype, depends)
        if box.time_dim is not None:
            # A history read at its own step before it is written: its content is an input.
            self.preloaded[buffer] = True
            return load
        return self._old(buffer, key, pairs)

    def _half_written(self, buffer: Var, pairs: list[tuple[Var, Var]]) -> bool:
        """Return whether an open loop has written cells of ``buffer``, but not the one at hand.

        Inside ``for n: h[n] = ..`` only the cell of the present ``n`` is known to be new.
        """
        ident = self._id(buffer)
        open_vars = tir.VarMap((loop.var, True) for loop in self.inner)
        at_hand = tir.VarMap((s, n) for n, s in pairs)
        for (owner, _), stored in self.stored_by.items():
            if owner != ident:
                continue
            for n, s in stored:
                if n in open_vars and not (s in at_hand and at_hand[s].same_as(n)):
                    return True
        return False

    def _everything(self, buffer: Var) -> list[Any]:
        """All values and carries of ``buffer``; a load of any of its cells depends on these."""
        ident = self._id(buffer)
        values = [value for (b, _), value in self.values.items() if b == ident]
        box = self.layouts.boxes[buffer]
        whole = self._whole(buffer)
        if (ident, whole) in self.values and not self._half_written(buffer, []):
            return values
        if box.time_dim is not None and not box.lags:
            self.preloaded[buffer] = True
            return values
        return [*values, self._old(buffer, whole, [], max(box.lags, 1))]

    def _whole(self, buffer: Var) -> Key:
        """Key that names every cell of ``buffer``."""
        return tuple("s" if extent > 1 else 0 for extent in self.layouts.boxes[buffer].extents)

    def depends_on(
        self, expr: Any, wanted: tir.VarMap, at: Callable[[Any], Any] = lambda e: e
    ) -> bool:
        """Return whether ``expr`` depends on any of the variables, through opaque values as well.

        ``at`` is done to every expression before it is looked into.
        """
        seen: tir.VarMap = tir.VarMap()
        todo = [expr]
        while todo:
            for var in tir.variables(at(todo.pop())).keys():
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
        buffer = stmt.buffer
        value = self.evaluate(stmt.value)
        split = self.layouts.split(buffer, stmt.indices, self.inner)
        key_and_pairs = None if split is None else self._key(buffer, split.offsets)
        if key_and_pairs is None or self._overlaps(buffer, key_and_pairs[0]):
            self._forget(buffer, [value])
            return
        key, pairs = key_and_pairs
        slot = (self._id(buffer), key)
        self.values[slot] = tir.substitute(value, tir.VarMap(pairs))
        self.stored_by[slot] = pairs
        self.origins[slot] = stmt.origin

    def _forget(self, buffer: Var, depends: list[Any]) -> None:
        """Make every cell of ``buffer`` opaque."""
        depends = depends + self._everything(buffer)
        ident = self._id(buffer)
        dtype = tir.wide_dtype(tir.dtype_of(buffer))
        for key in self._keys(buffer):
            self.values[(ident, key)] = self.new_opaque(dtype, depends)

    def _condition(self, stmt: Condition) -> None:
        cond = self.evaluate(stmt.cond)
        before = dict(self.values)
        self.run(stmt.then)
        taken = self.values
        self.values = dict(before)
        self.run(stmt.orelse)
        other = self.values
        merged = dict(before)
        for slot in {**taken, **other}:
            left, right = self._value_or_old(taken, slot), self._value_or_old(other, slot)
            same = left is right or tir.structurally_equal(left, right)
            here = tir.substitute(cond, tir.VarMap(self.stored_by.get(slot, [])))
            merged[slot] = left if same else tirx.op.if_then_else(here, left, right)
        self.values = merged

    def _value_or_old(self, values: dict[tuple[int, Key], Any], slot: tuple[int, Key]) -> Any:
        if slot in values:
            return values[slot]
        buffer = next(b for b in self.layouts.boxes.keys() if self._id(b) == slot[0])
        box = self.layouts.boxes[buffer]
        if box.time_dim is None:
            return self._old(buffer, slot[1], [])
        # Memory keeps what it had where the condition is false.
        self.preloaded[buffer] = True
        indices = []
        for dim, key in enumerate(slot[1]):
            local = self.state_var(buffer, dim) if key == "s" else key
            index = box.base[dim] + box.lower[dim] + local
            if dim == box.time_dim:
                index = box.base[dim] + self.layouts.nest.time.var * box.time_step
            indices.append(tir.simplify(index))
        return tirx.BufferLoad(buffer, indices)

    def _loop(self, loop: Loop) -> None:
        loop = self._without_init(loop)
        self.inner.append(loop)
        running: list[tuple[Var, list[Any]]] = []
        for buffer in tir.VarMap((s.buffer, True) for s in stores_in(loop.body)).keys():
            if not self._indexed_by(loop, buffer) and not self._fresh_in(loop, buffer):
                marker: list[Any] = []
                running.append((buffer, marker))
                self._mark_running(buffer, marker)
                self.running[self._id(buffer)] = marker
        self.run(loop.body)
        for buffer, marker in running:
            ident = self._id(buffer)
            marker += [value for (b, _), value in self.values.items() if b == ident]
            self.running.pop(ident, None)
        self.inner.pop()
        extent = tir.as_int(loop.extent)
        last = tir.VarMap([(loop.var, loop.extent - 1)])
        for slot, value in list(self.values.items()):
            if tir.contains_var(value, [loop.var]):
                self.values[slot] = tir.substitute(value, last)
        if extent is None or extent < 1:
            for buffer in tir.VarMap((s.buffer, True) for s in stores_in(loop.body)).keys():
                self._forget(buffer, [self.evaluate(loop.extent)])

    def _without_init(self, loop: Loop) -> Loop:
        """Run ``if n == 0: init`` at the head of ``for n`` first: a block's reduction init."""
        body = list(loop.body)
        zero = tir.VarMap([(loop.var, tir.zero_like(loop.var))])
        while body and isinstance(body[0], Condition) and not body[0].orelse:
            analyzer = Analyzer()
            later = tirx.Max(loop.extent - 1, tir.zero_like(loop.var) + 1)
            analyzer.bind(loop.var, Range.from_min_extent(tir.zero_like(loop.var) + 1, later))
            at_zero = tir.simplify(tir.substitute(body[0].cond, zero))
            if not (tir.is_true(at_zero) and analyzer.can_prove(tirx.Not(body[0].cond))):
                break
            self.run(rename(body.pop(0).then, zero))
        return Loop(loop.var, loop.extent, body, loop.origin, loop.thread)

    def _indexed_by(self, loop: Loop, buffer: Var) -> bool:
        """Return whether every store to ``buffer`` in the loop is to a cell that it selects."""
        for access in accesses_of([loop]):
            if access.is_store and access.buffer.same_as(buffer):
                split = self.layouts.split(
                    buffer, access.indices, [*self.inner[:-1], *access.inner]
                )
                if split is None:
                    return False
                offsets = zip(split.offsets, self.layouts.boxes[buffer].lower, strict=True)
                if not any(tir.simplify(x - low).same_as(loop.var) for x, low in offsets):
                    return False
        return True

    def _fresh_in(self, loop: Loop, buffer: Var) -> bool:
        """Return whether each iteration overwrites the cell before it reads it."""
        for stmt in loop.body:
            if isinstance(stmt, Alloc):
                continue
            accesses = [a for a in accesses_of([stmt]) if a.buffer.same_as(buffer)]
            if not accesses:
                continue
            return isinstance(stmt, Store) and len(accesses) == 1 and accesses[0].is_store
        return True

    def _mark_running(self, buffer: Var, depends: list[Any]) -> None:
        depends += self._everything(buffer)
        ident = self._id(buffer)
        dtype = tir.wide_dtype(tir.dtype_of(buffer))
        for key in self._keys(buffer) or {self._whole(buffer)}:
            self.values[(ident, key)] = self.new_opaque(dtype, depends)


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
