"""Schedules: the plan, its default, the builders, and the primitive that applies them.

Reading order: ``plan`` (the decisions), ``default`` (a plan without tuning), ``primitive``
(check, build, replace), ``replica`` (a recurrence's statements, once per use), ``cpu`` and
``cuda``, ``cuda_shared_lanes``, ``cuda_chunks``, ``cuda_three_phase`` and ``cuda_single_pass`` (the
builders), ``block_trees`` (how threads exchange), ``cuda_model`` (costs on paper), ``splice``
(surgery on the schedule),
``verification`` and ``law_checks`` (a scan beside its loop, an algebra beside its laws),
``shape_key``, ``nearest`` and ``shipped`` (plans that were measured, by shape), ``dispatch``
(several plans in one function).
"""

from tvm_scan._guard import ensure_compatible

ensure_compatible()

from tvm_scan.schedules.associative import associative_scan  # noqa: E402
from tvm_scan.schedules.default import default_plan  # noqa: E402
from tvm_scan.schedules.plan import ScanPlan  # noqa: E402
from tvm_scan.schedules.primitive import expand_scans, parallel_scan, parallelize  # noqa: E402
from tvm_scan.schedules.verification import verify  # noqa: E402

__all__ = [
    "ScanPlan",
    "associative_scan",
    "default_plan",
    "expand_scans",
    "parallel_scan",
    "parallelize",
    "verify",
]
