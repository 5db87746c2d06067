"""Inside model compilation: find the recurrences of a Relax module and schedule them."""

from tvm_scan._guard import ensure_compatible

ensure_compatible()

from tvm_scan.relax.passes import FindScans, ParallelizeScans, ScanReport  # noqa: E402
from tvm_scan.relax.pipeline import get_pipeline  # noqa: E402
from tvm_scan.relax.rule import ScanScheduleRule  # noqa: E402

__all__ = ["FindScans", "ParallelizeScans", "ScanReport", "ScanScheduleRule", "get_pipeline"]
