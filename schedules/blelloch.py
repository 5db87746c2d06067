"""The block tree: Blelloch's work-efficient exclusive scan in padded shared memory.

Source: G. E. Blelloch, "Prefix sums and their applications", CMU-CS-90-190, 1990.

*Banks.* Shared memory serves 128 bytes at once, of which a part of ``s`` bytes has ``N = 128 / s``.
Element ``i`` lies at ``i + i / N + i / N^2``, with paddings of a word at least. Threads whose
elements are ``d`` apart, ``d`` a power of two, come round to the same bank after ``N / d`` of them
and have one padding more then, as long as ``d < N``; where ``d >= N`` every thread has ``d / N``
paddings more than the one before, and comes round after ``N^2 / d`` of them. A block has at most
1024 threads, so that the second padding is for parts of 8 bytes alone.

For T threads: work 2 (T - 1) combines, span 2 log2 T levels. Each level is a read phase and a
write phase in two conditions, because TVM places barriers between statements, never inside a
condition.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.elements import Elements
from tvm_scan.schedules.ir import int_const
from tvm_scan.schedules.replica import Replica
from tvm_scan.schedules.rows import ALONE, Row

__all__ = ["BlellochTree", "padded"]

_LINE, _WORD, _MOST_THREADS = 128, 4, 1024


def padded(index: Any, dtype: str) -> Any:
    """Place of element ``index`` in padded shared memory, in a part of a dtype."""
    size = tir.byte_size(dtype)
    period, unit = _LINE // size, max(1, _WORD // size)
    places, every = index, period
    while every < _MOST_THREADS:
        if isinstance(index, int):
            places += index // every * unit
        else:
            paddings = index // int_const(every, index)
            places = places + (paddings * int_const(unit, index) if unit > 1 else paddings)
        every *= period
    return places


class BlellochTree:
    """Upsweep and downsweep; the prefix of a thread is left in padded shared memory."""

    def __init__(
        self,
        recurrence: Recurrence,
        replica: Replica,
        thread: Var,
        threads: int,
        row: Row = ALONE,
    ) -> None:
        self.row = row
        self.replica, self.thread, self.threads = replica, thread, threads
        stages = range(recurrence.stages)
        slots = [*row.lead, threads]
        self.shared = [Elements(recurrence, "shared", slots, "shared", s, padded) for s in stages]
        self.left = [Elements(recurrence, "left", [], "local", s) for s in stages]
        self.right = [Elements(recurrence, "right", [], "local", s) for s in stages]

    #: Whether a scan makes every thread wait for every other one.
    has_barriers = True

    @property
    def buffers(self) -> list[Var]:
        """Padded shared memory, and registers for the operands of one node."""
        parts = (self.shared, self.left, self.right)
        return [b for stages in parts for elements in stages for b in elements.buffers]

    def scan(self, stage: int, mine: Elements, total: Elements) -> list[Any]:
        """Statements of one scan; see ``BlockTree``.

        No barrier follows the last write: the reader's is inserted by TVM.
        """
        shared, last = self.shared[stage], self._last
        first = tirx.EQ(self.thread, tir.zero_like(self.thread))
        clear = tirx.IfThenElse(first, self.replica.set_identity(shared, last), None)
        stmts = [*self.fold(stage, mine, total), clear]
        for level in reversed(range(self._levels)):
            stmts += self._level(stage, level, up=False)
        return stmts

    def fold(self, stage: int, mine: Elements, total: Elements) -> list[Any]:
        """Statements of a scan of which only the aggregate is wanted: the upsweep.

        Sums of spans that double, the last of which is the aggregate.
        """
        shared = self.shared[stage]
        stmts = [self.replica.copy(shared, self._own, mine, [])]
        for level in range(self._levels):
            stmts += self._level(stage, level, up=True)
        return [*stmts, self.replica.copy(total, [], shared, self._last)]

    def prefix(self, stage: int, mine: Elements) -> tuple[Elements, list[Any]]:
        """In shared memory."""
        return self.shared[stage], self._own

    @property
    def _levels(self) -> int:
        return self.threads.bit_length() - 1

    @property
    def _own(self) -> list[Any]:
        """Place of the thread's element."""
        return [*self.row.at, self.thread]

    @property
    def _last(self) -> list[Any]:
        """Place of the last thread's element."""
        return [*self.row.at, int_const(self.threads - 1, "int32")]

    def _level(self, stage: int, level: int, *, up: bool) -> list[Any]:
        """One level, of threads each with a node that spans ``2 << level`` elements."""
        replica, shared, row = self.replica, self.shared[stage], self.row.at
        left, right = self.left[stage], self.right[stage]
        span, end = 2 << level, self.thread + 1
        high = [*row, end * span - 1]
        low = [*row, end * span - 1 - (span >> 1)]
        chosen = self.thread < int_const(self.threads >> (level + 1), self.thread)

        def write(i: int, place: list[Any]) -> Any:
            algebra = replica.recurrence.groups[i].algebra
            earlier, later = left.load(i, [], place), right.load(i, [], place)
            if up:
                return shared.store(i, high, place, algebra.combine(earlier, later))
            # Going down, the node's prefix is at ``high`` and its left subtree's sum at ``low``:
            # the left child inherits the prefix, the right child gets prefix then left sum.
            swap = shared.store(i, low, place, later)
            return tir.seq([swap, shared.store(i, high, place, algebra.combine(later, earlier))])

        reads = [replica.copy(left, [], shared, low), replica.copy(right, [], shared, high)]
        return [
            tirx.IfThenElse(chosen, tir.seq(reads), None),
            tirx.IfThenElse(chosen, replica.for_each_element(shared.stage, write), None),
        ]
