"""The loop body over registers: what a schedule replays from any point in time."""

from __future__ import annotations

import itertools
from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.extraction.accesses import accesses_of
from tvm_scan.extraction.halves import widen
from tvm_scan.extraction.layouts import Layouts, Split
from tvm_scan.extraction.statements import Alloc, Condition, Let, Loop, Store, rebuild
from tvm_scan.recurrence import Register

_ZERO = tirx.IntImm("int32", 0)


class BodyWriter:
    """Rewrites statements of the nest so that written buffers become registers."""

    def __init__(self, layouts: Layouts, half: bool, preloaded: tir.VarMap) -> None:
        self.layouts = layouts
        self.half = half
        self.preloaded = preloaded
        #: Bound halves: their registers, and the loads that stand for them.
        self.scratch: list[Register] = []
        self.names: tir.VarMap = tir.VarMap()
        self.deferred: tir.VarMap = tir.VarMap()
        self.direct: tir.VarMap = tir.VarMap()
        #: Histories that no one but the step itself ever sees: their registers are enough.
        self.unseen: tir.VarMap = tir.VarMap()
        around = [*layouts.nest.before, *layouts.nest.after]
        elsewhere = tir.VarMap((access.buffer, True) for access in accesses_of(around))
        body = accesses_of(layouts.nest.time.body)
        for buffer, box in layouts.boxes.items():
            if box.time_dim is None:
                continue
            reads = [
                self._split(buffer, a.indices, a.inner)
                for a in body
                if not a.is_store and a.buffer.same_as(buffer)
            ]
            hidden = buffer not in layouts.external and buffer not in elsewhere
            if hidden and reads and buffer not in preloaded:
                self.unseen[buffer] = True
            if any(r.lag == 0 for r in reads):
                self.deferred[buffer] = True
            elif not reads:
                self.direct[buffer] = True

    def registers(self) -> list[Register]:
        """Register arrays that the rewritten statements use."""
        in_registers = [r for b, r in self.layouts.registers.items() if b not in self.direct]
        return in_registers + self.scratch

    # ---- statements ---------------------------------------------------------------------

    def step(self) -> Any:
        """One step: preloads, the body, deferred stores, and the carry handed on."""
        time = self.layouts.nest.time
        out: list[Any] = []
        for buffer in self.preloaded.keys():
            if buffer not in self.direct:  # no one reads it: a cell without a store stays as it is
                out.append(self.copy_in(self.layouts.registers[buffer], time.var))
        out.append(rebuild(self.rewrite(time.body, [])))
        for buffer in [b for b in self.deferred.keys() if b not in self.unseen]:
            out.append(self.copy_out(self.layouts.registers[buffer], time.var))
        for register in self.registers():
            # What was two steps ago goes first, so that nothing is written before it is read.
            line = [*reversed(register.previous), register.local]
            for to, source in itertools.pairwise(line):
                out.append(_each_cell(register, _copy(to, source)))
        return tir.seq(out)

    def rewrite(self, stmts: list[Any], inner: list[Loop], around: Any = None) -> list[Any]:
        """``stmts`` over registers. ``around`` is the time step that code outside time means."""
        out: list[Any] = []
        for stmt in stmts:
            if isinstance(stmt, Store):
                out += self._store(stmt, inner, around)
            elif isinstance(stmt, Let):
                value = self.expr(stmt.value, inner, around)
                if self.half and tir.is_half(tir.dtype_of(stmt.var)):
                    out.append(Store(self._scratch(stmt.var), [_ZERO], value, stmt.origin))
                else:
                    out.append(Let(stmt.var, value, stmt.origin))
            elif isinstance(stmt, Condition):
                then = self.rewrite(stmt.then, inner, around)
                orelse = self.rewrite(stmt.orelse, inner, around)
                cond = self.expr(stmt.cond, inner, around)
                out.append(Condition(cond, then, orelse, stmt.origin))
            elif isinstance(stmt, Loop):
                body = self.rewrite(stmt.body, [*inner, stmt], around)
                extent = self.expr(stmt.extent, inner, around)
                out.append(Loop(stmt.var, extent, body, stmt.origin))
            else:
                assert isinstance(stmt, Alloc)
        return out

    def _store(self, stmt: Store, inner: list[Loop], around: Any) -> list[Any]:
        value = self.expr(stmt.value, inner, around)
        buffer = stmt.buffer
        register: Register = self.layouts.registers[buffer]
        memory = Store(buffer, stmt.indices, self._narrow(value, buffer), stmt.origin)
        if buffer in self.direct:
            return [memory]
        cell = self._cell_of(buffer, stmt.indices, inner, around)
        target = (
            self._held(register, stmt.indices, around) if around is not None else register.local
        )
        stored = Store(target, cell, value, stmt.origin)
        if buffer in self.unseen:
            return [stored]
        if register.timed and (buffer not in self.deferred or around is not None):
            again = tirx.BufferLoad(target, cell)
            return [stored, Store(buffer, stmt.indices, self._narrow(again, buffer), stmt.origin)]
        return [stored]

    @staticmethod
    def _narrow(value: Any, buffer: Var) -> Any:
        dtype = tir.dtype_of(buffer)
        return value if tir.dtype_of(value) == dtype else tirx.Cast(dtype, value)

    def _cell_of(self, buffer: Var, indices: Any, inner: list[Loop], around: Any) -> list[Any]:
        box = self.layouts.boxes[buffer]
        indices = list(indices)
        if around is not None and box.time_dim is not None:
            here = box.base[box.time_dim] + self.layouts.nest.time.var * box.time_step
            indices[box.time_dim] = here
        return self._register_index(buffer, self._split(buffer, indices, inner))

    def expr(self, expr: Any, inner: list[Loop], around: Any = None) -> Any:
        """``expr`` with loads of written buffers taken from registers."""

        def on_load(load: Any) -> Any:
            buffer = load.source
            if buffer not in self.layouts or buffer in self.direct:
                return load
            register: Register = self.layouts.registers[buffer]
            if around is not None:
                cell = self._cell_of(buffer, load.indices, inner, around)
                return tirx.BufferLoad(self._held(register, load.indices, around), cell)
            split = self._split(buffer, list(load.indices), inner)
            cell = self._register_index(buffer, split)
            source = register.previous[split.lag - 1] if split.lag else register.local
            return tirx.BufferLoad(source, cell)

        if self.half:
            return widen(expr, on_load, self.names)
        return tir.map_loads(expr, on_load)

    def _scratch(self, var: Var) -> Var:
        """A register for a bound half: kept in float32, as all between memory and memory is.

        (Not a binding: TVM's legaliser of bfloat16 overlooks bound values.)
        """
        if var not in self.names:
            local = tirx.decl_buffer([1], "float32", f"{var.name}_reg", scope="local")
            self.scratch.append(Register(local, local, (), (), (1,), (0,), False, False))
            self.names[var] = tirx.BufferLoad(local, [_ZERO])
        return self.names[var].source

    def _held(self, register: Register, indices: Any, around: Any) -> Var:
        """Register array of the step, ``around`` or before it, that the time index means."""
        box = self.layouts.boxes[register.buffer]
        if box.time_dim is None:
            return register.states[0]
        back = self.layouts.steps_back(register.buffer, indices[box.time_dim], around)
        assert back is not None, "classify_accesses lets no other access through"
        return register.states[back]

    def _split(self, buffer: Var, indices: list[Any], inner: list[Loop]) -> Split:
        split = self.layouts.split(buffer, indices, inner)
        assert split is not None, "classify_accesses lets no other access through"
        return split

    def _register_index(self, buffer: Var, split: Split) -> list[Any]:
        box = self.layouts.boxes[buffer]
        return [tir.simplify(o - low) for o, low in zip(split.offsets, box.lower, strict=True)]

    # ---- memory -------------------------------------------------------------------------

    def memory_index(self, register: Register, cell: list[Any], step: Any) -> list[Any]:
        """Index into the user's buffer of ``cell`` at time ``step``."""
        box = self.layouts.boxes[register.buffer]
        out = []
        for dim, base in enumerate(box.base):
            index = base + box.lower[dim] + cell[dim]
            if dim == box.time_dim:
                index = base + step * box.time_step
            out.append(tir.simplify(index))
        return out

    def copy_in(self, register: Register, step: Any, lag: int = 0, exists: Any = None) -> Any:
        """Fill the register array of ``lag`` steps back from memory at ``step``, if it exists."""
        target = register.states[lag - 1] if lag else register.local

        def copy(cell: list[Any]) -> Any:
            load = tirx.BufferLoad(register.buffer, self.memory_index(register, cell, step))
            dtype = tir.dtype_of(target)
            value = load if tir.dtype_of(load) == dtype else tirx.Cast(dtype, load)
            if exists is not None:
                value = tirx.op.if_then_else(exists, value, tirx.const(0, dtype))
            return tirx.BufferStore(target, value, cell)

        return _each_cell(register, copy)

    def copy_out(self, register: Register, step: Any) -> Any:
        """Write a register array to memory."""

        def copy(cell: list[Any]) -> Any:
            value = self._narrow(tirx.BufferLoad(register.local, cell), register.buffer)
            index = self.memory_index(register, cell, step)
            return tirx.BufferStore(register.buffer, value, index)

        return _each_cell(register, copy)


def _copy(to: Var, source: Var) -> Any:
    return lambda cell: tirx.BufferStore(to, tirx.BufferLoad(source, cell), cell)


def _each_cell(register: Register, make: Any) -> Any:
    """``make(cell)`` for every cell of the register array."""
    extents = {dim: extent for dim, extent in enumerate(register.extents) if extent > 1}
    axes = {dim: tirx.Var(f"c{dim}", "int32") for dim in extents}
    stmt = make([axes.get(dim, _ZERO) for dim, _ in enumerate(register.extents)])
    counts = [tirx.IntImm("int32", extent) for extent in extents.values()]
    return tir.loops_over(zip(axes.values(), counts, strict=True), stmt)
