"""Indices of a tile's items in shared memory, such that no two threads meet in a bank.

A block moves a tile between global and shared memory in whole lines: neighbouring threads take
neighbouring vectors. Between shared memory and registers every thread moves its own consecutive
items, ``unit`` elements at once. Both orders must be free of bank conflicts.

Theorem. Shared memory serves 128 bytes at once: the units (of ``b`` bytes) of ``N = 128 / b``
threads, in different banks if their indices differ modulo ``N``. Threads that begin ``U`` units
apart visit, of the multiples of ``d = gcd(U, N)``, every one after ``N / d`` threads; one more unit
of padding after every ``lcm(U, N)`` units moves each following run of ``N / d`` threads to
another residue modulo ``d``, so that the ``N`` indices differ. The period is a multiple of ``N``:
neighbouring threads that take neighbouring vectors, aligned to ``N`` of them, see no padding
between them, and differ as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import gcd, lcm
from typing import TYPE_CHECKING, Any

from tvm.ir.expr import TensorLoad

from tvm_scan import tir
from tvm_scan.extraction.nest import linear_in
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.gpu.shared.staged import VECTOR, Staged
from tvm_scan.schedules.gpu.shared.staging import MAX_STAGED, steady_loads
from tvm_scan.schedules.gpu.thread.banks import LINE, WORD
from tvm_scan.schedules.gpu.thread.vector_access import VectorAccess, steady_stores, vector_access

if TYPE_CHECKING:
    from tvm_scan.schedules.gpu.thread.plans import TreePlan


@dataclass(frozen=True)
class PaddedLayout:
    """Indices of the elements of a tile.

    Attributes
    ----------
    items : int
        Consecutive elements of a thread.
    size : int
        Bytes of an element.
    widest : int
        Bytes that a thread moves at once at most.
    """

    items: int
    size: int
    widest: int = VECTOR

    @property
    def unit(self) -> int:
        """Elements that a thread moves at once: 16 bytes where its items are a multiple of that."""
        unit = 1
        while self.items % (2 * unit) == 0 and 2 * unit * self.size <= self.widest:
            unit *= 2
        return unit

    @property
    def fits(self) -> bool:
        """Return whether a unit fills a word; no padding parts two threads that share one."""
        return self.unit * self.size >= WORD

    @property
    def period(self) -> int:
        """Elements between two paddings of one unit; 0 where none is needed."""
        threads, apart = LINE // (self.unit * self.size), self.items // self.unit
        return lcm(threads, apart) * self.unit if gcd(threads, apart) > 1 else 0

    def index(self, index: Any) -> Any:
        """Index of an element, a number or an expression."""
        if not self.period:
            return index
        return index + index // self.period * self.unit

    def cells(self, count: int) -> int:
        """Elements of shared memory for ``count`` elements, a multiple of a vector."""
        used: int = self.index(count - 1) + 1
        vector = VECTOR // self.size
        return -(-used // vector) * vector


@dataclass(frozen=True, eq=False, kw_only=True)
class Stream(Staged):
    """One array that is read or written once at every step, its memory along time.

    Attributes
    ----------
    layout : PaddedLayout
        Of a tile in shared memory, whose steps are of the lane that the copying threads have.
    """

    layout: PaddedLayout

    def index(self, step: Any, lane: Any = None, state: Any = None) -> Any:
        """Index of a step."""
        return self.layout.index(step)


def streams_of(plan: TreePlan, recurrence: Recurrence) -> tuple[Stream, ...]:
    """Streams that a tree plan moves through shared memory; none unless it is transposed.

    A thread whose items are a single vector needs no exchange: its inputs are staged only if they
    are to be under way ahead of their tile.
    """
    if plan.block_load == "direct":
        return ()
    ahead = plan.stages > 1
    return _streams(recurrence, plan.items_per_thread, plan.tile, plan.vector_loads, ahead)


def lenders_of(streams: Sequence[Stream]) -> dict[Stream, Stream]:
    """Output -> the input of a tile in whose memory it lies.

    A thread reads cells of the input that no other thread does, and puts results of the same steps
    in their place: the same bytes of a layout that is the same, which the same threads copy.
    """
    lenders: dict[Stream, Stream] = {}
    for output in streams:
        for lender in streams if output.stored else ():
            alike = lender.layout == output.layout and lender.copies == output.copies
            dtypes = tir.dtype_of(lender.buffer) == tir.dtype_of(output.buffer)
            if alike and dtypes and not lender.stored and lender not in lenders.values():
                lenders[output] = lender
                break
    return lenders


def along_time(plan: TreePlan, recurrence: Recurrence) -> tuple[Stream, ...]:
    """Streams that a tree plan could move through shared memory, whether it does or not."""
    return _streams(recurrence, plan.items_per_thread, plan.tile, plan.vector_loads, True)


@lru_cache(maxsize=256)
def _streams(
    recurrence: Recurrence, items: int, tile: int, vectors: bool, ahead: bool
) -> tuple[Stream, ...]:
    streams = []
    loads = steady_loads(recurrence.body, recurrence, [recurrence.time.var])[:MAX_STAGED]
    for access in (*loads, *steady_stores(recurrence)):
        stored = not isinstance(access, TensorLoad)
        buffer = access.buffer if stored else access.source
        direction = direction_of(list(access.indices), recurrence)
        layout = PaddedLayout(items, tir.byte_size(tir.dtype_of(buffer)))
        if direction == 0 or not layout.fits:
            continue
        copies = VectorAccess(1, direction > 0)
        if vectors:
            # Of memory that is read backwards, a vector is reversed within a thread's items.
            whole = tile if direction > 0 else items
            wide = vector_access(buffer, list(access.indices), recurrence, whole)
            copies = wide if wide.lanes > 1 else copies
        if copies.lanes == items and (stored or not ahead):
            continue  # Neighbouring threads' items are neighbouring vectors as it is.
        streams.append(
            Stream(
                access=access,
                copies=copies,
                axes=(("step", tile),),
                size=layout.size,
                cells=layout.cells(tile),
                layout=layout,
            )
        )
    return tuple(streams)


def direction_of(indices: list[Any], recurrence: Recurrence) -> int:
    """1 or -1 where the last index moves with time and no other one does; else 0."""
    time = recurrence.time.var
    part = linear_in(indices[-1], time)
    if part is None or any(tir.contains_var(index, [time]) for index in indices[:-1]):
        return 0
    return part[0] if part[0] in (1, -1) else 0
