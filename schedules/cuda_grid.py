"""Blocks of a grid, and which of them have work."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.ir import Kernel, at_least_one, bound_loop, int_const
from tvm_scan.schedules.lanes import guard_of
from tvm_scan.schedules.plan import ScanPlan

__all__ = ["grid_of", "lane_exists", "tile_count"]


def tile_count(recurrence: Recurrence, plan: ScanPlan) -> Any:
    """Tiles of a lane."""
    extent = recurrence.time.extent
    tile = int_const(plan.tile, extent)
    return tir.simplify((extent + tile - 1) // tile)


def lane_exists(recurrence: Recurrence, lanes: list[Any], row: Any, rows: Any) -> Any:
    """Condition under which a block has a lane; None where every block has one."""
    guard = guard_of(recurrence, lanes)
    known = tir.as_int(rows)
    if known is not None and known > 0:
        return guard
    # The grid has at least one block even where there is no lane.
    inside = row < rows
    return inside if guard is None else tirx.And(inside, guard)


def grid_of(kernel: Kernel, blocks: Any, block: Var, thread: Var, plan: ScanPlan) -> Any:
    """``blocks`` blocks (at least one) of ``threads_per_block`` threads."""
    blocks = at_least_one(blocks)
    threads = int_const(plan.threads_per_block, "int32")
    return bound_loop(
        "bx",
        "blockIdx.x",
        blocks,
        lambda bx: bound_loop(
            "tx",
            "threadIdx.x",
            threads,
            lambda tx: kernel.block([(block, blocks, bx), (thread, threads, tx)]),
        ),
    )
