"""States before the segments of a delta rule on a CPU: ``S[p + 1] = M[p] S[p] + U[p]``.

The middle nest of ``time_cut``: a task has some columns of a state and takes segment after segment.
The sums of some rows and columns are in registers, so that a row of the state before is read once
for all of them; U stands where the state after the segment will.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tvm import tirx
from tvm.ir import Var
from tvm.tirx import ForKind

from tvm_scan import tir
from tvm_scan.delta_rule import DeltaRule
from tvm_scan.schedules.branch import powers
from tvm_scan.schedules.common.ir import Kernel, in_vectors, int_const, local, loop
from tvm_scan.schedules.common.lanes import clear
from tvm_scan.schedules.delta.cpu import over_tasks
from tvm_scan.schedules.delta.memory_map import assign_task, blocks_of
from tvm_scan.schedules.delta.time_cut import TimeCut

if TYPE_CHECKING:
    from tvm_scan.schedules.delta.cpu_plan import DeltaWalk


#: Vectors of sums in registers: as many as hide the latency of a product, and leave room.
_SUMS = 8


def build_carries(rule: DeltaRule, cut: TimeCut, plan: DeltaWalk) -> list[Any]:
    """Return the nests, which leave the state before each segment, and that after time.

    Parameters
    ----------
    rule : DeltaRule
        The whole one.
    cut : TimeCut
        Its passes.
    plan : DeltaWalk
        Columns of a task, strips and vectors.
    """
    return [_Carries(rule, cut, plan, *block).nest() for block in blocks_of(rule, plan.columns)]


class _Carries:
    """One block of columns of one state."""

    def __init__(
        self, rule: DeltaRule, cut: TimeCut, plan: DeltaWalk, first: int, width: int, blocks: int
    ) -> None:
        self.rule, self.cut, self.width, self.plan = rule, cut, width, plan
        self.index, self.rows = tir.dtype_of(rule.time.var), int(rule.rows.extent)
        self.task, self.total, self.memory = assign_task(rule, blocks, width, first)
        self.number = self.task // blocks
        #: The first column of each strip, and its columns: whole ones, and powers of two.
        self.strips: list[tuple[Any, int]] = []
        whole, rest = divmod(width, plan.strip)
        self.whole, self.strip, column = whole, plan.strip, whole * plan.strip
        for size in reversed(powers(1, rest) if rest else []):
            if rest & size:
                self.strips.append((column, size))
                column += size
        self.registers: dict[int, Var] = {}

    def nest(self) -> Any:
        """Return the loop over tasks."""
        rule, cut = self.rule, self.cut
        passes = [
            self._cells(self._begin),
            loop("p", cut.passed, self._pass, dtype=self.index),
            self._cells(self._end) if rule.written_last else None,
        ]
        # Without a use outside the vector loops TVM would shrink these to one cell.
        registers = list(self.registers.values())
        body = tir.seq([clear(registers), *passes])
        reads = [*rule.inputs, cut.products, cut.states]
        kernel = Kernel("delta_carries", reads, [cut.states, *rule.written_last], body, registers)
        return over_tasks(kernel, self.task, self.total, self.plan)

    def _cells(self, make: Callable[[Any, Any], Any]) -> Any:
        """``make(row, column)`` for the cells of the task."""
        return loop(
            "i",
            self.rows,
            lambda i: loop("v", self.width, lambda v: make(i, v), dtype=self.index),
            dtype=self.index,
        )

    def _state(self, segment: Any, row: Any, column: Any) -> list[Any]:
        return [self.number, segment, row, self.memory.origin + column]

    def _begin(self, i: Any, v: Any) -> Any:
        at = self._state(int_const(0, self.index), i, v)
        return tirx.BufferStore(self.cut.states, self.memory.first(i, v), at)

    def _end(self, i: Any, v: Any) -> Any:
        at = self._state(int_const(self.cut.passed, self.index), i, v)
        return self.memory.last(i, v, tirx.BufferLoad(self.cut.states, at))

    def _pass(self, segment: Any) -> Any:
        """Take the columns past a segment."""
        strips = [self._strip(segment, column, size) for column, size in self.strips]
        size = self.strip
        whole = loop(
            "w", self.whole, lambda w: self._strip(segment, w * size, size), dtype=self.index
        )
        return tir.seq([whole, *strips])

    def _strip(self, segment: Any, column: Any, size: int) -> Any:
        """Take the columns of a strip past a segment, some rows at once."""
        vector = min(self.plan.vector, size)
        most = max(1, _SUMS * vector // size)
        together = max(n for n in powers(1, most) if self.rows % n == 0)
        sums = self.registers.get(size)
        if sums is None:
            sums = local(f"sums{size}", [together * size], self.rule.dtype)
            self.registers[size] = sums
        states, after = self.cut.states, segment + 1

        def rows(g: Any) -> Any:
            def over(make: Callable[[Any, Any, Any], Any]) -> Any:
                """``make(row, column, index)`` for the cells of the sums."""

                def row(r: Any) -> Any:
                    def cell(x: Any) -> Any:
                        return make(g * together + r, column + x, [r * size + x])

                    return in_vectors(size, vector, cell, self.index)

                return loop("r", together, row, ForKind.UNROLLED, self.index)

            def begin(i: Any, v: Any, at: Any) -> Any:
                return tirx.BufferStore(sums, tirx.BufferLoad(states, self._state(after, i, v)), at)

            def add(k: Any) -> Any:
                def cell(i: Any, v: Any, at: Any) -> Any:
                    left = tirx.BufferLoad(self.cut.products, [self.number, segment, i, k])
                    right = tirx.BufferLoad(states, self._state(segment, k, v))
                    return tirx.BufferStore(sums, tirx.BufferLoad(sums, at) + left * right, at)

                return over(cell)

            def keep(i: Any, v: Any, at: Any) -> Any:
                value = tirx.BufferLoad(sums, at)
                return tirx.BufferStore(states, value, self._state(after, i, v))

            return tir.seq([over(begin), loop("k", self.rows, add, dtype=self.index), over(keep)])

        return loop("g", self.rows // together, rows, dtype=self.index)
