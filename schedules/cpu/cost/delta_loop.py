"""Cost of the loop of a delta rule as LLVM compiles it."""

from __future__ import annotations

from tvm_scan import tir
from tvm_scan.delta_rule import DeltaRule
from tvm_scan.schedules.common.sizes import known_extent, known_rows
from tvm_scan.schedules.machine.cpu_cost import CpuWork

#: Cycles of a cell of the state and step: of a product with the state, whose sum waits for the one
#: before it, and of a cell that is written.
_READ, _WRITTEN = 4.0, 2.0


def delta_loop_work(rule: DeltaRule, steps: int | None = None) -> CpuWork:
    """One core, cell by cell.

    Parameters
    ----------
    rule : DeltaRule
        What runs.
    steps : int, optional
        Number of steps where it is not known.
    """
    length = known_extent(rule.time.extent) if steps is None else steps
    rows, columns = known_extent(rule.rows.extent), known_extent(rule.columns.extent)
    cells = float(known_rows(rule) * rows * columns)
    reading = len(rule.reading) + len(rule.reads)
    each = _READ * reading + _WRITTEN * len(rule.terms)
    size = tir.byte_size(rule.dtype)
    tokens = known_rows(rule) * length * 2 * (rows + columns) * size
    moved = 3 * cells * size + tokens
    return CpuWork(cells * length * each, 1.0, 0.0, moved=moved, footprint=moved)
