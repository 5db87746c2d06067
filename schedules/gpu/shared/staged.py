"""Tiles that a block keeps in shared memory: one layer for trees and for walks.

In: the threads of the block copy a tile from global memory, whole lines at a time, and leave it in
a padded index; after a barrier every thread takes what it needs into registers. Out: the same way
back. Bytes of a line that other threads need are then never fetched twice, and a warp's access is
as few transactions as there are lines.

With one buffer a block loads, waits and computes. With several the copies are asynchronous, and
those of all but one are under way while one tile is computed (``thread.async_copy``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import tirx
from tvm.ir import Var
from tvm.ir.expr import TensorLoad

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.ir import as_dtype, int_const, local, loop
from tvm_scan.schedules.common.replica import Replica
from tvm_scan.schedules.common.rows import ALONE, Row
from tvm_scan.schedules.gpu.shared.memory import Region
from tvm_scan.schedules.gpu.thread import async_copy
from tvm_scan.schedules.gpu.thread.held import HOLDS_NOTHING, HeldIndices
from tvm_scan.schedules.gpu.thread.vector_access import VectorAccess

#: Bytes that a thread moves at once at most.
VECTOR = 16
_UNROLLED = tirx.ForKind.UNROLLED


@dataclass(frozen=True, eq=False, kw_only=True)
class Staged(ABC):
    """An array of which a block keeps a tile: what is copied, how wide, and where it lies.

    Attributes
    ----------
    access : TensorLoad or BufferStore
        In the body of the recurrence.
    copies : VectorAccess
        What a thread moves at once between global and shared memory.
    axes : tuple of (str, int)
        What a tile has and how many: lanes, steps, states; the last one is copied by vectors.
    size, cells : int
        Bytes of an element, and elements of shared memory for a tile.
    counter : Var, optional
        The variable of the loop over the states that the access stands in.
    """

    access: Any
    copies: VectorAccess
    axes: tuple[tuple[str, int], ...]
    size: int
    cells: int
    counter: Var | None = None

    @abstractmethod
    def index(self, step: Any, lane: Any = None, state: Any = None) -> Any:
        """Index of an element in a tile, given numbers or expressions."""

    @property
    def vectors(self) -> VectorAccess:
        """The map from a thread's items in registers to those vectors."""
        return self.copies

    @property
    def stored(self) -> bool:
        """Return whether the array is an output."""
        return not isinstance(self.access, TensorLoad)

    @property
    def buffer(self) -> Var:
        """The array."""
        return self.access.buffer if self.stored else self.access.source

    @property
    def copied_bytes(self) -> int:
        """Bytes that a thread moves at once between global and shared memory."""
        return self.copies.lanes * self.size

    @property
    def bytes(self) -> int:
        """Bytes of a tile."""
        return self.cells * self.size


@dataclass(frozen=True, eq=False)
class Copiers:
    """The threads that copy a tile together.

    Attributes
    ----------
    threads, thread : int, Expr
        How many there are, and the number of this one.
    time : callable
        ``time(tile, step)`` of a step of a tile.
    replica : callable
        ``replica(lane)``: whose indices those of a lane of the tile are.
    guarded : callable
        ``guarded(inside, time, stmt)``: ``stmt`` if it is inside of the tile (None where all are)
        and there is such a step.
    row : Row
        The lane of the block that a tile is of, where every lane has tiles of its own.
    held : HeldIndices
        Holds what the number of the thread decides of an index.
    """

    threads: int
    thread: Any
    time: Callable[[Any, Any], Any]
    replica: Callable[[Any], Replica]
    guarded: Callable[[Any, Any, Any], Any]
    row: Row = ALONE
    held: HeldIndices = HOLDS_NOTHING


class SharedTile:
    """The shared memory of a staged array.

    Parameters
    ----------
    staged : Staged
        What lies in it.
    copiers : Copiers
        Who copies.
    buffers : int
        Tiles that it has room for.
    suffix : str
        Of its name.
    dtype : str, optional
        Of its cells, if that is not the array's.
    region : Region, optional
        Where it lies in an array that others share; else it has one of its own.
    over : SharedTile, optional
        An input's whose cells it takes one for one, when they have been read.
    """

    def __init__(
        self,
        staged: Staged,
        copiers: Copiers,
        buffers: int,
        suffix: str = "tile",
        dtype: str | None = None,
        region: Region | None = None,
        over: SharedTile | None = None,
    ) -> None:
        self.staged, self.copiers, self.buffers, self.region = staged, copiers, buffers, region
        self.over = over
        lender: Region | SharedTile | None = region or over
        self.memory: Var
        if lender is not None:
            self.memory = lender.memory
            return
        name, dtype = f"{staged.buffer.name}_{suffix}", dtype or tir.dtype_of(staged.buffer)
        shape = [*copiers.row.lead, buffers, staged.cells]
        self.memory = local(name, shape, dtype, "shared")

    def _at(self, tile: Any, index: Any, lanes: int = 1) -> list[Any]:
        """Indices of neighbours in the buffer that a tile has."""
        if self.region is not None:
            (first,) = self.region.at(index, tile)
            return [ramp(first, lanes)]
        slot = as_dtype(tile % self.buffers if self.buffers > 1 else 0, "int32")
        return [*self.copiers.row.at, slot, ramp(index, lanes)]

    def load(self, tile: Any, index: Any, lanes: int = 1) -> Any:
        """Neighbours of a tile."""
        return tirx.BufferLoad(self.memory, self._at(tile, index, lanes))

    def store(self, index: Any, value: Any) -> Any:
        """Set a cell of the only buffer."""
        return tirx.BufferStore(self.memory, value, self._at(0, index))

    # ---- between global and shared memory -----------------------------------------------------

    def _copies(self, tile: Any, make: Callable[[Any, list[Any]], Any]) -> Any:
        """``make(index, indices)`` for the thread's vectors of a tile, those that exist."""
        staged, by = self.staged, self.copiers
        *outer, (inner, extent) = staged.axes
        lanes = staged.copies.lanes
        in_row = extent // lanes
        total = in_row * prod(n for _, n in outer)

        def of_round(r: Any) -> Any:
            number = as_dtype(r, "int32") * by.threads + by.thread
            if outer:
                at = {outer[0][0]: number // in_row, inner: number % in_row * lanes}
                inside = number < total
            else:
                at = {inner: number * lanes}
                inside = at[inner] < extent
            time, replica = by.time(tile, at["step"]), by.replica(at.get("lane"))
            indices = list(staged.access.indices)
            if staged.counter is not None:
                state = as_dtype(at["state"], tir.dtype_of(staged.counter))
                table = tir.VarMap([(staged.counter, state)])
                indices = [tir.substitute(index, table) for index in indices]
            indices = [replica.instantiate(index, None, time) for index in indices]
            if lanes > 1:
                indices = staged.copies.ramp(indices)
            index = by.held(staged.index(**at), lanes)
            return by.guarded(inside if total % by.threads else None, time, make(index, indices))

        rounds = -(-total // by.threads)
        if not by.held.holds:
            return loop("r", rounds, of_round, _UNROLLED)
        return tir.seq(of_round(int_const(r, "int32")) for r in range(rounds))

    def fetch(self, tile: Any) -> Any:
        """Begin to copy a tile to its buffer."""
        staged = self.staged
        by_itself = self.buffers > 1 and async_copy.can_copy(staged.copied_bytes)

        def copy(index: Any, indices: list[Any]) -> Any:
            if by_itself:
                first = [i.base if isinstance(i, tirx.Ramp) else i for i in indices]
                # Rows cut off at the last lane are no constant apart: each would have a register.
                if not tir.nodes(first, tirx.Min):
                    first = self.copiers.held.element(staged.buffer, first)
                to = self._at(tile, index)
                return async_copy.copy(self.memory, to, staged.buffer, first, staged.copied_bytes)
            value = tirx.BufferLoad(staged.buffer, indices)
            return tirx.BufferStore(self.memory, value, self._at(tile, index, staged.copies.lanes))

        return self._copies(tile, copy)

    def put(self, tile: Any) -> Any:
        """Copy a tile from its buffer; a barrier must stand before it."""

        def copy(index: Any, indices: list[Any]) -> Any:
            value = self.load(tile, index, self.staged.copies.lanes)
            return tirx.BufferStore(self.staged.buffer, value, indices)

        return self._copies(tile, copy)

    # ---- between shared memory and registers --------------------------------------------------

    def take(
        self,
        registers: Var,
        tile: Any,
        first: Any,
        items: int,
        unit: int,
        apart: int = 1,
        begin: Any = 0,
    ) -> Any:
        """A thread's items into registers: ``unit`` at once, ``apart`` cells from each other.

        ``first`` is the index of its first item; those from ``begin`` on are taken.
        """

        def of_unit(item: Any, index: Any) -> Any:
            value = self.load(tile, index, unit)
            return tirx.BufferStore(registers, value, [ramp(item, unit)])

        return _units(items, unit, first, of_unit, apart, begin)

    def leave(
        self, registers: Var, tile: Any, first: Any, items: int, unit: int, begin: Any = 0
    ) -> Any:
        """A thread's results from registers, as ``take``."""

        def of_unit(item: Any, index: Any) -> Any:
            value = tirx.BufferLoad(registers, [ramp(item, unit)])
            return tirx.BufferStore(self.memory, value, self._at(tile, index, unit))

        return _units(items, unit, first, of_unit, begin=begin)


def _units(
    items: int,
    unit: int,
    first: Any,
    make: Callable[[Any, Any], Any],
    apart: int = 1,
    begin: Any = 0,
) -> Any:
    def of_unit(u: Any) -> Any:
        item = begin + u * unit
        return make(item, first + item * apart)

    return loop("u", items // unit, of_unit, _UNROLLED)


def are_whole(recurrence: Recurrence, steps: int) -> bool:
    """Return whether tiles of so many steps leave none over: one question then guards a tile."""
    extent = tir.as_int(recurrence.time.extent)
    return extent is not None and extent % steps == 0


def ramp(first: Any, lanes: int) -> Any:
    """``lanes`` neighbours from ``first`` on."""
    return tirx.Ramp(first, int_const(1, first), lanes) if lanes > 1 else first
