"""A block of a GPU with 32 columns of a matrix: its grid, and how its threads share work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.delta_rule import DeltaRule
from tvm_scan.schedules.common.ir import (
    Kernel,
    at_least_one,
    bound_loop,
    int_const,
    loop,
    when,
)
from tvm_scan.schedules.delta.memory_map import MemoryMap

#: Columns of a block: those of a warp, whose threads read neighbouring cells.
COLUMNS = 32


class BlockOfColumns:
    """One block of some ``threads``; ``thread`` is the number of one in it.

    Attributes
    ----------
    rule : DeltaRule
        What is built.
    index : str
        Dtype of indices.
    columns : int
        Of a matrix.
    threads : int
        Whole warps.
    thread, task : Var
        Numbers of the thread in the block, and of the block.
    total : Expr
        Blocks that have a matrix.
    memory : MemoryMap
        Cells of the task.
    buffers : list of Var
        What the block allocates.
    """

    rule: DeltaRule
    index: str
    columns: int
    threads: int
    thread: Var
    task: Var
    total: Any
    memory: MemoryMap
    buffers: list[Var]

    def grid(self, name: str, body: Any, writes: Sequence[Var]) -> Any:
        """Return the loops over blocks and threads."""
        rule, task, blocks = self.rule, self.task, at_least_one(self.total)
        kernel = Kernel(name, rule.inputs, writes, body, self.buffers)
        threads = int_const(self.threads, self.index)

        def thread(bx: Any, tx: Any) -> Any:
            return kernel.block([(task, blocks, bx), (self.thread, threads, tx)])

        return bound_loop(
            "bx",
            "blockIdx.x",
            blocks,
            lambda bx: bound_loop("tx", "threadIdx.x", threads, lambda tx: thread(bx, tx)),
        )

    def share(self, count: int, make: Callable[[Any, Any], Any]) -> Any:
        """``make(number, slot)`` for ``count`` numbers, the thread's own counted by ``slot``."""

        def of_thread(n: Any) -> Any:
            number = n * self.threads + self.thread
            code = make(number, n)
            return code if count % self.threads == 0 else when(number < count, code)

        return loop("n", -(-count // self.threads), of_thread, dtype=self.index)

    def present(self, inside: Any) -> Any:
        """``inside``, where the block has a matrix: a grid has one block at least.

        The barriers stand under no condition, so that all accesses to memory do.
        """
        return inside if tir.as_int(self.total) else tirx.And(self.task < self.total, inside)

    def exists(self, column: Any) -> Any:
        """Return whether a column of the block is one of the matrix."""
        return self.present(self.memory.origin + column < self.columns)
