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
from tvm_scan.schedules.blelloch import build_block_scan, padded
from tvm_scan.schedules.ir import bound_loop, int_const, kernel_block, local, loop, when
from tvm_scan.schedules.plan import ScanPlan
from tvm_scan.schedules.replica import Elements, Replica, decode_lanes, lane_count
from tvm_scan.schedules.result import Built
from tvm_scan.schedules.staging import StagedInputs

__all__ = ["build_lanes", "build_serial_tiles", "build_three_phase"]


def build_lanes(recurrence: Recurrence, plan: ScanPlan) -> Built:
    """One thread per lane walks time serially; no exchange.

    Neighbouring threads take neighbouring lanes, so that memory is read in full lines where the
    lane axis is contiguous.
    """
    rows = lane_count(recurrence)
    dtype = tir.dtype_of(rows)
    threads = int_const(plan.threads_per_block, dtype)
    row = tirx.Var("v_row", dtype)
    lanes = decode_lanes(recurrence, row)
    replica = Replica(recurrence, lanes, unroll=True)
    time = recurrence.time
    body = tir.seq(
        [
            replica.begin(),
            replica.boundary(),
            loop("t", time.extent, replica.step, dtype=tir.dtype_of(time.var)),
            replica.finish(),
        ]
    )
    blocks = tir.simplify((rows + threads - 1) // threads)
    inside = tir.simplify(row < rows)
    guarded = when(inside, when(_guard(recurrence, lanes), body))

    def block(bx: Var) -> Any:
        return bound_loop(
            "tx",
            "threadIdx.x",
            threads,
            lambda tx: kernel_block(
                "scan_lanes",
                [(row, blocks * threads, bx * threads + tx)],
                recurrence.inputs,
                recurrence.outputs,
                guarded,
                replica.buffers,
                {},
            ),
        )

    return Built([bound_loop("bx", "blockIdx.x", blocks, block)], [])


class _Tile:
    """One tile of a lane in one block: thread reduction, block tree, thread replay."""

    def __init__(
        self, recurrence: Recurrence, plan: ScanPlan, lanes: list[Any], thread: Var, guard: Any
    ) -> None:
        self.recurrence, self.plan, self.thread, self.guard = recurrence, plan, thread, guard
        threads = plan.threads_per_block
        self.replica = Replica(recurrence, lanes, unroll=True)
        self.running = Replica(recurrence, lanes, unroll=True, tag="_run")
        self.shared = Elements(recurrence, "shared", [padded(threads - 1) + 1], "shared")
        self.mine = Elements(recurrence, "mine", [], "local")
        self.total = Elements(recurrence, "total", [], "local")
        self.left = Elements(recurrence, "left", [], "local")
        self.right = Elements(recurrence, "right", [], "local")
        self.staged = StagedInputs(recurrence, self.replica, plan.items_per_thread)

    @property
    def allocs(self) -> list[Var]:
        """Everything that the tile's code keeps."""
        parts = (self.shared, self.mine, self.total, self.left, self.right)
        return [
            *self.replica.buffers,
            *self.running.buffers,
            *self.staged.buffers,
            *(b for p in parts for b in p.buffers),
        ]

    def valid(self, time: Any) -> Any:
        """Condition under which the step at ``time`` exists."""
        inside = time < self.recurrence.time.extent
        return inside if self.guard is None else tirx.And(self.guard, inside)

    def first_step(self, tile: Any) -> Any:
        """Time of this thread's first item in tile number ``tile``."""
        dtype = tir.dtype_of(self.recurrence.time.var)
        thread = (
            self.thread if tir.dtype_of(self.thread) == dtype else tirx.Cast(dtype, self.thread)
        )
        tile = tile if tir.dtype_of(tile) == dtype else tirx.Cast(dtype, tile)
        items = int_const(self.plan.items_per_thread, dtype)
        return tile * int_const(self.plan.tile, dtype) + thread * items

    def items(self, tile: Any, make: Any) -> Any:
        """``make(item, time)`` for the thread's items."""
        start = self.first_step(tile)
        dtype = tir.dtype_of(start)

        def one(k: Any) -> Any:
            item = k if tir.dtype_of(k) == dtype else tirx.Cast(dtype, k)
            time = start + item
            return when(self.valid(time), make(k, time))

        kind = tirx.ForKind.UNROLLED if self.staged.buffers else tirx.ForKind.SERIAL
        return loop("k", self.plan.items_per_thread, one, kind)

    def load(self, tile: Any) -> Any:
        """Inputs of the thread's items into registers."""
        if not self.staged.buffers:
            return None
        return self.items(tile, self.staged.fill)

    def reduce(self, tile: Any) -> Any:
        """Element of the thread's items, in ``mine``."""

        def extend(k: Any, time: Any) -> Any:
            return self.staged.use(self.replica.extend(self.mine, [], time), k, time)

        return tir.seq([self.replica.set_identity(self.mine, []), self.items(tile, extend)])

    def scan(self) -> list[Any]:
        """Exclusive prefix of the thread in shared memory, aggregate of the tile in ``total``."""
        place = padded(self.thread)
        put = self.replica.for_each_cell(
            lambda i, p: self.shared.store(i, [place], p, self.mine.load(i, [], p))
        )
        return [
            put,
            *build_block_scan(
                self.replica,
                self.shared,
                self.total,
                self.left,
                self.right,
                self.thread,
                self.plan.threads_per_block,
            ),
        ]

    def restore(self) -> Any:
        """The carry before the thread's first item."""
        return self.replica.apply(self.shared, [padded(self.thread)], source=self.running)

    def replay(self, tile: Any) -> Any:
        """The loop body over the thread's items, and the end of the lane by its last step."""

        def one(k: Any, time: Any) -> Any:
            step = self.staged.use(self.replica.step(time), k, time)
            finish = self.replica.finish()
            if finish is None:
                return step
            last = tirx.EQ(time, self.recurrence.time.extent - 1)
            return tir.seq([step, tirx.IfThenElse(last, finish, None)])

        return self.items(tile, one)

    def empty(self) -> Any:
        """What a lane without steps leaves behind, written by the first thread."""
        finish = self.running.finish()
        extent = self.recurrence.time.extent
        constant = tir.as_int(extent)
        if finish is None or (constant is not None and constant > 0):
            return None
        first = tirx.EQ(self.thread, tir.zero_like(self.thread))
        none = tirx.And(first, extent <= tir.zero_like(extent))
        if self.guard is not None:
            none = tirx.And(self.guard, none)
        return tirx.IfThenElse(none, finish, None)

    def owner_writes(self) -> Any:
        """Boundary writes by the first thread; None where there are none."""
        stmt = self.running.boundary()
        if stmt is None:
            return None
        first = tirx.EQ(self.thread, tir.zero_like(self.thread))
        return tirx.IfThenElse(
            first if self.guard is None else tirx.And(self.guard, first), stmt, None
        )


def build_serial_tiles(recurrence: Recurrence, plan: ScanPlan) -> Built:
    """One block per lane walks the lane's tiles in order, with the running carry in registers.

    Global traffic: every input and output once (inputs that are not staged are read twice, the
    second time from cache). Shared memory: ``plan.smem_bytes``.
    """
    rows = lane_count(recurrence)
    dtype = tir.dtype_of(rows)
    row, thread = tirx.Var("v_row", dtype), tirx.Var("v_tx", "int32")
    lanes = decode_lanes(recurrence, row)
    guard = _guard(recurrence, lanes)
    tile = _Tile(recurrence, plan, lanes, thread, guard)

    def walk(number: Any) -> Any:
        advance = tile.running.apply(tile.total, [])
        return tir.seq(
            [
                tile.load(number),
                tile.reduce(number),
                *tile.scan(),
                tile.restore(),
                tile.replay(number),
                advance,
            ]
        )

    body = tir.seq(
        [
            when(guard, tile.running.begin()),
            tile.replica.prologue(),
            tile.owner_writes(),
            tile.empty(),
            loop("tile", _tiles(recurrence, plan), walk),
        ]
    )
    return Built([_grid("scan_tiles", rows, row, thread, plan, recurrence, body, tile.allocs)], [])


def build_three_phase(recurrence: Recurrence, plan: ScanPlan) -> Built:
    """Three kernels: reduce every tile, scan the tiles' elements of a lane, replay every tile.

    Global traffic: inputs twice, outputs once, and one element per tile. The same bits on every
    run: no kernel waits for another block.
    """
    rows = lane_count(recurrence)
    dtype = tir.dtype_of(rows)
    tiles = _tiles(recurrence, plan)
    count = tiles if tir.dtype_of(tiles) == dtype else tirx.Cast(dtype, tiles)
    elements = Elements(recurrence, "tile", [rows, count], "global")
    carries = [
        local(f"carry{i}", [rows, count, *(int(a.extent) for a in c.state_axes)], c.dtype, "global")
        for i, c in enumerate(recurrence.carries)
    ]
    total = tir.simplify(rows * count)

    def parts() -> tuple[Any, Any, Any, Any, _Tile]:
        task, thread = tirx.Var("v_task", dtype), tirx.Var("v_tx", "int32")
        row, number = task // count, task % count
        lanes = decode_lanes(recurrence, row)
        tile = _Tile(recurrence, plan, lanes, thread, _guard(recurrence, lanes))
        return task, thread, row, number, tile

    def reduce_kernel() -> Any:
        task, thread, row, number, tile = parts()
        save = tile.replica.for_each_cell(
            lambda i, p: elements.store(i, [row, number], p, tile.total.load(i, [], p))
        )
        first = tirx.EQ(thread, tir.zero_like(thread))
        body = tir.seq(
            [
                tile.replica.prologue(),
                tile.load(number),
                tile.reduce(number),
                *tile.scan(),
                tirx.IfThenElse(first, save, None),
            ]
        )
        return _grid(
            "scan_reduce",
            total,
            task,
            thread,
            plan,
            recurrence,
            body,
            tile.allocs,
            writes=elements.buffers,
        )

    def carry_kernel() -> Any:
        # One thread per lane walks the lane's tile elements: few, and in order.
        row = tirx.Var("v_row", dtype)
        lanes = decode_lanes(recurrence, row)
        guard = _guard(recurrence, lanes)
        replica = Replica(recurrence, lanes, unroll=True)

        def one(number: Any) -> Any:
            def keep(i: int, place: list[Any]) -> Any:
                value = replica.get_carry(i, place)
                return tirx.BufferStore(carries[i], value, [row, number, *place])

            return tir.seq([replica.for_each_cell(keep), replica.apply(elements, [row, number])])

        finish = replica.finish()
        constant = tir.as_int(recurrence.time.extent)
        if finish is not None and not (constant is not None and constant > 0):
            empty = recurrence.time.extent <= tir.zero_like(recurrence.time.extent)
            finish = tirx.IfThenElse(empty, finish, None)
        else:
            finish = None
        body = tir.seq([replica.begin(), replica.boundary(), loop("c", count, one), finish])
        threads = int_const(128, dtype)
        blocks = tir.simplify((rows + threads - 1) // threads)
        inside = when(tir.simplify(row < rows), when(guard, body))
        state = [r.buffer for r in recurrence.registers if r.visible and not r.timed]
        writes = [*carries]
        if finish is not None or recurrence.boundary is not None:
            writes += recurrence.outputs

        def block(bx: Var) -> Any:
            return bound_loop(
                "tx",
                "threadIdx.x",
                threads,
                lambda tx: kernel_block(
                    "scan_carries",
                    [(row, blocks * threads, bx * threads + tx)],
                    [*recurrence.inputs, *elements.buffers, *state],
                    writes,
                    inside,
                    replica.buffers,
                    {},
                ),
            )

        return bound_loop("bx", "blockIdx.x", blocks, block)

    def replay_kernel() -> Any:
        task, thread, row, number, tile = parts()
        fetch = tile.running.for_each_cell(
            lambda i, p: tile.running.set_carry(
                i, p, tirx.BufferLoad(carries[i], [row, number, *p])
            )
        )
        body = tir.seq(
            [
                tile.replica.prologue(),
                fetch,
                tile.load(number),
                tile.reduce(number),
                *tile.scan(),
                tile.restore(),
                tile.replay(number),
            ]
        )
        return _grid(
            "scan_replay",
            total,
            task,
            thread,
            plan,
            recurrence,
            body,
            tile.allocs,
            reads=[*recurrence.inputs, *carries],
        )

    return Built([reduce_kernel(), carry_kernel(), replay_kernel()], [*elements.buffers, *carries])


def _tiles(recurrence: Recurrence, plan: ScanPlan) -> Any:
    extent = recurrence.time.extent
    tile = int_const(plan.tile, extent)
    return tir.simplify((extent + tile - 1) // tile)


def _guard(recurrence: Recurrence, lanes: list[Any]) -> Any:
    if recurrence.guard is None:
        return None
    table = tir.VarMap((a.var, v) for a, v in zip(recurrence.lanes, lanes, strict=True))
    return tir.substitute(recurrence.guard, table)


def _grid(
    name: str,
    blocks: Any,
    row: Var,
    thread: Var,
    plan: ScanPlan,
    recurrence: Recurrence,
    body: Any,
    allocs: Any,
    reads: Any = None,
    writes: Any = None,
) -> Any:
    """``blocks`` blocks of ``threads_per_block`` threads, each running ``body``."""
    threads = int_const(plan.threads_per_block, "int32")

    def block(bx: Var) -> Any:
        return bound_loop(
            "tx",
            "threadIdx.x",
            threads,
            lambda tx: kernel_block(
                name,
                [(row, blocks, bx), (thread, threads, tx)],
                recurrence.inputs if reads is None else reads,
                recurrence.outputs if writes is None else writes,
                body,
                allocs,
                {},
            ),
        )

    return bound_loop("bx", "blockIdx.x", blocks, block)
