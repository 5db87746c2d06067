"""Lines that a walk of a delta rule needs some steps later, and asks for beforehand.

A matrix's cells of a step lie far from those of the next one, where no prefetcher looks for them:
512 steps of 32 x 128 x 128 took two cores of a Cascade Lake 20.8 ms, and so 12.4.
`tvm_scan.loops.delta_walk` does the same in the loops of torch's functions.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_scan import tir
from tvm_scan.delta_rule import DeltaRule
from tvm_scan.extraction.nest import linear_in
from tvm_scan.loops.delta_lines import AHEAD, lines_of_share
from tvm_scan.schedules.common.branches import unconditional_loads
from tvm_scan.schedules.common.ir import int_const
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
        self.axes = [
            ("row", rule.rows.var, int(rule.rows.extent)),
            ("column", rule.columns.var, columns),
        ]
        inner = tir.variables_bound(rule.step)
        loads = tir.each_once(unconditional_loads(rule.step))
        read = [x for x in loads if not any(v in inner for v in tir.variables(x).keys())]
        written = [tirx.BufferLoad(store.buffer, list(store.index)) for store in rule.stores]
        cells = [*((cell, False) for cell in read), *((cell, True) for cell in written)]
        #: Cells, the axis along which more of them lie side by side, how many, and whether they
        #: are written.
        self.rows = [(c, *along, w) for c, w in cells if (along := self._along(c)) is not None]

    def _along(self, cell: Any) -> tuple[str, int] | None:
        """Return the axis along which cells of a step lie side by side; None where they do not.

        A cell that all rows and columns share lies alone.
        """
        index = list(cell.indices)
        if not tir.contains_var(index, [self.rule.time.var]):
            return None
        axes = [axis for axis in self.axes if tir.contains_var(index, [axis[1]])]
        if not axes:
            return "row", 1
        (name, var, extent), *others = axes
        last = linear_in(index[-1], var)
        apart = others or tir.contains_var(index[:-1], [var])
        return (name, extent) if last is not None and last[0] == 1 and not apart else None

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
        stmts = []
        for cell, axis, extent, written in self.rows:
            lines, start = lines_of_share(extent, tir.dtype_of(cell), part, parts)
            for n in range(lines):
                asked = self.memory.at(cell, t=later, **{axis: start(n)})
                stmts.append(tirx.Evaluate(tir.prefetch(asked, cache=1, written=written)))
        return tir.seq(stmts)
