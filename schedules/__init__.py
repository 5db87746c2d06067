"""Schedules: the plan, the choice of one, and the primitive that applies it.

Reading order: ``analysis`` (what each nest of a function is), ``plan`` (the decisions), ``choose``
(a plan without tuning), ``primitive`` (check, build, replace) with ``splice`` (surgery on the
schedule), ``registry`` (the schedules, which stand
in ``cpu`` and ``gpu``) on top of ``common`` (the statements of a recurrence), ``machine`` (what a
target has: its ``device`` is a row, its ``machine`` the numbers), ``delta`` (the delta rule),
``nests`` and ``function`` (a whole function), ``launch`` (kernels for which TVM has no runtime),
``verification`` (a scan beside its loop), ``dispatch`` (several plans in one function),
``calibration`` (the constants of this machine, measured).
"""

from tvm_scan._guard import ensure_compatible

ensure_compatible()

from tvm_scan.schedules.associative import associative_scan  # noqa: E402
from tvm_scan.schedules.choose.default import default_plan  # noqa: E402
from tvm_scan.schedules.choose.plan_of import plan_of  # noqa: E402
from tvm_scan.schedules.dispatch import dispatch_by_length  # noqa: E402
from tvm_scan.schedules.function import parallelize  # noqa: E402
from tvm_scan.schedules.plan import ScanPlan  # noqa: E402
from tvm_scan.schedules.primitive import expand_scans, parallel_scan  # noqa: E402
from tvm_scan.schedules.registry import register  # noqa: E402
from tvm_scan.schedules.verification.verify import verify  # noqa: E402

__all__ = [
    "ScanPlan",
    "associative_scan",
    "default_plan",
    "dispatch_by_length",
    "expand_scans",
    "parallel_scan",
    "parallelize",
    "plan_of",
    "register",
    "verify",
]
