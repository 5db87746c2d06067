"""CUDA builder: lanes that walk time in chunks, each by threads of its own.

Few lanes leave a chip empty, and their one chain of steps is the time it takes. Cut into C chunks,
three kernels are launched:

- reduce: every chunk but the last is walked with no state to begin with, and leaves its element:
  for affine states the product of the gates, and the state from zero. Nothing is read that only
  an output needs, and no output written;
- carries: from the elements to the state before every chunk (``chunk_carries``);
- replay: the walk of ``lanes`` over every chunk, from its carry.

Work: about twice the steps. Span: two times the steps of a chunk, and C / 8 trips to memory.
Memory: what the states need twice, everything else once; per chunk and lane an element and two
carries. The same bits on every run: no kernel waits for another block.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.elements import Elements
from tvm_scan.schedules.common.ir import Kernel, chunks_over, int_const, loop, when
from tvm_scan.schedules.common.lanes import decode_lanes, guard_of
from tvm_scan.schedules.common.phases import Phases
from tvm_scan.schedules.common.replica import Replica
from tvm_scan.schedules.common.result import Built
from tvm_scan.schedules.common.state_reduction import StateReduction, reduction_of
from tvm_scan.schedules.common.state_split import StateSplit, split_states
from tvm_scan.schedules.gpu.thread.plans import WalkPlan
from tvm_scan.schedules.gpu.walk.chunk_carries import carries_of_lanes, carries_of_states
from tvm_scan.schedules.gpu.walk.shared_lanes import SharedThreads, Walk
from tvm_scan.schedules.gpu.walk.time_cut import TimeCut


def build_chunks(recurrence: Recurrence, plan: WalkPlan, cut: TimeCut) -> Built:
    """Three kernels for each level of the carries, the replay last; see the module."""
    kind = _SharedChunks if plan.splits_steps else _Chunks
    return kind(recurrence, plan, cut).build()


class _Chunks(Phases):
    """The three kernels where every lane has one thread."""

    def __init__(self, recurrence: Recurrence, plan: WalkPlan, cut: TimeCut) -> None:
        super().__init__(recurrence)
        self.plan, self.cut = plan, cut
        self.allocate("chunk", [cut.count - 1, self.rows], [cut.count, self.rows])

    def _is_last(self, chunk: Var) -> Any:
        return tirx.EQ(chunk, int_const(self.cut.count - 1, chunk))

    def _kernel_of(
        self, name: str, chunks: int, parts: Any, reads: list[Var], writes: list[Var]
    ) -> Any:
        """A kernel with ``parts(replica, row, chunk)``, a thread per lane and chunk."""
        row, chunk = tirx.Var("v_row", self.dtype), tirx.Var("v_chunk", "int32")
        lanes = decode_lanes(self.recurrence, row)
        replica = Replica(self.recurrence, lanes, unroll=True)
        stmts, more = parts(replica, row, chunk)
        body = when(guard_of(self.recurrence, lanes), tir.seq(stmts))

        def kernel(inside: Any) -> Kernel:
            return Kernel(name, reads, writes, when(inside, body), [*replica.buffers, *more])

        threads = self.plan.threads_per_block
        return chunks_over(kernel, row, self.rows, chunk, chunks, threads)

    def reduce(self, level: int) -> Any:
        """Kernel 1: the element of every chunk but the last."""

        def parts(replica: Replica, row: Var, chunk: Var) -> tuple[list[Any], list[Var]]:
            held, first = (
                Elements(self.recurrence, "held", [], "local", level),
                self.cut.first(chunk),
            )
            steps = self.cut.steps_of(chunk, not_last=True)
            body = [
                replica.prologue(),
                replica.fetch(self.carries, [chunk, row], range(level)),
                replica.set_identity(held, []),
                loop("t", steps, lambda t: replica.extend(held, [], first + t)),
                replica.copy(self.elements[level], [chunk, row], held, []),
            ]
            return body, held.buffers

        reads = [*self.recurrence.inputs, *self.carries_of(range(level))]
        writes = self.elements[level].buffers
        return self._kernel_of("scan_reduce", self.cut.count - 1, parts, reads, writes)

    def scan(self, level: int) -> Any:
        """Kernel 2: the carry before every chunk."""
        return carries_of_lanes(self, level, self.cut.count)

    def replay(self) -> Any:
        """Kernel 3: the loop body over every chunk, from its carry."""

        def parts(replica: Replica, row: Var, chunk: Var) -> tuple[list[Any], list[Var]]:
            first, levels = self.cut.first(chunk), range(self.recurrence.levels)
            finish = replica.finish()
            body = [
                replica.prologue(),
                replica.fetch(self.carries, [chunk, row], levels),
                loop("t", self.cut.steps_of(chunk), lambda t: replica.step(first + t)),
                None if finish is None else when(self._is_last(chunk), finish),
            ]
            return body, []

        reads = [*self.recurrence.inputs, *self.carries]
        return self._kernel_of(
            "scan_replay", self.cut.count, parts, reads, list(self.recurrence.outputs)
        )


class _SharedChunks(_Chunks):
    """Chunks of a walk in which several threads share the states of a lane."""

    def __init__(self, recurrence: Recurrence, plan: WalkPlan, cut: TimeCut) -> None:
        super().__init__(recurrence, plan, cut)
        self.split = split_states(recurrence)
        reduction = reduction_of(recurrence)
        assert isinstance(reduction, StateReduction), "WalkPlan.check refuses other steps"
        self.reduction = reduction

    def _shared_kernel(
        self,
        name: str,
        chunks: int,
        split: StateSplit,
        parts: Any,
        writes: list[Var],
        more: list[Var],
    ) -> Any:
        """A kernel that walks ``split``, ``parts(walk, row, chunk)`` before and after."""
        threads, chunk = SharedThreads(self.recurrence, self.plan), tirx.Var("v_chunk", "int32")
        reduces = chunks < self.cut.count
        end = self.cut.first(chunk) + self.cut.steps_of(chunk, not_last=reduces)
        walk = Walk(
            self.recurrence, self.plan, threads.lanes, threads.owner, threads.slot, split, end
        )
        first, units = self.cut.units(chunk, walk.unit, not_last=reduces)
        begin, after = parts(walk, threads.row, chunk)

        def kernel(inside: Any) -> Kernel:
            ends = when(inside, after) if after else None
            code = walk.run(inside, threads.any_lane, begin, first, units, ends)
            reads = [*self.recurrence.inputs, *([] if reduces else self.carries)]
            return Kernel(name, reads, writes, code, [*walk.buffers, *more])

        block = self.plan.threads_per_block
        return chunks_over(kernel, threads.slot, threads.count, chunk, chunks, block)

    def reduce(self, level: int) -> Any:
        def parts(walk: Walk, row: Any, chunk: Var) -> tuple[Any, Any]:
            begin, after = [], []
            for i, group in enumerate(self.recurrence.groups):
                index = group.carries[0]
                old = self.recurrence.carries[index].state
                product = self.reduction.products[old]
                cells = [self._own(walk, index, product), self._own(walk, index, old)]
                for (register, at), value in zip(cells, group.algebra.identity(), strict=True):
                    begin.append(
                        walk.each_state(
                            lambda s, r=register, a=at, v=value: tirx.BufferStore(r, v, a(s))
                        )
                    )

                def save(s: Any, i: int = i, cells: Any = cells) -> Any:
                    element = [tirx.BufferLoad(r, at(s)) for r, at in cells]
                    return self.elements[level].store(i, [chunk, row], [walk.state(s)], element)

                after.append(walk.each_state(save))
            return tir.seq(begin), tir.seq(after)

        return self._shared_kernel(
            "scan_reduce",
            self.cut.count - 1,
            self.reduction.split,
            parts,
            self.elements[level].buffers,
            list(self.reduction.gates),
        )

    def _own(self, walk: Walk, index: int, old: Var) -> tuple[Var, Any]:
        """The thread's registers of a carry (or what is as large), and the index of a state."""
        carry = self.recurrence.carries[index]

        def at(s: Any) -> list[Any]:
            table = tir.VarMap((axis.var, s) for axis in carry.state_axes)
            return [tir.substitute(c, table) for c in carry.cell]

        return walk.states[old], at

    def scan(self, level: int) -> Any:
        return carries_of_states(self, self.split, self.cut.count)

    def replay(self) -> Any:
        def parts(walk: Walk, row: Any, chunk: Var) -> tuple[Any, Any]:
            begin = []
            for index, scratch in enumerate(self.carries):
                register, at = self._own(walk, index, self.recurrence.carries[index].state)

                def fetch(s: Any, r: Var = register, a: Any = at, of: Var = scratch) -> Any:
                    return tirx.BufferStore(
                        r, tirx.BufferLoad(of, [chunk, row, walk.state(s)]), a(s)
                    )

                begin.append(walk.each_state(fetch))
            finish = walk.part(self.recurrence.finish)
            return tir.seq(begin), when(self._is_last(chunk), finish) if finish else None

        outputs = list(self.recurrence.outputs)
        return self._shared_kernel("scan_replay", self.cut.count, self.split, parts, outputs, [])
