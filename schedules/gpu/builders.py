"""CUDA builders: thread per lane, one block per lane over serial tiles.

Every kernel uses ``blockIdx.x`` alone, which holds 2^31 - 1 blocks: the number of rows is not
limited to 65,535.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.ir import (
    Kernel,
    for_one_block,
    loop,
    threads_over,
    when,
)
from tvm_scan.schedules.common.lanes import (
    decode_lanes,
    guard_of,
    lane_count,
)
from tvm_scan.schedules.common.replica import Replica
from tvm_scan.schedules.common.result import Built
from tvm_scan.schedules.gpu.block.tile import Tile
from tvm_scan.schedules.gpu.checks import element_parts
from tvm_scan.schedules.gpu.thread.place import Place, lane_exists, tile_count
from tvm_scan.schedules.gpu.walk.chunks import build_chunks
from tvm_scan.schedules.gpu.walk.shared_lanes import build_shared_lanes
from tvm_scan.schedules.gpu.walk.time_cut import TimeCut
from tvm_scan.schedules.plan import ScanPlan

__all__ = ["build_lanes", "build_serial_tiles"]


def build_lanes(recurrence: Recurrence, plan: ScanPlan) -> Built:
    """One thread per lane walks time serially; no exchange.

    Neighbouring threads take neighbouring lanes, so that memory is read in full lines where the
    lane axis is contiguous. With ``plan.chunks``, see ``walk.chunks``.
    """
    if plan.chunks:
        cut = TimeCut(recurrence, plan)
        if cut.count > 1:
            return build_chunks(recurrence, plan, cut)
    if plan.threads_per_lane > 1:
        return build_shared_lanes(recurrence, plan)
    rows, time = lane_count(recurrence), recurrence.time
    row = tirx.Var("v_row", tir.dtype_of(rows))
    lanes = decode_lanes(recurrence, row)
    replica = Replica(recurrence, lanes, unroll=True)
    body = tir.seq(
        [
            replica.begin(),
            replica.boundary(),
            loop("t", time.extent, replica.step),
            replica.finish(),
        ]
    )

    def kernel(inside: Any) -> Kernel:
        code = when(inside, when(guard_of(recurrence, lanes), body))
        return Kernel("scan_lanes", recurrence.inputs, recurrence.outputs, code, replica.buffers)

    return Built([threads_over(kernel, row, rows, plan.threads_per_block)], [])


def build_serial_tiles(recurrence: Recurrence, plan: ScanPlan) -> Built:
    """A block walks the tiles of its lanes in order, with the running carries in registers.

    Global traffic: every input and output once (inputs that are not staged are read twice, the
    second time from cache). Shared memory: ``plan.smem_bytes``.
    """
    rows = lane_count(recurrence)
    group, place = tirx.Var("v_row", tir.dtype_of(rows)), Place(rows, plan)
    row = place.row(group)
    lanes = decode_lanes(recurrence, row)
    guard = lane_exists(recurrence, lanes, row, rows, plan.lanes_per_block)
    tile = Tile(recurrence, plan, lanes, place, group, guard)

    def walk(number: Any) -> Any:
        return tir.seq(
            [
                tile.load(number),
                *tile.scan(number),
                tile.restore(),
                tile.replay(number),
                tile.move_on(),
            ]
        )

    body = tir.seq(
        [
            when(guard, tile.running.begin()),
            when(guard, tile.replica.prologue()),
            tile.owner_writes(),
            *tile.empty(),
            tile.shared.begin(),
            loop("tile", tile_count(recurrence, plan), walk),
        ]
    )
    if any(cells > 1 and tir.byte_size(d) == 8 for cells, d in element_parts(recurrence)):
        body = for_one_block(body)  # states in doubles, two registers each
    kernel = Kernel("scan_tiles", recurrence.inputs, recurrence.outputs, body, tile.allocs)
    return Built([place.grid(kernel, place.blocks, group)], [])
