"""The scan passes, and TVM's default pipelines with them in front."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import tvm
from tvm.ir import IRModule
from tvm.target import Target

from tvm_scan.relax.findings import Findings
from tvm_scan.relax.fuse import fuse_pass
from tvm_scan.relax.operators import LegalizeScans
from tvm_scan.relax.passes import parallelize_pass
from tvm_scan.schedules.limits import device_of

__all__ = ["get_pipeline", "scan_passes"]


def scan_passes(target: Target, database: Any = None) -> tvm.ir.transform.Pass:
    """Give the one line to put in front of a pipeline of your own.

    Parameters
    ----------
    target : tvm.target.Target
        What is compiled for; of kind llvm or cuda.
    database : tvm.s_tir.meta_schedule.Database, optional
        Tuning records, looked up before the default plans.

    Returns
    -------
    Pass
        ``LegalizeScans()``, ``FuseScans(target, database)``, then
        ``ParallelizeScans(target, database)``.
    """
    findings = Findings()
    passes = [
        LegalizeScans(),
        fuse_pass(target, database, findings),
        parallelize_pass(target, database, findings),
    ]
    return tvm.ir.transform.Sequential(passes, name="tvm_scan")


def get_pipeline(target: Target, database: Any = None) -> tvm.ir.transform.Pass:
    """Give a pipeline for ``tvm.compile(mod, target, relax_pipeline=...)``.

    Parameters
    ----------
    target : tvm.target.Target
        What is compiled for; of kind llvm or cuda.
    database : tvm.s_tir.meta_schedule.Database, optional
        Tuning records, looked up before the default plans.

    Returns
    -------
    Pass
        ``scan_passes(target, database)``, then TVM's default pipeline for the target.
    """
    # TVM 0.27 does not export these modules, though its own compile() uses them.
    backend = "cuda" if device_of(target) == "cuda" else "cpu_generic"
    default = import_module(f"tvm.relax.backend.{backend}.pipeline").get_default_pipeline(target)

    @tvm.ir.transform.module_pass(opt_level=0, name="tvm_scan_pipeline")
    def run(mod: IRModule, _context: Any) -> IRModule:
        return default(scan_passes(target, database)(mod))

    return run
