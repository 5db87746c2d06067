"""The trees over the threads of a block: what each of them keeps, and where it leaves the result.

| tree | combines of a thread | barriers of one scan | shared memory for T threads |
|---|---|---|---|
| ``warp`` | 5 and T / 32 of carries, or 5 + log2(T / 32) + 1 | 1 | two elements per warp, or none |
| ``kogge_stone`` | log2(T) | log2(T) + 1 | two elements per thread |
| ``blelloch`` | 2 (at most one per level) | 2 log2(T / 32) | one padded element per thread |

Threads of one warp alone need no barrier of the block. On paper the warp tree wins
wherever its elements can be shuffled: a shuffle costs about as much as an access to shared
memory (some 25 cycles), and a barrier of 128 threads as much again.
"""

from __future__ import annotations

from tvm.ir import Var

from tvm_scan.schedules.common.replica import Replica
from tvm_scan.schedules.common.rows import ALONE, Row
from tvm_scan.schedules.gpu.block.blelloch import BlellochTree
from tvm_scan.schedules.gpu.block.kogge_stone import KoggeStoneTree
from tvm_scan.schedules.gpu.thread.block_tree import BlockTree
from tvm_scan.schedules.gpu.warp.tree import WarpTree

_TREES: dict[str, type[BlockTree]] = {
    "blelloch": BlellochTree,
    "kogge_stone": KoggeStoneTree,
    "warp": WarpTree,
}


def make_tree(
    kind: str, replica: Replica, thread: Var, threads: int, row: Row = ALONE
) -> BlockTree:
    """Make the tree that a plan names by its ``block_tree``; see ``BlockTree``."""
    return _TREES[kind](replica, thread, threads, row)
