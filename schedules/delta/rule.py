"""The delta rule among the schedules: where a nest that is no scan is one in chunks."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.target import Target

from tvm_scan.delta_rule import DeltaRule
from tvm_scan.extraction.delta import extract_delta
from tvm_scan.extraction.threads import is_bound
from tvm_scan.recurrence import Refusal, RefusalKind
from tvm_scan.schedules.common.result import Built
from tvm_scan.schedules.delta.cpu import build_delta
from tvm_scan.schedules.delta.gpu import build_delta_blocks, fits_block, why_unfit
from tvm_scan.schedules.delta.walk import walk_of
from tvm_scan.schedules.machine.device import device_of
from tvm_scan.schedules.machine.terms import in_terms_of

__all__ = [
    "as_delta",
    "build_chunks",
    "delta_plan",
    "describe_delta",
    "runs_in_chunks",
    "why_unfit",
]

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


def runs_in_chunks(rule: DeltaRule, target: Target) -> bool:
    """Return whether a target runs a delta rule in chunks."""
    return not device_of(target).is_gpu or fits_block(rule, target) > 0


def build_chunks(rule: DeltaRule, target: Target) -> Built | None:
    """Statements that run chunks of steps as matrix products; None where there are none.

    Parameters
    ----------
    rule : DeltaRule
        What to build.
    target : tvm.target.Target
        Where it will run.

    Returns
    -------
    Built or None
    """
    if not runs_in_chunks(rule, target):
        return None
    device = device_of(target)
    built = (build_delta_blocks if device.is_gpu else build_delta)(rule, target)
    return Built([in_terms_of(device, nest) for nest in built.nests], built.allocs)


def describe_delta(rule: DeltaRule) -> str:
    """One line for reports."""
    lanes = " x ".join(str(lane.extent) for lane in rule.lanes) or "1"
    return (
        f"delta rule over {rule.time.extent} steps, {lanes} states of "
        f"{rule.rows.extent} x {rule.columns.extent}"
    )


def delta_plan(rule: DeltaRule, target: Target) -> str:
    """Describe how a delta rule runs on a target."""
    device = device_of(target)
    if not device.is_gpu:
        return str(walk_of(rule, target))
    steps = fits_block(rule, target)
    if steps:
        return f"{device.plans}/matrix products in chunks of {steps} steps, a block for 32 columns"
    return f"{device.plans}/one thread for each column"
