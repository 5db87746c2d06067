"""The delta rule among the schedules: where a nest that is no scan is one in chunks."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_scan.delta_rule import DeltaRule
from tvm_scan.extraction.delta import extract_delta
from tvm_scan.extraction.threads import is_bound
from tvm_scan.recurrence import Refusal, RefusalKind

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
        The refusal that was given, if the nest is no delta rule either.
    """
    # TVM's own rules see nothing of a nest that is bound to threads by hand.
    if refusal.kind not in _COUPLED and not is_bound(nest):
        return refusal
    delta = extract_delta(func, nest)
    return delta if isinstance(delta, DeltaRule) else refusal


def describe_delta(rule: DeltaRule) -> str:
    """One line for reports."""
    lanes = " x ".join(str(lane.extent) for lane in rule.lanes) or "1"
    return (
        f"delta rule over {rule.time.extent} steps, {lanes} states of "
        f"{rule.rows.extent} x {rule.columns.extent}"
    )
