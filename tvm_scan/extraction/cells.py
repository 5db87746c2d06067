"""Carried cells: which one an access names, and how a value says which one it read.

A cell is named by a key: per dimension of the register array a constant, or ``"s"`` for "the one
that the surrounding loop selects". A value that was stored under ``"s"`` is written in terms of a
state variable per such dimension, never of the loop that happened to store it, so that it means
the same to every later loop. A read of the carry keeps its index: it is a load of a stand-in
buffer (``Cell.before``), which a transposed or shifted read leaves in another order than
the state variables. Only a step whose reads all stand at its own cell is a step of that cell.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.extraction.access import Layouts
from tvm_scan.extraction.flatten import Loop

__all__ = ["Cell", "Cells", "Key", "Place"]

Key = tuple[Any, ...]


class Place:
    """A key with the loop variable that selects the cell in each dimension marked ``"s"``."""

    def __init__(self, buffer: Var, key: Key, loops: list[Var], states: list[Var]) -> None:
        self.buffer = buffer
        self.key = key
        self.loops = loops
        self.states = states

    @property
    def slot(self) -> tuple[int, Key]:
        """The cell, for use as a dictionary key."""
        return (self.buffer.__hash__(), self.key)

    def to_states(self, value: Any) -> Any:
        """``value`` in terms of state variables."""
        return tir.substitute(value, tir.VarMap(zip(self.loops, self.states, strict=True)))

    def to_loops(self, value: Any) -> Any:
        """``value`` in terms of the loops around this access."""
        return tir.substitute(value, tir.VarMap(zip(self.states, self.loops, strict=True)))


class Cell:
    """A carried cell: its buffer, its key, and the variable that is the carry before a step."""

    def __init__(self, place: Place, name: str, dtype: str) -> None:
        self.buffer = place.buffer
        self.key = place.key
        self.states = place.states
        self.old = tirx.Var(name, dtype)
        self.before = tirx.decl_buffer([1] * max(1, len(self.states)), dtype, f"{name}_before")

    @property
    def slot(self) -> tuple[int, Key]:
        """The cell, for use as a dictionary key."""
        return (self.buffer.__hash__(), self.key)

    @property
    def names(self) -> list[Var]:
        """Everything that stands for the carry in a value."""
        return [self.old, self.before]

    def read(self, loops: list[Any]) -> Any:
        """The carry at the cell that ``loops`` select."""
        return tirx.BufferLoad(self.before, loops) if loops else self.old

    def own(self, value: Any) -> Any:
        """``value`` with reads of the carry at the cell itself written as ``old``."""

        def on_load(load: Any) -> Any:
            if not load.source.same_as(self.before):
                return load
            here = all(
                isinstance(index, Var) and index.same_as(state)
                for index, state in zip(load.indices, self.states, strict=True)
            )
            return self.old if here else load

        return tir.map_loads(value, on_load)


class Cells:
    """Every cell that a step reads before it writes it."""

    def __init__(self, layouts: Layouts) -> None:
        self.layouts = layouts
        self.found: dict[tuple[int, Key], Cell] = {}
        self._states: dict[tuple[int, int], Var] = {}

    def state(self, buffer: Var, dim: int) -> Var:
        """Variable that runs over dimension ``dim`` of the register array of ``buffer``."""
        slot = (buffer.__hash__(), dim)
        if slot not in self._states:
            self._states[slot] = tirx.Var(f"{buffer.name}_s{dim}", "int32")
        return self._states[slot]

    def place(self, buffer: Var, offsets: list[Any], inner: list[Loop]) -> Place | None:
        """The cell that an access names; None where it names none, or only some of a diagonal."""
        box = self.layouts.boxes[buffer]
        key: list[Any] = []
        loops: list[Var] = []
        states: list[Var] = []
        for dim, offset in enumerate(offsets):
            index = tir.simplify(offset - box.lower[dim])
            constant = tir.as_int(index)
            if box.extents[dim] == 1:
                key.append(0)
            elif constant is not None:
                key.append(constant)
            else:
                loop = next(
                    (l for l in inner if isinstance(index, Var) and index.same_as(l.var)), None
                )
                if loop is None or tir.as_int(loop.extent) != box.extents[dim]:
                    return None
                if any(loop.var.same_as(other) for other in loops):
                    return None
                key.append("s")
                loops.append(loop.var)
                states.append(self.state(buffer, dim))
        return Place(buffer, tuple(key), loops, states)

    def whole(self, buffer: Var) -> Place:
        """The key that names every cell of ``buffer``."""
        return self.named(
            buffer, tuple("s" if e > 1 else 0 for e in self.layouts.boxes[buffer].extents)
        )

    def named(self, buffer: Var, key: Key) -> Place:
        """The place of a key, in terms of its own state variables."""
        states = [self.state(buffer, dim) for dim, k in enumerate(key) if k == "s"]
        return Place(buffer, key, states, states)

    def carry(self, place: Place) -> Any:
        """The carry at ``place`` before the step; the cell is carried from now on."""
        if place.slot not in self.found:
            dtype = tir.wide_dtype(tir.dtype_of(place.buffer))
            suffix = "".join(f"_{k}" for k in place.key if isinstance(k, int) and k)
            self.found[place.slot] = Cell(place, f"{place.buffer.name}{suffix}", dtype)
        return self.found[place.slot].read(place.loops)
