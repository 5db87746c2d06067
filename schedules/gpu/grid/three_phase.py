"""CUDA builder: three phases over tiles of time."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.elements import Elements
from tvm_scan.schedules.common.ir import (
    Kernel,
    as_dtype,
    at_least_one,
    loop,
    threads_over,
    when,
)
from tvm_scan.schedules.common.lanes import (
    carry_scratch,
    decode_lanes,
    guard_of,
    lane_count,
    state_buffers,
)
from tvm_scan.schedules.common.replica import Replica
from tvm_scan.schedules.common.result import Built
from tvm_scan.schedules.gpu.block.tile import Tile
from tvm_scan.schedules.gpu.grid.carries import FEW_TILES, CarryScan
from tvm_scan.schedules.gpu.thread.barriers import all_wait
from tvm_scan.schedules.gpu.thread.place import Place, grid_of, lane_exists, tile_count
from tvm_scan.schedules.gpu.thread.plans import TreePlan

__all__ = ["build_three_phase"]

#: Threads of a block in which every thread has a lane of its own and few steps.
_CARRY_THREADS = 128


def build_three_phase(recurrence: Recurrence, plan: TreePlan) -> Built:
    """Three kernels: reduce every tile, scan the tiles' elements of a lane, replay every tile.

    Global traffic: inputs twice, outputs once, and one element per tile. The same bits on every
    run: no kernel waits for another block.
    """
    return Built.of_phases(_Phases(recurrence, plan), recurrence.stages)


class _Phases:
    """The three kernels, which share the tiles' elements and carries in global memory."""

    def __init__(self, recurrence: Recurrence, plan: TreePlan) -> None:
        self.recurrence, self.plan = recurrence, plan
        self.rows = lane_count(recurrence)
        self.dtype = tir.dtype_of(self.rows)
        # At least one tile, so that a lane without steps still has someone to end it.
        self.tiles = at_least_one(as_dtype(tile_count(recurrence, plan), self.dtype))
        lead = [self.rows, self.tiles]
        self.elements = [
            Elements(recurrence, "tile", lead, "global", stage)
            for stage in range(recurrence.stages)
        ]
        self.carries = carry_scratch(recurrence, lead)

    def _task(self) -> tuple[Var, Place, list[Any], Tile]:
        """Block variable and threads of one tile, its place in scratch, and its code."""
        task, place = tirx.Var("v_task", self.dtype), Place(self.rows, self.plan)
        group, number = task // self.tiles, task % self.tiles
        row = place.row(group)
        lanes = decode_lanes(self.recurrence, row)
        together = self.plan.lanes_per_block
        guard = lane_exists(self.recurrence, lanes, row, self.rows, together)
        tile = Tile(self.recurrence, self.plan, lanes, place, guard)
        return task, place, [row, number], tile

    def _launch(self, kernel: Kernel, task: Var, place: Place) -> Any:
        return place.grid(kernel, tir.simplify(place.blocks * self.tiles), task)

    def reduce(self, stage: int) -> Any:
        """Kernel 1: the element of every tile."""
        task, place, lead, tile = self._task()
        known = self._carries(range(stage))
        save = tile.replica.copy(self.elements[stage], lead, tile.total[stage], [])
        body = tir.seq(
            [
                when(tile.guard, tile.replica.prologue()),
                when(tile.guard, tile.running.fetch(self.carries, lead, range(stage))),
                tile.load(lead[1]),
                *tile.fold(lead[1], stage),
                tirx.IfThenElse(tile.is_owner(), save, None),
            ]
        )
        kernel = Kernel(
            "scan_reduce",
            [*self.recurrence.inputs, *known],
            self.elements[stage].buffers,
            body,
            tile.allocs,
        )
        return self._launch(kernel, task, place)

    def _carries(self, stages: range) -> list[Var]:
        groups = [group for group in self.recurrence.groups if group.stage in stages]
        return [self.carries[i] for group in groups for i in group.carries]

    def scan(self, stage: int) -> Any:
        """Kernel 2: the tiles' carries; see ``carries``."""
        known = tir.as_int(self.tiles)
        if known is None or known > FEW_TILES:
            return self._scan_in_blocks(stage)
        recurrence = self.recurrence
        last = stage == recurrence.stages - 1
        row = tirx.Var("v_row", self.dtype)
        lanes = decode_lanes(recurrence, row)
        replica = Replica(recurrence, lanes, unroll=True)

        def one(number: Any) -> Any:
            lead = [row, number]
            kept = replica.keep(self.carries, lead, stage)
            return tir.seq([kept, replica.apply(self.elements[stage], lead)])

        finish, extent = replica.finish() if last else None, recurrence.time.extent
        boundary = replica.boundary() if last else None
        constant = tir.as_int(extent)
        ends_here = finish is not None and (constant is None or constant <= 0)
        body = tir.seq(
            [
                replica.begin(),
                boundary,
                loop("c", self.tiles, one),
                when(extent <= tir.zero_like(extent), finish) if ends_here else None,
            ]
        )
        writes_outputs = ends_here or boundary is not None

        def kernel(inside: Any) -> Kernel:
            return Kernel(
                "scan_carries",
                [*recurrence.inputs, *self.elements[stage].buffers, *state_buffers(recurrence)],
                [
                    *self._carries(range(stage, stage + 1)),
                    *(recurrence.outputs if writes_outputs else []),
                ],
                when(inside, when(guard_of(recurrence, lanes), body)),
                replica.buffers,
            )

        return threads_over(kernel, row, self.rows, _CARRY_THREADS)

    def _scan_in_blocks(self, stage: int) -> Any:
        """Kernel 2 by one block per lane."""
        recurrence = self.recurrence
        row, thread = tirx.Var("v_row", self.dtype), tirx.Var("v_tx", "int32")
        lanes = decode_lanes(recurrence, row)
        guard = lane_exists(recurrence, lanes, row, self.rows)
        walk = CarryScan(
            recurrence,
            self.plan,
            lanes,
            self.elements[stage],
            self.carries,
            row,
            # Of a lane that does not exist, no tile does.
            self.tiles if guard is None else tirx.Select(guard, self.tiles, self.tiles * 0),
            thread,
        )
        ends, extent = None, recurrence.time.extent
        constant, boundary = tir.as_int(extent), None
        if stage == recurrence.stages - 1:
            finish, boundary = walk.running.finish(), walk.running.boundary()
            if finish is not None and (constant is None or constant <= 0):
                ends = when(extent <= tir.zero_like(extent), finish)
        # Every thread has read its initial state before one of them writes.
        writes = tir.seq([boundary, ends])
        owner = walk.is_owner() if guard is None else tirx.And(guard, walk.is_owner())
        body = tir.seq(
            [
                when(guard, walk.running.begin()),
                *([all_wait(), tirx.IfThenElse(owner, writes, None)] if boundary or ends else []),
                walk.walk(),
            ]
        )
        kernel = Kernel(
            "scan_carries",
            [*recurrence.inputs, *self.elements[stage].buffers, *state_buffers(recurrence)],
            [
                *self._carries(range(stage, stage + 1)),
                *(recurrence.outputs if boundary or ends else []),
            ],
            body,
            walk.buffers,
        )
        alone = self.plan.with_(threads_per_block=walk.threads, lanes_per_block=1)
        return grid_of(kernel, self.rows, row, thread, alone)

    def replay(self) -> Any:
        """Kernel 3: the loop body over every tile, from the tile's carry."""
        task, place, lead, tile = self._task()
        body = tir.seq(
            [
                when(tile.guard, tile.replica.prologue()),
                when(
                    tile.guard,
                    tile.running.fetch(self.carries, lead, range(self.recurrence.stages)),
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
        return self._launch(kernel, task, place)
