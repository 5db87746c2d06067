"""Passes of model compilation: find the recurrences of a Relax module and schedule them.

Importing it calls ``register_gradients``, which replaces TVM's gradient of ``relax.cumsum`` and
gives ``relax.cumprod`` one.
"""

from tvm_scan._guard import ensure_compatible

ensure_compatible()

from tvm_scan.relax.export import export  # noqa: E402
from tvm_scan.relax.findings import FindScans, ScanReport  # noqa: E402
from tvm_scan.relax.fuse.fuse_scans import FuseScans  # noqa: E402
from tvm_scan.relax.gradients import register_gradients  # noqa: E402
from tvm_scan.relax.import_onnx.frontend import from_onnx  # noqa: E402
from tvm_scan.relax.import_torch.frontend import from_exported  # noqa: E402
from tvm_scan.relax.import_torch.operators import loop_converter  # noqa: E402
from tvm_scan.relax.import_torch.whole_scans import whole_scans  # noqa: E402
from tvm_scan.relax.operators import LegalizeScans  # noqa: E402
from tvm_scan.relax.passes import (  # noqa: E402
    ExpandScans,
    ParallelizeScans,
)
from tvm_scan.relax.pipeline import get_pipeline, scan_passes  # noqa: E402
from tvm_scan.relax.rule import ScanScheduleRule  # noqa: E402

__all__ = [
    "ExpandScans",
    "FindScans",
    "FuseScans",
    "LegalizeScans",
    "ParallelizeScans",
    "ScanReport",
    "ScanScheduleRule",
    "export",
    "from_exported",
    "from_onnx",
    "get_pipeline",
    "loop_converter",
    "register_gradients",
    "scan_passes",
    "whole_scans",
]

register_gradients()
