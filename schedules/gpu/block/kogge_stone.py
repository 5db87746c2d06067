"""The block tree of Kogge and Stone: fewest levels, in two buffers of shared memory.

Source: P. M. Kogge and H. S. Stone, "A parallel algorithm for the efficient solution of a general
class of recurrence equations", IEEE Trans. Computers C-22, 1973.

For T threads: work T log2 T combines, span log2 T, one barrier per level and one for the exclusive
prefix: a level reads one buffer and the next one writes the other, and so do scans that follow one
another. Up to a warp of threads need its own barriers alone. Neighbouring threads access
neighbouring cells, so that no two of a warp meet in a bank.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_scan import tir
from tvm_scan.schedules.common.elements import Elements
from tvm_scan.schedules.common.ir import int_const
from tvm_scan.schedules.gpu.thread.barriers import hidden, parity, wait
from tvm_scan.schedules.gpu.thread.block_tree import BlockTree


class KoggeStoneTree(BlockTree):
    """Inclusive scan by doubling distances, then a look at the neighbour.

    The prefix of a thread is left in its own registers.
    """

    def allocate(self) -> None:
        """Two buffers of shared memory, and registers for the earlier operand."""
        self.shared = self.keep("shared", [*self.row.lead, 2, self.threads], "shared")
        self.left = self.keep("left", [], "local")

    def scan(self, level: int, mine: Elements, total: Elements, number: Any = 0) -> list[Any]:
        """Statements of one scan; see ``BlockTree``."""
        before = self._at(self._doublings, number, self.thread - 1)
        exclusive = tirx.IfThenElse(
            tirx.EQ(self.thread, tir.zero_like(self.thread)),
            self.replica.set_identity(mine, []),
            self.replica.copy(mine, [], self.shared[level], before),
        )
        return [*self.reduce(level, mine, total, number), hidden(exclusive)]

    def reduce(self, level: int, mine: Elements, total: Elements, number: Any = 0) -> list[Any]:
        """Statements of a scan of which only the aggregate is wanted."""
        stmts: list[Any] = []
        for doubling in range(self._doublings):
            stmts += self._show(level, mine, doubling, number)
            stmts.append(hidden(self._combine(level, mine, doubling, number)))
        end = int_const(self.threads - 1, self.thread)
        last = self._at(self._doublings, number, end)
        known = hidden(self.replica.copy(total, [], self.shared[level], last))
        return [*stmts, *self._show(level, mine, self._doublings, number), known]

    @property
    def _doublings(self) -> int:
        return self.threads.bit_length() - 1

    def _at(self, doubling: int, number: Any, thread: Any) -> list[Any]:
        """Index of a thread's element before a doubling; a scan writes once more than that."""
        writes = self._doublings + 1
        if isinstance(number, int):
            write = number * writes + doubling
        else:
            write = number + doubling if writes % 2 else doubling
        return [*self.row.at, parity(write), thread]

    def _show(self, level: int, mine: Elements, doubling: int, number: Any) -> list[Any]:
        """The threads' elements where all of them can see them."""
        here = self._at(doubling, number, self.thread)
        return [hidden(self.replica.copy(self.shared[level], here, mine, [])), wait(self.threads)]

    def _combine(self, level: int, mine: Elements, doubling: int, number: Any) -> Any:
        """The element of the thread ``2 ** doubling`` below, followed by the thread's own."""
        replica, left = self.replica, self.left[level]

        def of_cell(i: int, cell: list[Any]) -> Any:
            algebra = replica.recurrence.groups[i].algebra
            earlier, later = left.load(i, [], cell), mine.load(i, [], cell)
            return mine.store(i, [], cell, algebra.combine(earlier, later))

        far = 1 << doubling
        body = [
            replica.copy(
                left, [], self.shared[level], self._at(doubling, number, self.thread - far)
            ),
            replica.for_each_element(level, of_cell),
        ]
        return tirx.IfThenElse(self.thread >= far, tir.seq(body), None)

    def prefix(self, level: int, mine: Elements) -> tuple[Elements, list[Any]]:
        """Return the prefix, which lies in the thread's registers."""
        return mine, []
