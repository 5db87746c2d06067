"""Several plans in one function: which one runs is decided by the length, at run time."""

from __future__ import annotations

from collections.abc import Sequence

import tvm_ffi
from tvm import tirx
from tvm.ir import Var
from tvm.s_tir import SBlock, SBlockRealize
from tvm.target import Target

from tvm_scan import tir
from tvm_scan.arguments import as_func
from tvm_scan.delta_rule import TimeLoop
from tvm_scan.errors import PlanError
from tvm_scan.schedules.analysis import analyse
from tvm_scan.schedules.choose.arguments import target_for
from tvm_scan.schedules.nests import schedule_nests
from tvm_scan.schedules.plan import ScanPlan

#: Plans by the largest length that they are for, ascending; None for all that are longer.
Cases = Sequence[tuple[int | None, ScanPlan]]


def dispatch_by_length(func: tirx.PrimFunc, target: Target | str, cases: Cases) -> tirx.PrimFunc:
    """Hold several plans in one function, which branches on its length.

    Parameters
    ----------
    func : PrimFunc
        Its recurrences and delta rules have one length, which may be symbolic.
    target : tvm.target.Target or str
        What it is compiled for. On a GPU the host takes the branch, around the launches; TVM puts
        no barrier into a branch, so that only plans without any (``cuda/lanes``) can be held.
    cases : sequence of (int or None, ScanPlan)
        Plans with the largest length that each is for, ascending; the last one has None.

    Returns
    -------
    PrimFunc
        The scheduled function.

    Raises
    ------
    RefusalError
        If the function has no recurrence and no delta rule.
    PlanError
        If the cases are not ascending, or a plan does not fit.
    ScanError
        If it is no function, or no target.

    Notes
    -----
    After, for ``[(2048, cpu/sequential()), (None, cpu/three_phase(chunks=8))]``::

        if L <= 2048:
            for t in range(L):  ...
        else:
            for task in T.parallel(8):  ...
    """
    func = as_func(func, "dispatch_by_length")
    target = target_for(target, None, "dispatch_by_length")
    borders = [border for border, _ in cases]
    inner = [border for border in borders[:-1] if border is not None]
    if len(inner) != len(borders) - 1 or borders[-1] is not None or inner != sorted(set(inner)):
        raise PlanError(
            "dispatch_by_length: expected ascending lengths and None at the end, got "
            f"{borders}; order them"
        )
    barred = [p for _, p in cases if not stands_in_branch(p)]
    if barred and len(cases) > 1:
        raise PlanError(
            "dispatch_by_length: expected CUDA plans without barriers (cuda/lanes), since TVM puts "
            f"none into a branch, got {barred[0]}; compile one function for each range of lengths"
        )
    variants = [schedule_nests(func, target, plan) for _, plan in cases]
    length = _length(analyse(func).accepted)
    last = variants[-1]
    body = last.body
    for border, variant in reversed(list(zip(inner, variants[:-1], strict=True))):
        condition = tirx.LE(length, tirx.IntImm(tir.dtype_of(length), border))
        body = tirx.IfThenElse(condition, _own_copy(variant.body), body)
    if len(variants) > 1:
        body = SBlockRealize([], True, SBlock([], [], [], "root", body))
    return last.with_body(body)


def stands_in_branch(plan: ScanPlan) -> bool:
    """Return whether TVM has no barrier to put into a plan's kernels."""
    return not plan.has_barriers


def _length(recurrences: Sequence[TimeLoop]) -> object:
    extents = [recurrence.time.extent for recurrence in recurrences]
    for other in extents[1:]:
        if not tvm_ffi.structural_equal(extents[0], other):
            raise PlanError(
                f"dispatch_by_length: expected one length, got {extents[0]} and {other}; split "
                "the function"
            )
    return extents[0]


def _own_copy(body: tirx.Stmt) -> tirx.Stmt:
    """The body with variables of its own: TVM wants every one defined once."""
    defined = tir.buffers_allocated(body).keys()
    for block in tir.nodes(body, SBlock):
        defined += [*(axis.var for axis in block.iter_vars), *block.alloc_buffers]
    table = tir.VarMap((var, Var(var.name, var.ty)) for var in defined)
    return tir.substitute(tir.fresh_copy(body), table)
