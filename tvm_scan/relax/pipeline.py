"""TVM's default pipelines with the scan pass in front."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import tvm
from tvm.ir import IRModule
from tvm.target import Target

from tvm_scan.relax.passes import ParallelizeScans
from tvm_scan.schedules.limits import device_of

__all__ = ["get_pipeline"]


def get_pipeline(target: Target) -> tvm.ir.transform.Pass:
    """Give a pipeline for ``tvm.compile(mod, target, relax_pipeline=...)``.

    Parameters
    ----------
    target : tvm.target.Target
        What is compiled for; of kind llvm or cuda.

    Returns
    -------
    Pass
        ``ParallelizeScans(target)``, then TVM's default pipeline for the target.
    """
    # TVM 0.27 does not export these modules, though its own compile() uses them.
    backend = "cuda" if device_of(target) == "cuda" else "cpu_generic"
    default = import_module(f"tvm.relax.backend.{backend}.pipeline").get_default_pipeline(target)

    @tvm.ir.transform.module_pass(opt_level=0, name="tvm_scan_pipeline")
    def run(mod: IRModule, _context: Any) -> IRModule:
        return default(ParallelizeScans(target)(mod))

    return run
