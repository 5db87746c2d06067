"""The delta rule among the schedules: where a nest that is no scan is one in chunks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm import tirx
from tvm.ir import Var
from tvm.s_tir import SBlockRealize

from tvm_scan import tir
from tvm_scan.delta_rule import DeltaRule
from tvm_scan.extraction.array_step import COUPLED_MATRICES
from tvm_scan.extraction.delta import extract_delta
from tvm_scan.extraction.threads import is_bound
from tvm_scan.recurrence import Refusal, RefusalKind
from tvm_scan.schedules.splice import ensure_blocks

#: Refusals of a scan that a delta rule has: its cells depend on each other.
_COUPLED = (RefusalKind.COUPLED_CARRIES, RefusalKind.UNSUPPORTED_BODY, RefusalKind.CROSS_LANE)


def as_delta(func: tirx.PrimFunc, nest: Any, refusal: Refusal) -> DeltaRule | Refusal:
    """The delta rule that a nest is, which was refused as a scan.

    Parameters
    ----------
    func : PrimFunc
        The function.
    nest : Stmt
        One of its nests.
    refusal : Refusal
        Why it is no scan.

    Returns
    -------
    DeltaRule or Refusal
        The refusal that was given, if the nest is no delta rule either, or the one that says
        why two matrices are none; with the nest as two loops over time, if it can be written so.
    """
    # TVM's own rules see nothing of a nest that is bound to threads by hand.
    if refusal.kind not in _COUPLED and not is_bound(nest):
        return refusal
    delta = extract_delta(func, nest)
    # Only the proof of the delta rule has seen two matrices.
    if isinstance(delta, DeltaRule) or delta.fix == COUPLED_MATRICES:
        return delta
    return replace(refusal, loops=delta.loops if refusal.kind in _COUPLED else None)


def with_two_loops(
    func: tirx.PrimFunc, nest: Any, loops: tuple[list[Any], list[Var]]
) -> tirx.PrimFunc:
    """Return a function with a refused nest as two loops over time.

    Parameters
    ----------
    func : PrimFunc
        The function.
    nest : Stmt
        One of its nests.
    loops : tuple of (list of Stmt, list of Var)
        Those of its refusal.
    """
    stmts, buffers = loops
    body = func.body
    assert isinstance(body, SBlockRealize), "a function with blocks has a root block"
    root = body.block
    parts = list(root.body.seq) if isinstance(root.body, tirx.SeqStmt) else [root.body]
    parts = [new for part in parts for new in (stmts if part.same_as(nest) else [part])]
    root = tir.block_with(root, body=tir.seq(parts), alloc_buffers=[*root.alloc_buffers, *buffers])
    return ensure_blocks(func.with_body(SBlockRealize([], True, root)))


def describe_delta(rule: DeltaRule) -> str:
    """One line for reports."""
    lanes = " x ".join(str(lane.extent) for lane in rule.lanes) or "1"
    return (
        f"delta rule over {rule.time.extent} steps, {lanes} states of "
        f"{rule.rows.extent} x {rule.columns.extent}"
    )
