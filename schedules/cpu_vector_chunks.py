"""CPU builder: three phases over chunks of time whose steps are vectors.

Where a lane is longer than the caches, the phases follow one another over a tile of it before the
next tile, so that the replay finds in the cache what the reduction has read.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Var
from tvm.tirx import ForKind

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.elements import Elements
from tvm_scan.schedules.ir import Kernel, as_dtype, int_const, loop, when
from tvm_scan.schedules.lanes import (
    carry_scratch,
    decode_lanes,
    guard_of,
    lane_count,
    state_buffers,
)
from tvm_scan.schedules.line_stores import with_line_stores
from tvm_scan.schedules.plan import ScanPlan
from tvm_scan.schedules.replica import Replica
from tvm_scan.schedules.result import Built
from tvm_scan.schedules.time_vector import TimeVector

__all__ = ["build_vector_chunks"]


def build_vector_chunks(recurrence: Recurrence, plan: ScanPlan) -> Built:
    """Reduce the chunks of a tile to elements, scan these, replay the chunks; then the next tile.

    Parameters
    ----------
    recurrence : Recurrence
        One stage, carries of one cell.
    plan : ScanPlan
        With ``time_vector``; ``cache_steps`` is the length of a tile.

    Returns
    -------
    Built
    """
    return _VectorChunks(recurrence, plan).build()


class _VectorChunks:
    """The phases, which share the chunks' elements and carries in memory."""

    def __init__(self, recurrence: Recurrence, plan: ScanPlan) -> None:
        self.recurrence, self.plan = recurrence, plan
        self.rows = lane_count(recurrence)
        self.dtype = tir.dtype_of(self.rows)
        self.time_dtype = tir.dtype_of(recurrence.time.var)
        self.chunks = int_const(plan.chunks, self.dtype)
        extent = recurrence.time.extent
        self.tiles = int_const(1, self.time_dtype)
        if plan.cache_steps:
            tiles = extent // int_const(plan.cache_steps, extent)
            self.tiles = tir.simplify(tirx.Max(tiles, int_const(1, extent)))
        each = tir.simplify(extent // self.tiles // int_const(plan.chunks, extent))
        # Whole batches of vectors, so that hardly a step is left over.
        batch = int_const(plan.time_vector * 4, extent)
        whole = tirx.Select(each >= batch * 4, each // batch * batch, each)
        self.length = tir.simplify(whole)
        self.step = tir.simplify(self.length * int_const(plan.chunks, extent))
        self.elements = Elements(recurrence, "chunk", [self.rows, self.chunks], "global")
        # The last slot is the carry after a tile.
        self.carries = carry_scratch(recurrence, [self.rows, self.chunks + 1])

    def build(self) -> Built:
        """Nests and scratch."""
        scratch = [*self.elements.buffers, *self.carries]
        if tir.as_int(self.tiles) == 1:
            one = int_const(0, self.time_dtype)
            return Built([self.reduce(one), self.scan(one), self.replay(one)], scratch)

        def tile(n: Any) -> Any:
            return tir.seq([self.reduce(n), self.scan(n), self.replay(n)])

        return Built([loop("tile", self.tiles, tile)], scratch)

    def _walker(self, lanes: list[Any]) -> tuple[Replica, TimeVector]:
        one = Replica(self.recurrence, lanes, unroll=False)
        return one, TimeVector(self.recurrence, lanes, self.plan, one)

    def _axes(self) -> tuple[Var, Var, Var, list[Any]]:
        """Block variables of one task (tile, row, chunk), and the row's lanes."""
        tile = tirx.Var("v_tile", self.time_dtype)
        row, chunk = tirx.Var("v_row", self.dtype), tirx.Var("v_chunk", self.dtype)
        return tile, row, chunk, decode_lanes(self.recurrence, row)

    def _start(self, tile: Any, chunk: Any) -> Any:
        return tile * self.step + as_dtype(chunk, self.time_dtype) * self.length

    def _first_alone(self, tile: Any, chunk: Any) -> Any:
        """1 in the first chunk of a recurrence whose first step is its own, else 0."""
        own = any(carry.first is not None for carry in self.recurrence.carries)
        zero, one = (int_const(v, self.time_dtype) for v in (0, 1))
        at_start = tirx.And(tirx.EQ(tile, tir.zero_like(tile)), tirx.EQ(chunk, chunk * 0))
        return tirx.Select(at_start, one, zero) if own else zero

    def reduce(self, n: Any) -> Any:
        """Phase 1: the element of every chunk of a tile, vectors folded by halves."""
        tile, row, chunk, lanes = self._axes()
        one, vectors = self._walker(lanes)
        held = Elements(self.recurrence, "held", [1], "local")
        place = [int_const(0, "int32")]
        alone = self._first_alone(tile, chunk)
        start = self._start(tile, chunk)
        folded = vectors.reduce(held, place, start + alone, tir.simplify(self.length - alone))
        body = tir.seq(
            [
                vectors.begin(),
                one.prologue(),
                one.set_identity(held, place),
                loop("i", alone, lambda i: one.extend(held, place, start + i)),
                folded,
                one.copy(self.elements, [row, chunk], held, place),
            ]
        )
        kernel = Kernel(
            "scan_reduce",
            self.recurrence.inputs,
            self.elements.buffers,
            when(guard_of(self.recurrence, lanes), body),
            [*one.buffers, *vectors.buffers, *held.buffers],
        )
        return self._parallel(kernel, n, tile, row, chunk)

    def scan(self, n: Any) -> Any:
        """Phase 2: the carry before every chunk of a tile, and after the last one."""
        recurrence = self.recurrence
        tile, row, _, lanes = self._axes()
        replica = Replica(recurrence, lanes, unroll=False)

        def one(c: Any) -> Any:
            kept = replica.keep(self.carries, [row, c], 0)
            return tir.seq([kept, replica.apply(self.elements, [row, c])])

        begin = tir.seq([replica.begin(), replica.boundary()])
        again = replica.fetch(self.carries, [row, self.chunks], range(1))
        first = tirx.EQ(tile, tir.zero_like(tile))
        body = tir.seq(
            [
                begin if tir.as_int(self.tiles) == 1 else tirx.IfThenElse(first, begin, again),
                loop("c", self.chunks, one),
                replica.keep(self.carries, [row, self.chunks], 0),
            ]
        )
        kernel = Kernel(
            "scan_carries",
            [*recurrence.inputs, *self.elements.buffers, *state_buffers(recurrence)],
            [*self.carries, *(recurrence.outputs if recurrence.boundary is not None else [])],
            when(guard_of(recurrence, lanes), body),
            replica.buffers,
        ).on_stack()
        axes = [(tile, self.tiles, n)]
        # A few rows are not worth waking the other cores.
        return loop("row", self.rows, lambda r: kernel.block([*axes, (row, self.rows, r)]))

    def replay(self, n: Any) -> Any:
        """Phase 3: the loop body over every chunk of a tile, from its carry."""
        tile, row, chunk, lanes = self._axes()
        one, vectors = self._walker(lanes)
        alone = self._first_alone(tile, chunk)
        start = self._start(tile, chunk)
        last = tirx.And(tirx.EQ(chunk, self.chunks - 1), tirx.EQ(tile, self.tiles - 1))
        done = tir.simplify(self.step * self.tiles)
        rest = tir.simplify(self.recurrence.time.extent - done)
        steps = vectors.walk(start + alone, tir.simplify(self.length - alone))
        tail = tir.seq([loop("i", rest, lambda i: one.step(done + i)), one.finish()])
        body = tir.seq(
            [
                vectors.begin(),
                one.prologue(),
                one.fetch(self.carries, [row, chunk], range(1)),
                loop("i", alone, lambda i: one.step(start + i)),
                steps,
                when(last, tail),
            ]
        )
        body = with_line_stores(body, vectors.held.dtypes)
        kernel = Kernel(
            "scan_replay",
            [*self.recurrence.inputs, *self.carries],
            self.recurrence.outputs,
            when(guard_of(self.recurrence, lanes), body),
            [*one.buffers, *vectors.buffers],
        )
        return self._parallel(kernel, n, tile, row, chunk)

    def _parallel(self, kernel: Kernel, n: Any, tile: Var, row: Var, chunk: Var) -> Any:
        """A block over (tile, row, chunk), the last two in one parallel loop."""
        made = kernel.on_stack()

        def realize(task: Any) -> Any:
            number, part = task // self.chunks, task % self.chunks
            axes = [(row, self.rows, number), (chunk, self.chunks, part)]
            return made.block([(tile, self.tiles, n), *axes])

        total = tir.simplify(self.rows * self.chunks)
        return loop("task", total, realize, ForKind.PARALLEL)
