"""The cells that a loop carries, and the variables that stand for them before a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.extraction.layouts import Layouts
from tvm_scan.extraction.statements import Loop
from tvm_scan.extraction.step_loops import loop_of

Key = tuple[Any, ...]


@dataclass(eq=False)
class Cell:
    """A carried cell: its buffer, its indices in the register array, the variable before a step.

    While the body is executed, the value before the step is a load of ``before`` at the index
    that the body used; ``resolve`` turns loads at the cell's own indices into ``old``.
    """

    buffer: Var
    key: Key
    lag: int
    old: Var
    before: Var
    indices: list[Any]

    def is_read_by(self, load: Any) -> bool:
        """Return whether ``load`` is the value of this cell before the step, at its own indices."""
        return bool(load.source.same_as(self.before)) and all(
            tir.as_int(a) == b if isinstance(b, int) else tir.structurally_equal(a, b)
            for a, b in zip(load.indices, self.indices, strict=True)
        )


class Cells:
    """Values of all cells at one point of the body, and how the body names them."""

    def __init__(self, layouts: Layouts, half: bool) -> None:
        self.layouts = layouts
        self.half = half
        self.values: dict[tuple[int, Key], Any] = {}
        self.cells: dict[tuple[int, Key, int], Cell] = {}
        self.preloaded: tir.VarMap = tir.VarMap()
        self.opaque: tir.VarMap = tir.VarMap()
        self.lets: tir.VarMap = tir.VarMap()
        self.state_vars: dict[tuple[int, int], Var] = {}
        self.befores: dict[tuple[int, int], Var] = {}
        self.running: dict[int, list[Any]] = {}
        self.stored_by: dict[tuple[int, Key], list[tuple[Var, Var]]] = {}
        self.inner: list[Loop] = []
        self.origins: dict[tuple[int, Key], Any] = {}

    @staticmethod
    def _id(buffer: Var) -> int:
        return hash(buffer)

    def state_var(self, buffer: Var, dim: int) -> Var:
        """Variable that runs over dimension ``dim`` of the register array of ``buffer``."""
        slot = (self._id(buffer), dim)
        if slot not in self.state_vars:
            self.state_vars[slot] = tirx.Var(f"{buffer.name}_s{dim}", "int32")
        return self.state_vars[slot]

    def _key(self, buffer: Var, offsets: list[Any]) -> tuple[Key, list[tuple[Var, Var]]] | None:
        """Canonical key of a cell, and the loop variables that its state variables stand for."""
        box = self.layouts.boxes[buffer]
        key: list[Any] = []
        pairs: list[tuple[Var, Var]] = []
        for dim, offset in enumerate(offsets):
            within = tir.simplify(offset - box.lower[dim])
            constant = tir.as_int(within)
            if box.extents[dim] == 1:
                key.append(0)
            elif constant is not None:
                key.append(constant)
            else:
                loop = loop_of(within, self.inner)
                if loop is None or tir.as_int(loop.extent) != box.extents[dim]:
                    return None
                if any(loop.var.same_as(var) for var, _ in pairs):
                    return None  # one loop in two dimensions visits a diagonal, not all cells
                key.append("s")
                pairs.append((loop.var, self.state_var(buffer, dim)))
        return tuple(key), pairs

    def _overlaps(self, buffer: Var, key: Key) -> bool:
        """Return whether another key that is in use names some of the same cells."""
        others = self._keys(buffer) - {key}
        return any(
            all(a == b or "s" in (a, b) for a, b in zip(key, other, strict=True))
            for other in others
        )

    def _keys(self, buffer: Var) -> set[Key]:
        """Keys of ``buffer`` that are in use."""
        ident = self._id(buffer)
        written = {key for owner, key in self.values if owner == ident}
        return written | {key for owner, key, _ in self.cells if owner == ident}

    def _old(self, buffer: Var, key: Key, pairs: list[tuple[Var, Var]], lag: int = 1) -> Any:
        """The cells ``key`` as they were ``lag`` steps ago, at the loop variables of ``pairs``."""
        for each in range(1, lag + 1):  # what was two steps ago was one step ago, a step ago
            cell = self._cell(buffer, key, each)
        load = tirx.BufferLoad(cell.before, cell.indices)
        return tir.substitute(load, tir.VarMap((s, n) for n, s in pairs))

    def _cell(self, buffer: Var, key: Key, lag: int) -> Cell:
        ident = self._id(buffer)
        if (ident, key, lag) not in self.cells:
            dtype = tir.wide_dtype(tir.dtype_of(buffer))
            late = f"_{lag}" if lag > 1 else ""
            if (ident, lag) not in self.befores:
                extents = self.layouts.boxes[buffer].extents
                before = tirx.decl_buffer(extents, dtype, f"{buffer.name}_before{late}")
                self.befores[(ident, lag)] = before
            indices = [self.state_var(buffer, d) if k == "s" else k for d, k in enumerate(key)]
            suffix = "".join(f"_{k}" for k in key if isinstance(k, int) and k)
            old = tirx.Var(f"{buffer.name}{suffix}{late}", dtype)
            before = self.befores[(ident, lag)]
            self.cells[(ident, key, lag)] = Cell(buffer, key, lag, old, before, indices)
        return self.cells[(ident, key, lag)]

    def resolve(self, expr: Any, cell: Cell) -> Any:
        """``expr`` with the cell's own value before the step as ``cell.old``."""
        return tir.map_loads(expr, lambda load: cell.old if cell.is_read_by(load) else load)

    def new_opaque(self, dtype: str, depends: list[Any]) -> Var:
        """A value that is not known as an expression, with what it may depend on."""
        var = tirx.Var(f"opaque{len(self.opaque)}", dtype)
        self.opaque[var] = depends
        return var
