"""Blocks of a grid, and which of them have work."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.ir import (
    Kernel,
    as_dtype,
    at_least_one,
    bound_loop,
    int_const,
    parts_of,
)
from tvm_scan.schedules.common.lanes import guard_of
from tvm_scan.schedules.common.rows import Row
from tvm_scan.schedules.gpu.thread.plans import TreePlan


def tile_count(recurrence: Recurrence, plan: TreePlan) -> Any:
    """Tiles of a lane."""
    return parts_of(recurrence.time.extent, plan.tile)


def lane_exists(
    recurrence: Recurrence, lanes: list[Any], row: Any, rows: Any, together: int = 1
) -> Any:
    """Condition under which a row of a block has a lane; None where every one does.

    Parameters
    ----------
    recurrence, lanes
        Their guard.
    row, rows : Expr
        Number of the lane, and how many there are.
    together : int
        Lanes of a block.
    """
    guard = guard_of(recurrence, lanes)
    known = tir.as_int(rows)
    if known is not None and known > 0 and known % together == 0:
        return guard
    # The grid has at least one block even where there is no lane.
    inside = row < rows
    return inside if guard is None else tirx.And(inside, guard)


class ThreadPosition:
    """The lane that a thread of a tree kernel works on, and the thread's number in the lane.

    Parameters
    ----------
    rows : Expr
        Number of lanes.
    plan : TreePlan
        Threads of a lane, and lanes of a block.
    """

    def __init__(self, rows: Any, plan: TreePlan) -> None:
        self.plan, self.rows = plan, rows
        self.thread = tirx.Var("v_tx", "int32")
        self.lane = tirx.Var("v_ty", "int32") if plan.lanes_per_block > 1 else None
        self.row_in_block = Row(plan.lanes_per_block, self.lane)

    @property
    def blocks(self) -> Any:
        """Groups of lanes that share a block."""
        return parts_of(self.rows, self.plan.lanes_per_block)

    def row(self, group: Any) -> Any:
        """Number of the thread's lane in a group."""
        if self.lane is None:
            return group
        first = group * self.plan.lanes_per_block
        return first + as_dtype(self.lane, tir.dtype_of(group))

    def grid(self, kernel: Kernel, blocks: Any, block: Var) -> Any:
        """``blocks`` blocks, at least one."""
        return grid_of(kernel, blocks, block, self.thread, self.plan, self.lane)


def grid_of(
    kernel: Kernel, blocks: Any, block: Var, thread: Var, plan: TreePlan, lane: Var | None = None
) -> Any:
    """``blocks`` blocks (at least one) of ``lanes_per_block`` rows of ``threads_per_block``."""
    blocks = at_least_one(blocks)
    threads = int_const(plan.threads_per_block, "int32")

    def row(bx: Any, more: list[Any]) -> Any:
        return bound_loop(
            "tx",
            "threadIdx.x",
            threads,
            lambda tx: kernel.block([(block, blocks, bx), *more, (thread, threads, tx)]),
        )

    def rows(bx: Any) -> Any:
        if lane is None:
            return row(bx, [])
        count = int_const(plan.lanes_per_block, "int32")
        return bound_loop("ty", "threadIdx.y", count, lambda ty: row(bx, [(lane, count, ty)]))

    return bound_loop("bx", "blockIdx.x", blocks, rows)
