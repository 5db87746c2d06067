"""Plans for tests: the same decisions in another schedule."""

from __future__ import annotations

from typing import Any

from tvm_scan import ScanPlan

__all__ = ["in_schedule"]


def in_schedule(plan: ScanPlan, algorithm: str, **changes: Any) -> ScanPlan:
    """Return a plan of another schedule of the device, with the decisions that both have."""
    known = ScanPlan.of(plan.device, algorithm).decisions()
    kept = {name: getattr(plan, name) for name in plan.decisions() if name in known}
    return ScanPlan.of(plan.device, algorithm, **{**kept, **changes})
