"""CPU builder: three phases over chunks of time.

Work and span, for R lanes of L steps on P cores: 2 R L steps, span 2 R L / P even for one lane.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Var
from tvm.tirx import ForKind

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.ir import Kernel, as_dtype, int_const, loop, runs_in_turn, when
from tvm_scan.schedules.plan import ScanPlan
from tvm_scan.schedules.replica import (
    Elements,
    Replica,
    carry_scratch,
    decode_lanes,
    guard_of,
    lane_count,
    state_buffers,
)
from tvm_scan.schedules.result import Built

__all__ = ["build_three_phase"]


def build_three_phase(recurrence: Recurrence, plan: ScanPlan) -> Built:
    """Reduce chunks to elements, scan the elements of a lane, replay the chunks.

    A lane is cut into ``chunks`` chunks of ``L // chunks`` steps; the last one also takes the
    remainder. ``lane_block`` chunks are interleaved in one task to hide latency.
    """
    chunks = _Chunks(recurrence, plan)
    nests = [chunks.reduce(), chunks.scan(), chunks.replay()]
    return Built(nests, [*chunks.elements.buffers, *chunks.carries])


class _Chunks:
    """The three phases, which share the chunks' elements and carries in memory."""

    def __init__(self, recurrence: Recurrence, plan: ScanPlan) -> None:
        self.recurrence, self.width = recurrence, plan.lane_block
        self.rows = lane_count(recurrence)
        self.dtype = tir.dtype_of(self.rows)
        self.chunks = int_const(plan.chunks, self.dtype)
        self.groups = int_const(plan.chunks // plan.lane_block, self.dtype)
        time = recurrence.time
        self.time_dtype = tir.dtype_of(time.var)
        self.length = time.extent // int_const(plan.chunks, self.time_dtype)
        lead = [self.rows, self.chunks]
        self.elements = Elements(recurrence, "chunk", lead, "global")
        self.carries = carry_scratch(recurrence, lead)

    def _chunk(self, group: Any, stream: Any) -> Any:
        """Chunk number: the streams of one task are neighbours in time."""
        return group * self.width + stream

    def _time(self, group: Any, stream: Any, i: Any) -> Any:
        return as_dtype(self._chunk(group, stream), self.time_dtype) * self.length + i

    def _streams(self, make: Any) -> Any:
        return loop("u", self.width, make, ForKind.UNROLLED)

    def reduce(self) -> Any:
        """Phase 1: the element of every chunk."""
        row, group, lanes = self._task()
        replica = Replica(self.recurrence, lanes, unroll=False)
        held = Elements(self.recurrence, "held", [self.width], "local")

        def extend(u: Any, i: Any) -> Any:
            return replica.extend(held, [u], self._time(group, u, i))

        def save(u: Any) -> Any:
            return replica.copy(self.elements, [row, self._chunk(group, u)], held, [u])

        body = tir.seq(
            [
                replica.prologue(),
                self._streams(lambda u: replica.set_identity(held, [u])),
                runs_in_turn(self.width, self.length, self._streams, extend),
                self._streams(save),
            ]
        )
        kernel = Kernel(
            "scan_reduce",
            self.recurrence.inputs,
            self.elements.buffers,
            when(guard_of(self.recurrence, lanes), body),
            [*replica.buffers, *held.buffers],
        )
        return self._parallel(kernel, row, group)

    def scan(self) -> Any:
        """Phase 2: the carry before every chunk; short, one lane after another in order."""
        recurrence = self.recurrence
        row = tirx.Var("v_row", self.dtype)
        lanes = decode_lanes(recurrence, row)
        replica = Replica(recurrence, lanes, unroll=False)

        def one(c: Any) -> Any:
            return tir.seq(
                [replica.keep(self.carries, [row, c]), replica.apply(self.elements, [row, c])]
            )

        body = tir.seq([replica.begin(), replica.boundary(), loop("c", self.chunks, one)])
        kernel = Kernel(
            "scan_carries",
            [*recurrence.inputs, *self.elements.buffers, *state_buffers(recurrence)],
            [*self.carries, *(recurrence.outputs if recurrence.boundary is not None else [])],
            when(guard_of(recurrence, lanes), body),
            replica.buffers,
        )
        return loop(
            "row", self.rows, lambda r: kernel.block([(row, self.rows, r)]), ForKind.PARALLEL
        )

    def replay(self) -> Any:
        """Phase 3: the loop body over every chunk, from its carry."""
        recurrence, width = self.recurrence, self.width
        row, group, lanes = self._task()
        replicas = [
            Replica(recurrence, lanes, unroll=False, tag=f"_{u}" if width > 1 else "")
            for u in range(width)
        ]

        def restore(u: int) -> Any:
            lead = [row, self._chunk(group, u)]
            return tir.seq([replicas[u].prologue(), replicas[u].fetch(self.carries, lead)])

        def step(u: int, i: Any) -> Any:
            return replicas[u].step(self._time(group, u, i))

        def turns(make: Any) -> Any:
            return tir.seq([make(u) for u in range(width)])

        last = replicas[-1]
        done = self.length * as_dtype(self.chunks, self.time_dtype)
        rest = recurrence.time.extent - done
        tail = tir.seq([loop("i", rest, lambda i: last.step(done + i)), last.finish()])
        body = tir.seq(
            [
                *(restore(u) for u in range(width)),
                runs_in_turn(width, self.length, turns, step),
                when(tirx.EQ(group, self.groups - 1), tail),
            ]
        )
        kernel = Kernel(
            "scan_replay",
            [*recurrence.inputs, *self.carries],
            recurrence.outputs,
            when(guard_of(recurrence, lanes), body),
            [b for r in replicas for b in r.buffers],
        )
        return self._parallel(kernel, row, group)

    def _task(self) -> tuple[Var, Var, list[Any]]:
        """Block variables of one task, and its lane."""
        row, group = tirx.Var("v_row", self.dtype), tirx.Var("v_group", self.dtype)
        return row, group, decode_lanes(self.recurrence, row)

    def _parallel(self, kernel: Kernel, row: Var, group: Var) -> Any:
        """A block over (row, group), both in one parallel loop."""

        def realize(task: Any) -> Any:
            number, part = task // self.groups, task % self.groups
            return kernel.block([(row, self.rows, number), (group, self.groups, part)])

        total = tir.simplify(self.rows * self.groups)
        return loop("task", total, realize, ForKind.PARALLEL)
