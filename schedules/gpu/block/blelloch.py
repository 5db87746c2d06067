"""The block tree: Blelloch's work-efficient exclusive scan in padded shared memory.

Source: G. E. Blelloch, "Prefix sums and their applications", CMU-CS-90-190, 1990.

*Banks.* Shared memory serves 128 bytes at once, of which a part of ``s`` bytes has ``N = 128 / s``.
Element ``i`` lies at ``i + i / N + i / N^2``, with paddings of a word at least. Threads whose
elements are ``d`` apart, ``d`` a power of two, come round to the same bank after ``N / d`` of them
and have one padding more then, as long as ``d < N``; where ``d >= N`` every thread has ``d / N``
paddings more than the one before, and comes round after ``N^2 / d`` of them. A block has at most
1024 threads, so that the second padding is for parts of 8 bytes alone.

For T threads: work 2 (T - 1) combines, span 2 log2 T - 1 levels, the root's being one for both
sweeps: it leaves the aggregate in memory of its own, and the prefixes of its two halves.

*Barriers.* Theorem. No element is accessed by two threads of a level. So one barrier between levels
is enough, and where all threads of the levels before and after it are of the first warp, that of
the warp (``__syncwarp``). A scan takes ``2 max(0, log2 T - 5)`` barriers of the block; its
aggregate alone, half as many and one. TVM's pass that puts barriers cannot see that threads keep
apart within a level, and would put another one into each: the tree's accesses are hidden from it
(``barriers``).
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_scan import tir
from tvm_scan.schedules.common.elements import Elements
from tvm_scan.schedules.gpu.thread.banks import LINE, WORD
from tvm_scan.schedules.gpu.thread.barriers import hidden, wait
from tvm_scan.schedules.gpu.thread.block_tree import BlockTree

_MOST_THREADS = 1024


def padded(index: Any, dtype: str) -> Any:
    """Index of element ``index`` in padded shared memory, in a part of a dtype."""
    size = tir.byte_size(dtype)
    period, unit = LINE // size, max(1, WORD // size)
    at, every = index, period
    while every < _MOST_THREADS:
        at = at + index // every * unit
        every *= period
    return at


class BlellochTree(BlockTree):
    """Upsweep and downsweep; the prefix of a thread is left in padded shared memory."""

    def allocate(self) -> None:
        """Padded shared memory, the aggregate, and registers for the operands of one node."""
        self.shared = self.keep("shared", [*self.row.lead, self.threads], "shared", padded)
        self.sum = self.keep("sum", self.row.lead, "shared")
        self.left, self.right = self.keep("left", [], "local"), self.keep("right", [], "local")

    def scan(self, level: int, mine: Elements, total: Elements, number: Any = 0) -> list[Any]:
        """Statements of one scan; see ``BlockTree``."""
        stmts = [*self._up(level, mine), self._nodes(level, self._height - 1, self._root)]
        for height in reversed(range(self._height)):
            # As many threads go on as a level below this one has; below the leaves, all.
            stmts.append(wait(self.threads >> height))
            if height:
                stmts.append(self._nodes(level, height - 1, self._down))
        return [*stmts, self._read_sum(level, total)]

    def reduce(self, level: int, mine: Elements, total: Elements, number: Any = 0) -> list[Any]:
        """Statements of a scan of which only the aggregate is wanted: the upsweep."""
        root = self._nodes(level, self._height - 1, self._root_sum)
        return [*self._up(level, mine), root, wait(self.threads), self._read_sum(level, total)]

    def prefix(self, level: int, mine: Elements) -> tuple[Elements, list[Any]]:
        """Return the prefix, which lies in shared memory."""
        return self.shared[level], self._index

    @property
    def _height(self) -> int:
        return self.threads.bit_length() - 1

    @property
    def _index(self) -> list[Any]:
        """Index of the thread's element."""
        return [*self.row.at, self.thread]

    def _up(self, level: int, mine: Elements) -> list[Any]:
        """Sums of spans that double, up to the two halves; ready for the root."""
        store = self.replica.copy(self.shared[level], self._index, mine, [])
        stmts = [hidden(store), wait(self.threads)]
        for height in range(self._height - 1):
            stmts += [self._nodes(level, height, self._sum), wait(self.threads >> height + 1)]
        return stmts

    def _read_sum(self, level: int, total: Elements) -> Any:
        return hidden(self.replica.copy(total, [], self.sum[level], self.row.at))

    def _nodes(self, level: int, height: int, node: Any) -> Any:
        """The nodes of one height, a thread for each, which spans ``2 << height`` elements.

        ``node(group, cell, low, high)`` is what the thread does with the last elements of its
        left and right halves, which it has in registers.
        """
        span, end = 2 << height, self.thread + 1
        high = [*self.row.at, end * span - 1]
        low = [*self.row.at, end * span - 1 - (span >> 1)]
        shared, left, right = self.shared[level], self.left[level], self.right[level]

        def of_cell(i: int, cell: list[Any]) -> Any:
            reads = [
                left.store(i, [], cell, shared.load(i, low, cell)),
                right.store(i, [], cell, shared.load(i, high, cell)),
            ]
            return tir.seq([*reads, node(level, i, cell, low, high)])

        chosen = self.thread < (self.threads >> (height + 1))
        stmt = tirx.IfThenElse(chosen, self.replica.for_each_element(level, of_cell), None)
        return hidden(stmt)

    def _operands(self, level: int, i: int, cell: list[Any]) -> tuple[Any, Any, Any]:
        """The group's combine, and the elements of the two halves."""
        combine = self.replica.recurrence.groups[i].algebra.combine
        return combine, self.left[level].load(i, [], cell), self.right[level].load(i, [], cell)

    def _sum(self, level: int, i: int, cell: list[Any], low: Any, high: Any) -> Any:
        """Store, on the way up, the sum of both halves at the end of the right one."""
        combine, left, right = self._operands(level, i, cell)
        return self.shared[level].store(i, high, cell, combine(left, right))

    def _root_sum(self, level: int, i: int, cell: list[Any], low: Any, high: Any) -> Any:
        """Store the aggregate at the root."""
        combine, left, right = self._operands(level, i, cell)
        return self.sum[level].store(i, self.row.at, cell, combine(left, right))

    def _root(self, level: int, i: int, cell: list[Any], low: Any, high: Any) -> Any:
        """Store the aggregate at the root, and the prefixes of the halves."""
        shared, left = self.shared[level], self.left[level].load(i, [], cell)
        identity = self.replica.recurrence.groups[i].algebra.identity()
        return tir.seq(
            [
                self._root_sum(level, i, cell, low, high),
                shared.store(i, low, cell, identity),
                shared.store(i, high, cell, left),
            ]
        )

    def _down(self, level: int, i: int, cell: list[Any], low: Any, high: Any) -> Any:
        """Store, on the way down, the prefix of each half.

        The left half inherits the prefix, the right one gets the prefix, then the left sum.
        """
        shared = self.shared[level]
        combine, left, prefix = self._operands(level, i, cell)
        inherit = shared.store(i, low, cell, prefix)
        return tir.seq([inherit, shared.store(i, high, cell, combine(prefix, left))])
