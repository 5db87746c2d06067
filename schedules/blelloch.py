"""The block tree: Blelloch's work-efficient exclusive scan in padded shared memory.

Source: G. E. Blelloch, "Prefix sums and their applications", CMU-CS-90-190, 1990. Element ``i``
lies at ``i + i / 32``, so that the strides 2, 4, .. of the tree do not meet in one bank.

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

_BANKS = 32


def padded(index: Any) -> Any:
    """Place of element ``index`` in padded shared memory."""
    if isinstance(index, int):
        return index + index // _BANKS
    return index + index // int_const(_BANKS, index)


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
        slots = [*row.lead, padded(threads - 1) + 1]
        self.shared = [Elements(recurrence, "shared", slots, "shared", s) for s in stages]
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
        """Statements of one scan; see ``BlockTree``."""
        shared = self.shared[stage]
        return [
            self.replica.copy(shared, [*self.row.at, padded(self.thread)], mine, []),
            *_block_scan(
                self.replica,
                shared,
                total,
                self.left[stage],
                self.right[stage],
                self.thread,
                self.threads,
                self.row.at,
            ),
        ]

    def fold(self, stage: int, mine: Elements, total: Elements) -> list[Any]:
        """Statements of a scan of which only the aggregate is wanted: the upsweep."""
        shared, nodes = self.shared[stage], (self.left[stage], self.right[stage])
        row = self.row.at
        copy = self.replica.copy(shared, [*row, padded(self.thread)], mine, [])
        spans = _upsweep(self.replica, shared, total, *nodes, self.thread, self.threads, row)
        return [copy, *spans]

    def prefix(self, stage: int, mine: Elements) -> tuple[Elements, list[Any]]:
        """In shared memory."""
        return self.shared[stage], [*self.row.at, padded(self.thread)]


def _block_scan(
    replica: Replica,
    shared: Elements,
    total: Elements,
    left: Elements,
    right: Elements,
    thread: Var,
    threads: int,
    row: list[Any],
) -> list[Any]:
    """Exclusive scan over the threads of a block.

    Given: ``shared[padded(thread)]`` holds each thread's element. Result: the exclusive prefix
    of the thread is at the same place, and ``total`` (registers of every thread) holds the
    aggregate of the block. No barrier follows the last write: the reader's is inserted by TVM.

    Parameters
    ----------
    replica : Replica
        Gives the loop over groups and cells, and the algebra.
    shared : Elements
        Padded shared memory.
    total, left, right : Elements
        Registers: the aggregate, and the operands of one tree node.
    thread : Var
        Thread index.
    threads : int
        Threads of the lane, a power of two.
    row : list of Expr
        Leading indices into shared memory.

    Returns
    -------
    list of Stmt
    """
    levels = threads.bit_length() - 1
    last = [*row, int_const(padded(threads - 1), "int32")]
    stmts = _upsweep(replica, shared, total, left, right, thread, threads, row)
    stmts.append(
        tirx.IfThenElse(
            tirx.EQ(thread, tir.zero_like(thread)), replica.set_identity(shared, last), None
        )
    )
    for level in reversed(range(levels)):
        stmts += _level(
            replica, shared, left, right, thread, threads >> (level + 1), level, False, row
        )
    return stmts


def _upsweep(
    replica: Replica,
    shared: Elements,
    total: Elements,
    left: Elements,
    right: Elements,
    thread: Var,
    threads: int,
    row: list[Any],
) -> list[Any]:
    """Sums of spans that double, the last of which is the aggregate; see ``_block_scan``."""
    stmts: list[Any] = []
    for level in range(threads.bit_length() - 1):
        stmts += _level(
            replica, shared, left, right, thread, threads >> (level + 1), level, True, row
        )
    last = [*row, int_const(padded(threads - 1), "int32")]
    return [*stmts, replica.copy(total, [], shared, last)]


def _level(
    replica: Replica,
    shared: Elements,
    left: Elements,
    right: Elements,
    thread: Var,
    active: int,
    level: int,
    up: bool,
    row: list[Any],
) -> list[Any]:
    """One level: ``active`` threads, each with a node that spans ``2 << level`` elements."""
    span = 2 << level
    high = padded((thread + 1) * span - 1)
    low = padded((thread + 1) * span - 1 - (span >> 1))
    chosen = thread < int_const(active, thread)

    def write(i: int, place: list[Any]) -> Any:
        algebra = replica.recurrence.groups[i].algebra
        earlier, later = left.load(i, [], place), right.load(i, [], place)
        if up:
            return shared.store(i, [*row, high], place, algebra.combine(earlier, later))
        # Going down, the node's prefix is at ``high`` and its left subtree's sum at ``low``:
        # the left child inherits the prefix, the right child gets prefix then left sum.
        swap = shared.store(i, [*row, low], place, later)
        return tir.seq(
            [swap, shared.store(i, [*row, high], place, algebra.combine(later, earlier))]
        )

    reads = tir.seq(
        [replica.copy(left, [], shared, [*row, low]), replica.copy(right, [], shared, [*row, high])]
    )
    return [
        tirx.IfThenElse(chosen, reads, None),
        tirx.IfThenElse(chosen, replica.for_each_element(shared.stage, write), None),
    ]
