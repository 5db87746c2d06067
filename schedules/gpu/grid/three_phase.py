"""CUDA builder: three phases over tiles of time."""

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
    loop,
    threads_over,
    when,
)
from tvm_scan.schedules.common.lanes import decode_lanes
from tvm_scan.schedules.common.phases import Phases
from tvm_scan.schedules.common.replica import Replica
from tvm_scan.schedules.gpu.block.tile import Tile
from tvm_scan.schedules.gpu.grid.carries import FEW_TILES, CarryScan
from tvm_scan.schedules.gpu.thread.barriers import all_wait
from tvm_scan.schedules.gpu.thread.plans import TreePlan
from tvm_scan.schedules.gpu.thread.position import ThreadPosition, grid_of, lane_exists, tile_count

#: Threads of a block in which every thread has a lane of its own and few steps.
_CARRY_THREADS = 128


class TiledPhases(Phases):
    """Three kernels: reduce every tile, scan the tiles' elements of a lane, replay every tile.

    They share the tiles' elements and carries in global memory. Global traffic: inputs twice,
    outputs once, and one element per tile. The same bits on every run: no kernel waits for another
    block.
    """

    def __init__(self, recurrence: Recurrence, plan: TreePlan) -> None:
        super().__init__(recurrence)
        self.plan = plan
        # At least one tile, so that a lane without steps still has someone to end it.
        self.tiles = at_least_one(as_dtype(tile_count(recurrence, plan), self.dtype))
        self.allocate("tile", *[[self.rows, self.tiles]] * 2)

    def _task(self) -> tuple[Var, ThreadPosition, list[Any], Tile]:
        """Block variable and threads of one tile, its index in scratch, and its code."""
        task, position = tirx.Var("v_task", self.dtype), ThreadPosition(self.rows, self.plan)
        group, number = task // self.tiles, task % self.tiles
        row = position.row(group)
        lanes = decode_lanes(self.recurrence, row)
        together = self.plan.lanes_per_block
        guard = lane_exists(self.recurrence, lanes, row, self.rows, together)
        tile = Tile(self.recurrence, self.plan, lanes, position, guard)
        return task, position, [row, number], tile

    def _launch(self, kernel: Kernel, task: Var, position: ThreadPosition) -> Any:
        return position.grid(kernel, tir.simplify(position.blocks * self.tiles), task)

    def reduce(self, level: int) -> Any:
        """Kernel 1: the element of every tile."""
        task, position, lead, tile = self._task()
        save = tile.replica.copy(self.elements[level], lead, tile.total[level], [])
        body = tir.seq(
            [
                when(tile.guard, tile.replica.prologue()),
                when(tile.guard, tile.running.fetch(self.carries, lead, range(level))),
                tile.load(lead[1]),
                *tile.reduce(lead[1], level),
                tirx.IfThenElse(tile.is_owner(), save, None),
            ]
        )
        kernel = Kernel(
            "scan_reduce",
            [*self.recurrence.inputs, *self.carries_of(range(level))],
            self.elements[level].buffers,
            body,
            tile.allocs,
        )
        return self._launch(kernel, task, position)

    def scan(self, level: int) -> Any:
        """Kernel 2: the tiles' carries; see ``carries``."""
        known = tir.as_int(self.tiles)
        if known is None or known > FEW_TILES:
            return self._scan_in_blocks(level)

        def serial(replica: Replica, row: Var) -> Any:
            return loop("c", self.tiles, lambda c: self.pass_part(replica, level, [row, c]))

        row, kernel = self.scan_in_order(level, serial, lambda r: self._without_steps(r, level))
        return threads_over(kernel, row, self.rows, _CARRY_THREADS)

    def _without_steps(self, replica: Replica, level: int) -> Any:
        """The end of a lane that has no steps, after its last scan; None where there is none."""
        finish = replica.finish() if self.is_last(level) else None
        extent = self.recurrence.time.extent
        known = tir.as_int(extent)
        if finish is None or (known is not None and known > 0):
            return None
        return when(extent <= tir.zero_like(extent), finish)

    def _scan_in_blocks(self, level: int) -> Any:
        """Kernel 2 by one block per lane."""
        recurrence = self.recurrence
        row, thread = tirx.Var("v_row", self.dtype), tirx.Var("v_tx", "int32")
        lanes = decode_lanes(recurrence, row)
        guard = lane_exists(recurrence, lanes, row, self.rows)
        scan = CarryScan(
            recurrence,
            self.plan,
            lanes,
            self.elements[level],
            self.carries,
            row,
            # Of a lane that does not exist, no tile does.
            self.tiles if guard is None else tirx.Select(guard, self.tiles, self.tiles * 0),
            thread,
        )
        boundary = scan.running.boundary() if self.is_last(level) else None
        ends = self._without_steps(scan.running, level)
        has_outputs = boundary is not None or ends is not None
        owner = scan.is_owner() if guard is None else tirx.And(guard, scan.is_owner())
        # Every thread has read its initial state before one of them writes.
        writes = [all_wait(), tirx.IfThenElse(owner, tir.seq([boundary, ends]), None)]
        body = tir.seq(
            [when(guard, scan.running.begin()), *(writes if has_outputs else []), scan.scan()]
        )
        kernel = self.scan_kernel(level, body, scan.buffers, has_outputs=has_outputs)
        alone = self.plan.with_(threads_per_block=scan.threads, lanes_per_block=1)
        return grid_of(kernel, self.rows, row, thread, alone)

    def replay(self) -> Any:
        """Kernel 3: the loop body over every tile, from the tile's carry."""
        task, position, lead, tile = self._task()
        body = tir.seq(
            [
                when(tile.guard, tile.replica.prologue()),
                when(
                    tile.guard,
                    tile.running.fetch(self.carries, lead, range(self.recurrence.levels)),
                ),
                tile.load(lead[1]),
                *tile.scan(lead[1]),
                tile.restore(),
                tile.replay(lead[1]),
            ]
        )
        kernel = Kernel(
            "scan_replay",
            [*self.recurrence.inputs, *self.carries],
            self.recurrence.outputs,
            body,
            tile.allocs,
        )
        return self._launch(kernel, task, position)
