"""States before the segments of a delta rule on a GPU: ``S[p + 1] = M[p] S[p] + U[p]``.

The middle kernel of ``time_cut``: a block has some columns of a state in shared memory, and takes
segment after segment.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_scan import tir
from tvm_scan.algebra.literal import zero
from tvm_scan.delta_rule import DeltaRule
from tvm_scan.schedules.common.ir import int_const, local, loop, when
from tvm_scan.schedules.delta.gpu_block import COLUMNS, BlockOfColumns
from tvm_scan.schedules.delta.memory_map import assign_task
from tvm_scan.schedules.delta.time_cut import TimeCut
from tvm_scan.schedules.gpu.thread.barriers import all_wait

#: Cells of a thread that are summed at once: each row of the products is a load of its own, a cell
#: of the state is one for all of them.
_TOGETHER = 8


def build_carries(rule: DeltaRule, cut: TimeCut, threads: int) -> Any:
    """Return the grid, which leaves the state before each segment, and that after time.

    Parameters
    ----------
    rule : DeltaRule
        The whole one.
    cut : TimeCut
        Its passes.
    threads : int
        Of a block: whole warps.
    """
    return _Carries(rule, cut, threads).nest()


class _Carries(BlockOfColumns):
    def __init__(self, rule: DeltaRule, cut: TimeCut, threads: int) -> None:
        self.rule, self.cut, self.threads = rule, cut, threads
        self.index, dtype = tir.dtype_of(rule.time.var), rule.dtype
        self.rows, self.columns = int(rule.rows.extent), int(rule.columns.extent)
        self.thread = tirx.Var("v_thread", self.index)
        across = -(-self.columns // COLUMNS)
        self.task, self.total, self.memory = assign_task(rule, across, COLUMNS)
        self.number = self.task // across
        self.cells = self.rows * COLUMNS
        self.state = local("matrix", [self.cells], dtype, "shared")
        self.slots = -(-self.cells // threads)
        self.next = local("next", [self.slots], dtype)
        self.buffers = [self.state, self.next]

    def nest(self) -> Any:
        """Return the loops over blocks and threads."""
        rule, cut = self.rule, self.cut
        body = tir.seq(
            [
                self.share(self.cells, self._begin),
                all_wait(),
                loop("p", cut.passed, self._pass, dtype=self.index),
                self.share(self.cells, self._end) if rule.written_last else None,
            ]
        )
        return self.grid("delta_carries", body, [cut.states, *rule.written_last])

    def _at(self, number: Any) -> tuple[Any, Any]:
        return number // COLUMNS, number % COLUMNS

    def _state(self, segment: Any, row: Any, column: Any) -> list[Any]:
        return [self.number, segment, row, self.memory.origin + column]

    def _begin(self, number: Any, _: Any) -> Any:
        i, v = self._at(number)
        first = self.memory.first(i, v)
        value = tirx.op.if_then_else(self.exists(v), first, zero(self.rule.dtype))
        # Not read back from the block's copy: TVM would put a barrier under the condition.
        at = self._state(int_const(0, self.index), i, v)
        store = when(self.exists(v), tirx.BufferStore(self.cut.states, first, at))
        return tir.seq([tirx.BufferStore(self.state, value, [number]), store])

    def _pass(self, segment: Any) -> Any:
        """Take the state past a segment; the new one is written once all have read the old one."""
        cut, after = self.cut, segment + 1
        column = self.thread % COLUMNS

        def row_of(slot: int) -> Any:
            """Row of a thread's cell; of one that is not there, the last row."""
            row = (self.thread + slot * self.threads) // COLUMNS
            inside = (slot + 1) * self.threads <= self.cells
            return row if inside else tirx.Min(row, int_const(self.rows - 1, self.index))

        def of_rows(first: int) -> Any:
            rows = {slot: row_of(slot) for slot in range(first, self.slots)[:_TOGETHER]}
            begin = [
                tirx.BufferStore(
                    self.next, tirx.BufferLoad(cut.states, self._state(after, i, column)), [slot]
                )
                for slot, i in rows.items()
            ]

            def add(k: Any) -> Any:
                right = tirx.BufferLoad(self.state, [k * COLUMNS + column])
                stores = []
                for slot, i in rows.items():
                    left = tirx.BufferLoad(cut.products, [self.number, segment, i, k])
                    total = tirx.BufferLoad(self.next, [slot]) + left * right
                    stores.append(tirx.BufferStore(self.next, total, [slot]))
                return tir.seq(stores)

            return tir.seq([*begin, loop("k", self.rows, add, dtype=self.index)])

        def keep(number: Any, slot: Any) -> Any:
            i, v = self._at(number)
            value = tirx.BufferLoad(self.next, [slot])
            stored = tirx.BufferStore(cut.states, value, self._state(after, i, v))
            return when(
                self.exists(v), tir.seq([tirx.BufferStore(self.state, value, [number]), stored])
            )

        sums = tir.seq([of_rows(first) for first in range(0, self.slots, _TOGETHER)])
        return tir.seq(
            [
                when(self.exists(column), sums),
                all_wait(),
                self.share(self.cells, keep),
                all_wait(),
            ]
        )

    def _end(self, number: Any, _: Any) -> Any:
        i, v = self._at(number)
        value = tirx.BufferLoad(self.state, [number])
        return when(self.exists(v), self.memory.last(i, v, value))
