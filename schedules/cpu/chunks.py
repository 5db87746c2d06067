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
from tvm_scan.schedules.common.elements import Elements
from tvm_scan.schedules.common.ir import Kernel, as_dtype, int_const, local, loop, when
from tvm_scan.schedules.common.lanes import decode_lanes, guard_of
from tvm_scan.schedules.common.phases import Phases
from tvm_scan.schedules.common.replica import Replica
from tvm_scan.schedules.common.stack import on_stack
from tvm_scan.schedules.cpu.plans import CpuPlan


class ChunkPhases(Phases):
    """Chunks are reduced to elements, the elements of a lane scanned, the chunks replayed.

    A lane is cut into ``chunks`` chunks of about ``L // chunks`` steps; the last one also takes
    the remainder. ``lane_block`` chunks are interleaved in one task to hide latency.
    """

    def __init__(self, recurrence: Recurrence, plan: CpuPlan) -> None:
        super().__init__(recurrence)
        self.width = plan.lane_block
        self.chunks = int_const(plan.chunks, self.dtype)
        self.groups = int_const(plan.chunks // plan.lane_block, self.dtype)
        time = recurrence.time
        self.time_dtype = tir.dtype_of(time.var)
        self.length = _odd_lines(time.extent // int_const(plan.chunks, self.time_dtype))
        self.allocate("chunk", *[[self.rows, self.chunks]] * 2)

    def _chunk(self, group: Any, stream: Any) -> Any:
        """Chunk number: the streams of one task are neighbours in time."""
        return group * self.width + stream

    def _heads(self, group: Any) -> tuple[list[Any], list[Var], Any]:
        """Statements, a register, and the first step of a task's streams by their number."""

        def head(stream: Any) -> Any:
            return as_dtype(self._chunk(group, stream), self.time_dtype) * self.length

        if self.width > 1 or tir.as_int(self.length) is not None:
            return [], [], head
        # From a register: of a product in an index that falls with time, TVM 0.27 makes a
        # quotient by -1, which it cannot lower.
        first = local("first", [1], self.time_dtype)
        zero = int_const(0, "int32")
        return (
            [tirx.BufferStore(first, head(0), [zero])],
            [first],
            lambda _: tirx.BufferLoad(first, [zero]),
        )

    def _streams(self, make: Any) -> Any:
        return loop("u", self.width, make, ForKind.UNROLLED)

    def _replicas(self, lanes: list[Any], shared: bool) -> list[Replica]:
        """Registers of every stream; one set for all where no carry is in them."""
        if shared:
            return [Replica(self.recurrence, lanes, unroll=False)] * self.width
        return [
            Replica(self.recurrence, lanes, unroll=False, tag=f"_{u}" if self.width > 1 else "")
            for u in range(self.width)
        ]

    def _restore(self, replicas: list[Replica], row: Any, group: Any, levels: range) -> list[Any]:
        """Registers at the head of every stream's chunk."""
        if not levels:
            return [replicas[0].prologue()]
        out = []
        for u, replica in enumerate(replicas):
            lead = [row, self._chunk(group, u)]
            out += [replica.prologue(), replica.fetch(self.carries, lead, levels)]
        return out

    def _each_lane(self, make: Any) -> Any:
        return tir.seq([make(u) for u in range(self.width)])

    def reduce(self, level: int) -> Any:
        """Phase 1: the element of every chunk."""
        row, group, lanes = self._task()
        replicas = self._replicas(lanes, shared=level == 0)
        held = Elements(self.recurrence, "held", [self.width], "local", level)
        each = self._streams if level == 0 else self._each_lane
        before, registers, head = self._heads(group)

        def at(u: Any) -> Replica:
            return replicas[0] if level == 0 else replicas[u]

        def extend(u: Any, i: Any) -> Any:
            return at(u).extend(held, [u], head(u) + i)

        def save(u: Any) -> Any:
            return at(u).copy(self.elements[level], [row, self._chunk(group, u)], held, [u])

        body = tir.seq(
            [
                *before,
                *self._restore(replicas, row, group, range(level)),
                each(lambda u: at(u).set_identity(held, [u])),
                loop("i", self.length, lambda i: each(lambda u: extend(u, i))),
                each(save),
            ]
        )
        kernel = Kernel(
            "scan_reduce",
            [*self.recurrence.inputs, *self.carries_of(range(level))],
            self.elements[level].buffers,
            when(guard_of(self.recurrence, lanes), body),
            [*_buffers(replicas), *held.buffers, *registers],
        )
        return self._parallel(kernel, row, group)

    def scan(self, level: int) -> Any:
        """Phase 2: the carry before every chunk; short, one lane after another in order."""

        def serial(replica: Replica, row: Var) -> Any:
            return loop("c", self.chunks, lambda c: self.pass_part(replica, level, [row, c]))

        row, kernel = self.scan_in_order(level, serial, unroll=False)
        block = on_stack(kernel(None))
        return loop(
            "row",
            self.rows,
            lambda r: block.block([(row, self.rows, r)]),
            ForKind.PARALLEL,
        )

    def replay(self) -> Any:
        """Phase 3: the loop body over every chunk, from its carry."""
        recurrence = self.recurrence
        row, group, lanes = self._task()
        replicas = self._replicas(lanes, shared=False)
        before, registers, head = self._heads(group)

        def step(u: int, i: Any) -> Any:
            return replicas[u].step(head(u) + i)

        last = replicas[-1]
        done = self.length * as_dtype(self.chunks, self.time_dtype)
        rest = recurrence.time.extent - done
        tail = tir.seq([loop("i", rest, lambda i: last.step(done + i)), last.finish()])
        body = tir.seq(
            [
                *before,
                *self._restore(replicas, row, group, range(recurrence.levels)),
                loop("i", self.length, lambda i: self._each_lane(lambda u: step(u, i))),
                when(tirx.EQ(group, self.groups - 1), tail),
            ]
        )
        kernel = Kernel(
            "scan_replay",
            [*recurrence.inputs, *self.carries],
            recurrence.outputs,
            when(guard_of(recurrence, lanes), body),
            [*_buffers(replicas), *registers],
        )
        return self._parallel(kernel, row, group)

    def _task(self) -> tuple[Var, Var, list[Any]]:
        """Block variables of one task, and its lane."""
        row, group = tirx.Var("v_row", self.dtype), tirx.Var("v_group", self.dtype)
        return row, group, decode_lanes(self.recurrence, row)

    def _parallel(self, kernel: Kernel, row: Var, group: Var) -> Any:
        """A block over (row, group), both in one parallel loop."""
        # In registers, LLVM packs the products of interleaved streams into vectors one by one,
        # and denormal products cost more than they do in memory: four times slower.
        packed = kernel.name == "scan_reduce" and self.width > 1
        parallel = kernel if packed else on_stack(kernel)

        def realize(task: Any) -> Any:
            number, part = task // self.groups, task % self.groups
            return parallel.block([(row, self.rows, number), (group, self.groups, part)])

        total = tir.simplify(self.rows * self.groups)
        return loop("task", total, realize, ForKind.PARALLEL)


def _odd_lines(length: Any) -> Any:
    """``length``, or a little less: an odd number of cache lines.

    The streams of a task lie a chunk apart. Were that a power of two, they would all meet in one
    set of the first-level cache and evict one another at every step.
    """
    cells = tir.LINE_BYTES // tir.byte_size("float32")
    line, two = int_const(cells, length), int_const(2 * cells, length)
    odd = (length - line) // two * two + line
    return tir.simplify(tirx.Select(length >= two * 2, odd, length))


def _buffers(replicas: list[Replica]) -> list[Var]:
    """Registers of several replicas, each once."""
    return list(tir.VarMap((b, True) for replica in replicas for b in replica.buffers).keys())
