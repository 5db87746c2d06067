"""Arithmetic of a plan: operations on floats and exponentials, counted in the step's program."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import tirx
from tvm.ir import Call, Var
from tvm.target import Target

from tvm_scan import tir
from tvm_scan.algebra.literal import is_float
from tvm_scan.delta_rule import DeltaRule, TimeLoop
from tvm_scan.schedules.common.sizes import known_extent, known_rows
from tvm_scan.schedules.machine.machine import Machine
from tvm_scan.schedules.plan import ScanPlan

_OPERATORS = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min)
#: Calls that are exponentials or as dear as one.
_EXPONENTIALS = ("exp", "exp2", "exp10", "log", "log2", "log10", "log1p", "tanh", "sigmoid", "pow")


@dataclass(frozen=True)
class Arithmetic:
    """Arithmetic of a plan.

    Attributes
    ----------
    step_flops, step_exps : int
        Operations on floats, and exponentials, of one step of one lane as written.
    combine_flops : int
        Of one combination of two elements.
    flops, exps : float
        Of the whole plan, repeated steps and combinations included.
    intensity : float
        Operations to a byte of main memory.
    """

    step_flops: int
    step_exps: int
    combine_flops: int
    flops: float
    exps: float
    intensity: float


def arithmetic_of(plan: ScanPlan, target: Target, recurrence: TimeLoop) -> Arithmetic:
    """Count what a plan computes.

    Parameters
    ----------
    plan : ScanPlan
        A plan that fits.
    target : tvm.target.Target
        What it is for.
    recurrence : Recurrence or DeltaRule
        What runs. Extents that are symbolic are taken as large.
    """
    flops, exps = _of_step(recurrence)
    combine = _of_combine(recurrence)
    rows, length = known_rows(recurrence), known_extent(recurrence.time.extent)
    # Chunks are reduced first and replayed from their carries, so that a step is made twice.
    steps = float(rows * length * plan.step_passes)
    total = steps * flops + rows * plan.combines(length) * combine
    moved = plan.cost(recurrence, Machine.of(target)).bytes
    return Arithmetic(flops, exps, combine, total, steps * exps, total / moved if moved else 0.0)


def _of_step(recurrence: TimeLoop) -> tuple[int, int]:
    """Operations and exponentials of one step of one lane, or of a whole state."""
    flops, exps = _count(recurrence.step)
    if not isinstance(recurrence, DeltaRule):
        return flops, exps
    # The vectors and amounts are counted once each, a product of them for every cell.
    reading = sum(term.source is not None for term in recurrence.terms) + len(recurrence.reads)
    rows, columns = known_extent(recurrence.rows.extent), known_extent(recurrence.columns.extent)
    each = 1 + 2 * (reading + len(recurrence.terms))
    return rows * columns * each + rows * flops, rows * exps


def _count(stmt: Any) -> tuple[int, int]:
    """Operations and exponentials of a statement; of a branch the dearer side."""
    if stmt is None:
        return 0, 0
    if isinstance(stmt, tirx.SeqStmt):
        parts = [_count(part) for part in stmt.seq]
        return sum(f for f, _ in parts), sum(e for _, e in parts)
    if isinstance(stmt, tirx.For):
        flops, exps = _count(stmt.body)
        times = tir.as_int(stmt.extent) or 1
        return times * flops, times * exps
    if isinstance(stmt, tirx.IfThenElse):
        return max(_count(stmt.then_case), _count(stmt.else_case))
    flops = sum(is_float(tir.dtype_of(e)) for e in tir.nodes(stmt, *_OPERATORS))
    calls = [call for call in tir.nodes(stmt, Call) if is_float(tir.dtype_of(call))]
    names = [str(tir.call_name(call)).rpartition(".")[2] for call in calls]
    return flops, sum(name in _EXPONENTIALS for name in names)


def _of_combine(recurrence: TimeLoop) -> int:
    """Operations of one combination: the algebra's own, on elements of variables."""
    total = 0
    for group in recurrence.groups:
        cells = prod(known_extent(axis.extent) for axis in recurrence.state_axes(group))
        parts = [
            tuple(Var(f"{side}{i}", tir.prim_type(d)) for i, d in enumerate(group.algebra.dtypes))
            for side in ("earlier", "later")
        ]
        for part in group.algebra.combine(*parts):
            total += cells * _count(tirx.Evaluate(part))[0]
    return total
