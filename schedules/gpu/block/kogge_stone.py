"""The block tree of Kogge and Stone: fewest levels, in two buffers of shared memory.

Source: P. M. Kogge and H. S. Stone, "A parallel algorithm for the efficient solution of a general
class of recurrence equations", IEEE Trans. Computers C-22, 1973.

For T threads: work T log2 T combines, span log2 T, one barrier per level and one for the exclusive
prefix: a level reads one buffer and the next one writes the other, and so do scans that follow one
another. Up to a warp of threads need its own barriers alone. Neighbouring threads access
neighbouring places, so that no two of a warp meet in a bank.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_scan import tir
from tvm_scan.schedules.common.elements import Elements
from tvm_scan.schedules.common.ir import int_const
from tvm_scan.schedules.gpu.thread.barriers import hidden, parity, wait
from tvm_scan.schedules.gpu.thread.block_tree import BlockTree

__all__ = ["KoggeStoneTree"]


class KoggeStoneTree(BlockTree):
    """Inclusive scan by doubling distances, then a look at the neighbour.

    The prefix of a thread is left in its own registers.
    """

    def allocate(self) -> None:
        """Two buffers of shared memory, and registers for the earlier operand."""
        self.shared = self.keep("shared", [*self.row.lead, 2, self.threads], "shared")
        self.left = self.keep("left", [], "local")

    def scan(self, stage: int, mine: Elements, total: Elements, turn: Any = 0) -> list[Any]:
        """Statements of one scan; see ``BlockTree``."""
        before = self._at(self._levels, turn, self.thread - 1)
        exclusive = tirx.IfThenElse(
            tirx.EQ(self.thread, tir.zero_like(self.thread)),
            self.replica.set_identity(mine, []),
            self.replica.copy(mine, [], self.shared[stage], before),
        )
        return [*self.fold(stage, mine, total, turn), hidden(exclusive)]

    def fold(self, stage: int, mine: Elements, total: Elements, turn: Any = 0) -> list[Any]:
        """Statements of a scan of which only the aggregate is wanted."""
        stmts: list[Any] = []
        for level in range(self._levels):
            stmts += self._show(stage, mine, level, turn)
            stmts.append(hidden(self._combine(stage, mine, level, turn)))
        end = int_const(self.threads - 1, self.thread)
        last = self._at(self._levels, turn, end)
        known = hidden(self.replica.copy(total, [], self.shared[stage], last))
        return [*stmts, *self._show(stage, mine, self._levels, turn), known]

    @property
    def _levels(self) -> int:
        return self.threads.bit_length() - 1

    def _at(self, level: int, turn: Any, thread: Any) -> list[Any]:
        """Index of a thread's element before a level; a scan writes once more than its levels."""
        writes = self._levels + 1
        if isinstance(turn, int):
            number = turn * writes + level
        else:
            number = turn + int_const(level, turn) if writes % 2 else level
        return [*self.row.at, parity(number), thread]

    def _show(self, stage: int, mine: Elements, level: int, turn: Any) -> list[Any]:
        """The threads' elements where all of them can see them."""
        here = self._at(level, turn, self.thread)
        return [hidden(self.replica.copy(self.shared[stage], here, mine, [])), wait(self.threads)]

    def _combine(self, stage: int, mine: Elements, level: int, turn: Any) -> Any:
        """The element of the thread ``2 ** level`` below, followed by the thread's own."""
        replica, left = self.replica, self.left[stage]

        def one(i: int, place: list[Any]) -> Any:
            algebra = replica.recurrence.groups[i].algebra
            earlier, later = left.load(i, [], place), mine.load(i, [], place)
            return mine.store(i, [], place, algebra.combine(earlier, later))

        far = int_const(1 << level, self.thread)
        body = [
            replica.copy(left, [], self.shared[stage], self._at(level, turn, self.thread - far)),
            replica.for_each_element(stage, one),
        ]
        return tirx.IfThenElse(self.thread >= far, tir.seq(body), None)

    def prefix(self, stage: int, mine: Elements) -> tuple[Elements, list[Any]]:
        """Return the prefix, which lies in the thread's registers."""
        return mine, []
