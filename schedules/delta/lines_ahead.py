"""Lines that a walk of a delta rule needs some steps later, and asks for beforehand.

A matrix's cells of a step lie far from those of the next one, where no prefetcher looks for them:
512 steps of 32 x 128 x 128 took two cores of a Cascade Lake 20.8 ms, and so 12.4.
`tvm_scan.loops.delta_walk` does the same in the loops of torch's functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.delta_rule import DeltaRule
from tvm_scan.extraction.nest import linear_in
from tvm_scan.loops.delta_walk import AHEAD
from tvm_scan.schedules.common.branches import unconditional_loads
from tvm_scan.schedules.common.ir import int_const
from tvm_scan.schedules.cpu.transpose import LINE_BYTES
from tvm_scan.schedules.delta.memory_map import MemoryMap


class LinesAhead:
    """Lines that a task asks for.

    Parameters
    ----------
    rule : DeltaRule
        What walks.
    memory : MemoryMap
        The cells of the task.
    columns : int
        Columns of the task.
    """

    def __init__(self, rule: DeltaRule, memory: MemoryMap, columns: int) -> None:
        self.rule, self.memory = rule, memory
        terms = rule.terms
        of_rows: list[Any] = [rule.gate, *(e for term in terms for e in (term.into, term.source))]
        of_rows += [read.weight for read in rule.reads]
        of_columns = [rule.column_gate, *(e for term in terms for e in (term.rate, term.drive))]
        #: Cells that are read, and that are written: each with its axis and the cells along it.
        self.read = [
            *self._of(of_rows, rule.rows.var, int(rule.rows.extent)),
            *self._of(of_columns, rule.columns.var, columns),
        ]
        stored = (
            self._cells(store.buffer, store.index, rule.columns.var, columns)
            for store in rule.stores
        )
        self.written = [row for row in stored if row]

    def _of(self, exprs: Sequence[Any], axis: Var, extent: int) -> list[tuple[Any, Var, int]]:
        loads = [x for e in exprs if e is not None for x in unconditional_loads(e)]
        inner = tir.variables_bound(tir.seq([tirx.Evaluate(e) for e in exprs if e is not None]))
        free = (x for x in loads if not any(v in inner for v in tir.variables(x).keys()))
        rows = (self._cells(x.source, x.indices, axis, extent) for x in tir.each_once(free))
        return [row for row in rows if row]

    def _cells(
        self, buffer: Var, index: Any, axis: Var, extent: int
    ) -> tuple[Any, Var, int] | None:
        """Return cells that lie side by side, or one that all share; None of others."""
        if not tir.contains_var(list(index), [self.rule.time.var]):
            return None
        last = linear_in(index[-1], axis)
        if last is None or tir.contains_var(list(index[:-1]), [axis]):
            return None
        cell = tirx.BufferLoad(buffer, list(index))
        return (cell, axis, 1) if not last[0] else (cell, axis, extent) if last[0] == 1 else None

    def ask(self, time: Any, part: Any, parts: int) -> Any:
        """Return statements that ask for a share of the lines of a step some steps later.

        Parameters
        ----------
        time : Expr
            The step before.
        part, parts : Expr and int
            Which of how many shares.
        """
        last = self.memory.at(self.rule.time.extent) - int_const(1, time)
        later = tirx.Min(time + int_const(AHEAD, time), last)
        kinds = [(self.read, False), (self.written, True)]
        return tir.seq(
            self._lines(row, later, part, parts, written) for rows, written in kinds for row in rows
        )

    def _lines(
        self, row: tuple[Any, Var, int], later: Any, part: Any, parts: int, written: bool
    ) -> Any:
        cell, axis, extent = row
        each = LINE_BYTES // tir.byte_size(tir.dtype_of(cell))
        lines = -(-extent // (each * parts))

        def line(n: int) -> Any:
            at: Any = (part * lines + n) * each
            if lines * parts * each > extent:
                at = tirx.Min(at, int_const(extent - 1, part))
            where = {"column" if axis.same_as(self.rule.columns.var) else "row": at}
            asked = self.memory.at(cell, t=later, **where)
            return tirx.Evaluate(tir.prefetch(asked, cache=1, written=written))

        return tir.seq(line(n) for n in range(lines))
