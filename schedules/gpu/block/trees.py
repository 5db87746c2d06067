"""The trees over the threads of a block: what each of them keeps, and where it leaves the result.

| tree | combines of a thread | barriers of one scan | shared memory for T threads |
|---|---|---|---|
| ``warp`` | 5 + log2(T / 32) + 1 | 1 | two elements per warp; none for one warp |
| ``kogge_stone`` | log2(T) | log2(T) + 1 | two elements per thread |
| ``blelloch`` | 2 (at most one per level) | 2 log2(T / 32) | one padded element per thread |

Threads of one warp alone need no barrier of the block. On paper the warp tree wins
wherever its elements can be shuffled: a shuffle costs about as much as an access to shared
memory (some 25 cycles), and a barrier of 128 threads as much again.
"""

from __future__ import annotations

from typing import Any, Protocol

from tvm.ir import Var

from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.elements import Elements
from tvm_scan.schedules.common.replica import Replica
from tvm_scan.schedules.common.rows import ALONE, Row
from tvm_scan.schedules.gpu.block.blelloch import BlellochTree
from tvm_scan.schedules.gpu.block.kogge_stone import KoggeStoneTree
from tvm_scan.schedules.gpu.warp.tree import WarpTree

__all__ = ["ALONE", "BlockTree", "Row", "make_tree"]


class BlockTree(Protocol):
    """An exclusive scan over the threads of a lane, of the elements of every stage."""

    @property
    def has_barriers(self) -> bool:
        """Whether a scan makes every thread wait for every other one."""

    @property
    def buffers(self) -> list[Var]:
        """What the tree keeps."""

    def scan(self, stage: int, mine: Elements, total: Elements, turn: Any = 0) -> list[Any]:
        """Statements of one scan.

        Given: ``mine`` (registers) holds the element of the thread. Result: ``prefix`` says
        where the exclusive prefix of the thread is, and ``total`` (registers of every thread)
        holds the aggregate of the block. The tree places its own barriers; of scans that follow
        one another in one kernel, two in a row have a ``turn`` of different parities.
        """

    def fold(self, stage: int, mine: Elements, total: Elements, turn: Any = 0) -> list[Any]:
        """Statements of one scan that leaves no prefixes, only ``total``."""

    def prefix(self, stage: int, mine: Elements) -> tuple[Elements, list[Any]]:
        """The prefix of the thread: its elements, and the place in them."""


def make_tree(
    kind: str,
    recurrence: Recurrence,
    replica: Replica,
    thread: Var,
    threads: int,
    row: Row = ALONE,
) -> BlockTree:
    """Make the tree that a plan names.

    Parameters
    ----------
    kind : {"blelloch", "kogge_stone", "warp"}
        ``ScanPlan.block_tree``.
    recurrence : Recurrence
        Whose elements.
    replica : Replica
        Gives the loops over groups and cells.
    thread : Var
        Thread index.
    threads : int
        Threads of a lane.
    row : Row
        Which lane of the block the thread is in; each has shared memory of its own.

    Returns
    -------
    BlockTree
    """
    trees: dict[str, type[BlellochTree | KoggeStoneTree | WarpTree]]
    trees = {"blelloch": BlellochTree, "kogge_stone": KoggeStoneTree, "warp": WarpTree}
    return trees[kind](recurrence, replica, thread, threads, row)
