"""Shared memory in which the threads of a lane leave for one another what they know of their steps.

What all states of a step share, ``dt`` and ``dt u`` of a selective scan, its owner makes and every
thread of the lane needs. A shuffle passes on one value of one step; an access to shared memory as
many steps as a vector holds. The sums over the states likewise: every thread leaves its parts, and
an owner reads those of its steps. Threads of a lane are of one warp, whose barrier parts the
writes from the reads: one before a group's steps, one after, each of which says that what was left
at the other one is read. Where nothing is left after the steps, there is one more before them.

Where the block's tiles have several buffers, which is where the device has all this, and leave
room; else by shuffles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from typing import Any

from tvm import tirx
from tvm.ir import Var
from tvm.ir.expr import TensorLoad

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.ir import as_dtype, int_const, local
from tvm_scan.schedules.common.state_split import StateSplit
from tvm_scan.schedules.gpu.shared.memory import Cells, Region, memory_bytes
from tvm_scan.schedules.gpu.shared.staged import VECTOR, ramp
from tvm_scan.schedules.gpu.shared.staging import MAX_STAGED, loads_beside_states
from tvm_scan.schedules.gpu.shared.walk_layout import MOST_BYTES, walk_layout
from tvm_scan.schedules.gpu.shared.walk_tiles import WalkTiles
from tvm_scan.schedules.gpu.thread.banks import WARP
from tvm_scan.schedules.gpu.thread.barriers import hidden, wait
from tvm_scan.schedules.gpu.thread.plans import WalkPlan
from tvm_scan.schedules.gpu.thread.registers import cells_of
from tvm_scan.schedules.gpu.warp.shuffles import word_of

#: Owners whose sums are exchanged together: more write out more steps to save little.
TOGETHER = 4


@dataclass(frozen=True)
class Items:
    """Items of every thread of a block, of some owners each.

    Vectors of neighbouring threads are neighbours, and threads of a lane read those of one thread,
    or of one for several owners, whose rows a vector more parts: no two meet in a bank.

    Attributes
    ----------
    dtype : str
        Of an item.
    items, threads, owners : int
        Items of an owner, threads of a block, owners for whom a thread has items.
    """

    dtype: str
    items: int
    threads: int
    owners: int = 1

    @property
    def unit(self) -> int:
        """Items of a vector."""
        return gcd(self.items, max(1, VECTOR // tir.byte_size(self.dtype)))

    @property
    def pitch(self) -> int:
        """Cells from one owner to the next."""
        return self.items * self.threads + self.unit * (self.owners > 1)

    @property
    def cells(self) -> Cells:
        """Cells of all."""
        return Cells(self.dtype, self.owners * self.pitch)


@dataclass(frozen=True)
class ExchangeLayout:
    """Values that owners make, and sums, in shared memory; either may be empty."""

    sent: tuple[Items, ...] = ()
    sums: tuple[Items, ...] = ()

    @property
    def cells(self) -> list[Cells]:
        """Cells of every array."""
        return [part.cells for part in (*self.sent, *self.sums)]


def sent_registers(split: StateSplit) -> list[Var]:
    """Registers that the loops over the states read, and that the owner of a step computes."""
    read = tir.buffers_loaded(tir.seq(split.loops))
    sums = [cell.source for cell in split.sums]
    written = tir.buffers_stored(tir.seq(split.before)).keys()
    return [b for b in written if b in read and not any(b.same_as(s) for s in sums)]


def sent_loads(split: StateSplit, recurrence: Recurrence) -> list[TensorLoad]:
    """Loads of the loops over the states that are alike for all of them, and made by the owner."""
    read = tir.buffers_loaded(tir.seq(split.loops))
    return [x for x in loads_beside_states(split, recurrence)[:MAX_STAGED] if x.source in read]


@lru_cache(maxsize=256)
def exchange_layout(plan: WalkPlan, recurrence: Recurrence, split: StateSplit) -> ExchangeLayout:
    """Return what the threads of a lane exchange in shared memory under a plan."""
    if plan.stages == 1 or plan.threads_per_lane == 1:
        return ExchangeLayout()
    size = plan.items_per_thread, plan.threads_per_block
    values = [(b, len(cells_of(b))) for b in sent_registers(split)]
    values += [(load.source, 1) for load in sent_loads(split, recurrence)]
    sent = [Items(word_of(tir.dtype_of(b)), *size) for b, cells in values for _ in range(cells)]
    sums = [
        Items(word_of(tir.dtype_of(cell)), *size, plan.threads_per_lane)
        for cell in split.sums
        if plan.threads_per_lane <= TOGETHER
    ]
    tiles = walk_layout(plan, recurrence, split).cells
    for both in (ExchangeLayout(tuple(sent), tuple(sums)), ExchangeLayout(tuple(sent))):
        if sum(memory_bytes([*tiles, *both.cells], plan.stages)) <= MOST_BYTES:
            return both
    return ExchangeLayout()


def block_bytes(plan: WalkPlan, recurrence: Recurrence, split: StateSplit) -> list[int]:
    """Bytes of every array of shared memory: tiles, and what threads of a lane exchange."""
    layout = walk_layout(plan, recurrence, split)
    if plan.stages == 1:
        return layout.bytes_of(1)
    exchanged = exchange_layout(plan, recurrence, split).cells
    return memory_bytes([*layout.cells, *exchanged], plan.stages)


class SharedItems:
    """Such items in shared memory.

    Parameters
    ----------
    part : Items
        How many.
    region : Region
        Where.
    tiles : WalkTiles
        Give the number of the thread in its block and in its lane.
    """

    def __init__(self, part: Items, region: Region, tiles: WalkTiles) -> None:
        self.part, self.region = part, region
        # What is held is a number of vectors, so that TVM sees that their cells are aligned.
        unit, pitch = part.unit, part.pitch // part.unit
        lane = tiles.thread - tiles.thread % tiles.shared
        owner = tiles.thread % tiles.shared
        self._mine = tiles.held(tiles.thread * unit, unit)
        first = lane + owner * pitch if part.owners > 1 else lane
        self._theirs = tiles.held(first * unit, unit)

    def leave(self, registers: Var, owner: int = 0) -> Any:
        """The thread's items for an owner; ``registers`` has those of all owners in a row."""
        first = self._mine + owner * self.part.pitch

        def of_unit(item: int, at: list[Any]) -> Any:
            taken = int_const(owner * self.part.items + item, "int32")
            value = tirx.BufferLoad(registers, [ramp(taken, self.part.unit)])
            return tirx.BufferStore(self.region.memory, value, at)

        return self._units(first, of_unit)

    def take(self, registers: Var, thread: Any) -> Any:
        """Items of a thread of the lane into registers: those for this thread, if each has some."""
        first = self._theirs + as_dtype(thread, "int32") * self.part.unit

        def of_unit(item: int, at: list[Any]) -> Any:
            value = tirx.BufferLoad(self.region.memory, at)
            return tirx.BufferStore(
                registers, value, [ramp(int_const(item, "int32"), self.part.unit)]
            )

        return self._units(first, of_unit)

    def _units(self, first: Any, make: Any) -> Any:
        part, stmts = self.part, []
        for item in range(0, part.items, part.unit):
            (at,) = self.region.at(first + item * part.threads)
            stmts.append(make(item, [ramp(at, part.unit)]))
        return hidden(tir.seq(stmts))


class SentItems:
    """Values that owners of steps send through shared memory to the threads of their lane.

    Parameters
    ----------
    parts, regions : sequence of Items, sequence of Region
        Of every value, and where it lies; none where they are shuffled.
    tiles : WalkTiles
        See ``SharedItems``.
    """

    def __init__(self, parts: Sequence[Items], regions: Sequence[Region], tiles: WalkTiles) -> None:
        both = zip(parts, regions, strict=True)
        self._shared = [SharedItems(part, region, tiles) for part, region in both]
        self._mine, self._theirs = (
            [local(f"{name}{i}", [p.items], p.dtype) for i, p in enumerate(parts)]
            for name in ("mine", "theirs")
        )

    @property
    def is_empty(self) -> bool:
        """Return whether nothing is sent so."""
        return not self._shared

    @property
    def buffers(self) -> list[Var]:
        """Registers to allocate."""
        return [*self._mine, *self._theirs]

    def send(self, values: Sequence[Any]) -> list[Any]:
        """Leave values of the thread's items: ``value(k)`` of item ``k``, in the order of parts."""
        stmts: list[Any] = []
        for value, mine, shared in zip(values, self._mine, self._shared, strict=True):
            for k in range(shared.part.items):
                word = value(k)
                if tir.dtype_of(word) != shared.part.dtype:
                    word = tirx.Cast(shared.part.dtype, word)
                stmts.append(tirx.BufferStore(mine, word, [int_const(k, "int32")]))
            stmts.append(shared.leave(mine))
        return [*stmts, wait(WARP)] if stmts else []

    def receive(self, q: Any) -> list[Any]:
        """Take those of the lane's thread ``q``."""
        return [
            shared.take(theirs, q)
            for shared, theirs in zip(self._shared, self._theirs, strict=True)
        ]

    def value(self, number: int, k: int, dtype: str) -> Any:
        """A value that was taken, of item ``k``."""
        word = tirx.BufferLoad(self._theirs[number], [int_const(k, "int32")])
        return word if tir.dtype_of(word) == dtype else tirx.Cast(dtype, word)
