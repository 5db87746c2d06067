"""Rows of ``bench.gpu``: times of plans of ours and of peers, or why there are none."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tvm.target import Target

from bench.gpu_cases import Case
from bench.gpu_checks import Clock
from bench.gpu_ours import Times, plan_for
from bench.gpu_worker import Worker
from tvm_scan import ScanPlan
from tvm_scan.errors import PlanError
from tvm_scan.schedules.machine.machine import Machine

__all__ = ["Timing"]

#: Seconds that a call of a ladder's plan may take by the model: a row of 2^28 steps by one thread
#: would take half a minute.
_SLOW = 0.25


@dataclass(frozen=True)
class Timing:
    """Who times cases, on what, and for how long.

    Attributes
    ----------
    worker : Worker
        Who is asked.
    target : tvm.target.Target
        The GPU.
    clock : Clock
        When to begin nothing more.
    copy : float
        Bytes per second of a copy.
    repeat : int
        Calls of each.
    patience : float
        Seconds after which a plan or a peer is given up.
    """

    worker: Worker
    target: Target
    clock: Clock
    copy: float
    repeat: int
    patience: float

    @property
    def seconds(self) -> float:
        """For what begins now."""
        return min(self.patience, max(0.0, self.clock.left))

    def plans(self, case: Case, plans: dict[str, ScanPlan | None]) -> list[dict[str, Any]]:
        """Times of plans of ours; a plan of a ladder is a step."""
        rows = []
        for name, plan in plans.items():
            if self.clock.over():
                break
            more: dict[str, Any] = {"step": True} if plan is not None else {}
            found: Times | str = self._too_slow(case, plan)
            if not found:
                found = self.worker.plan_times(case, plan, self.repeat, self.seconds)
            if plan is None and isinstance(found, Times):
                more["plan"] = str(plan_for(case, plan, self.target))
            rows.append(_row(case, name, found, self.copy, **more))
        return rows

    def _too_slow(self, case: Case, plan: ScanPlan | None) -> str:
        """Why a plan of a ladder is not timed; empty if it is."""
        if plan is None:
            return ""
        recurrence = case.recurrence
        try:
            plan.check(self.target, recurrence)
        except PlanError as refusal:
            return str(refusal)
        seconds = plan.cost(recurrence, Machine.of(self.target)).seconds
        return f"not timed: {seconds:.1f} s by the model" if seconds > _SLOW else ""

    def peers(self, case: Case) -> list[dict[str, Any]]:
        """Times of its peers."""
        rows = []
        for name in self.worker.names(case.family):
            if self.clock.over():
                break
            found = self.worker.peer_times(case, name, self.repeat, self.seconds)
            rows.append(_row(case, name, found, self.copy, peer=True))
        return rows

    def gelu(self, count: int) -> list[dict[str, Any]]:
        """The ladder of GELU."""
        found = self.worker.gelu_rows(count, self.repeat, self.copy, self.seconds)
        if isinstance(found, str):
            return [{"case": f"gelu {count} float32", "name": "ladder", "failed": found}]
        return found


def _row(case: Case, name: str, found: Times | str, copy: float, **more: Any) -> dict[str, Any]:
    row = {"case": str(case), "name": name, **more}
    if isinstance(found, str):
        return {**row, "failed": found}
    rate = case.moved / found.median
    return {**row, **asdict(found), "gbps": rate / 1e9, "of_copy": rate / copy}
