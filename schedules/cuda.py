"""CUDA builders: thread per lane, one block per lane over serial tiles, three phases.

Every kernel uses ``blockIdx.x`` alone, which holds 2^31 - 1 blocks: the number of rows is not
limited to 65,535.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.cuda_shared_lanes import build_shared_lanes
from tvm_scan.schedules.cuda_tile import Tile
from tvm_scan.schedules.elements import Elements
from tvm_scan.schedules.ir import (
    Kernel,
    as_dtype,
    at_least_one,
    bound_loop,
    int_const,
    loop,
    threads_over,
    when,
)
from tvm_scan.schedules.lanes import (
    carry_scratch,
    decode_lanes,
    guard_of,
    lane_count,
    state_buffers,
)
from tvm_scan.schedules.plan import ScanPlan
from tvm_scan.schedules.replica import Replica
from tvm_scan.schedules.result import Built

__all__ = ["build_lanes", "build_serial_tiles", "build_three_phase"]

#: Threads of a block in which every thread has a lane of its own and few steps.
_CARRY_THREADS = 128


def build_lanes(recurrence: Recurrence, plan: ScanPlan) -> Built:
    """One thread per lane walks time serially; no exchange.

    Neighbouring threads take neighbouring lanes, so that memory is read in full lines where the
    lane axis is contiguous.
    """
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
    """One block per lane walks the lane's tiles in order, with the running carry in registers.

    Global traffic: every input and output once (inputs that are not staged are read twice, the
    second time from cache). Shared memory: ``plan.smem_bytes``.
    """
    rows = lane_count(recurrence)
    row, thread = tirx.Var("v_row", tir.dtype_of(rows)), tirx.Var("v_tx", "int32")
    lanes = decode_lanes(recurrence, row)
    guard = _exists(recurrence, lanes, row, rows)
    tile = Tile(recurrence, plan, lanes, thread, guard)

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
            loop("tile", _tiles(recurrence, plan), walk),
        ]
    )
    kernel = Kernel("scan_tiles", recurrence.inputs, recurrence.outputs, body, tile.allocs)
    return Built([_grid(kernel, rows, row, thread, plan)], [])


def build_three_phase(recurrence: Recurrence, plan: ScanPlan) -> Built:
    """Three kernels: reduce every tile, scan the tiles' elements of a lane, replay every tile.

    Global traffic: inputs twice, outputs once, and one element per tile. The same bits on every
    run: no kernel waits for another block.
    """
    phases = _Phases(recurrence, plan)
    nests = [
        nest
        for stage in range(recurrence.stages)
        for nest in (phases.reduce(stage), phases.scan(stage))
    ]
    scratch = [buffer for elements in phases.elements for buffer in elements.buffers]
    return Built([*nests, phases.replay()], [*scratch, *phases.carries])


class _Phases:
    """The three kernels, which share the tiles' elements and carries in global memory."""

    def __init__(self, recurrence: Recurrence, plan: ScanPlan) -> None:
        self.recurrence, self.plan = recurrence, plan
        self.rows = lane_count(recurrence)
        self.dtype = tir.dtype_of(self.rows)
        # At least one tile, so that a lane without steps still has someone to end it.
        self.tiles = at_least_one(as_dtype(_tiles(recurrence, plan), self.dtype))
        lead = [self.rows, self.tiles]
        self.elements = [
            Elements(recurrence, "tile", lead, "global", stage)
            for stage in range(recurrence.stages)
        ]
        self.carries = carry_scratch(recurrence, lead)

    def _task(self) -> tuple[Var, Var, list[Any], Tile]:
        """Block variable and thread of one tile, its place in scratch, and its code."""
        task, thread = tirx.Var("v_task", self.dtype), tirx.Var("v_tx", "int32")
        row, number = task // self.tiles, task % self.tiles
        lanes = decode_lanes(self.recurrence, row)
        guard = _exists(self.recurrence, lanes, row, self.rows)
        return task, thread, [row, number], Tile(self.recurrence, self.plan, lanes, thread, guard)

    def _launch(self, kernel: Kernel, task: Var, thread: Var) -> Any:
        return _grid(kernel, tir.simplify(self.rows * self.tiles), task, thread, self.plan)

    def reduce(self, stage: int) -> Any:
        """Kernel 1: the element of every tile."""
        task, thread, lead, tile = self._task()
        known = self._carries(range(stage))
        save = tile.replica.copy(self.elements[stage], lead, tile.total[stage], [])
        body = tir.seq(
            [
                when(tile.guard, tile.replica.prologue()),
                when(tile.guard, tile.running.fetch(self.carries, lead, range(stage))),
                tile.load(lead[1]),
                *tile.scan(lead[1], stage + 1),
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
        return self._launch(kernel, task, thread)

    def _carries(self, stages: range) -> list[Var]:
        groups = [group for group in self.recurrence.groups if group.stage in stages]
        return [self.carries[i] for group in groups for i in group.carries]

    def scan(self, stage: int) -> Any:
        """Kernel 2: one thread per lane walks the lane's tile elements: few, and in order."""
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

    def replay(self) -> Any:
        """Kernel 3: the loop body over every tile, from the tile's carry."""
        task, thread, lead, tile = self._task()
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
        return self._launch(kernel, task, thread)


def _tiles(recurrence: Recurrence, plan: ScanPlan) -> Any:
    extent = recurrence.time.extent
    tile = int_const(plan.tile, extent)
    return tir.simplify((extent + tile - 1) // tile)


def _exists(recurrence: Recurrence, lanes: list[Any], row: Any, rows: Any) -> Any:
    """Condition under which a block has a lane; None where every block has one."""
    guard = guard_of(recurrence, lanes)
    known = tir.as_int(rows)
    if known is not None and known > 0:
        return guard
    # The grid has at least one block even where there is no lane.
    inside = row < rows
    return inside if guard is None else tirx.And(inside, guard)


def _grid(kernel: Kernel, blocks: Any, block: Var, thread: Var, plan: ScanPlan) -> Any:
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
