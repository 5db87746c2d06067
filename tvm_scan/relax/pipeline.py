"""The scan passes, and TVM's default pipelines with them in front."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import IRModule
from tvm.s_tir import dlight
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from tvm_scan.arguments import as_target
from tvm_scan.errors import ScanError
from tvm_scan.meta.store.arguments import as_database
from tvm_scan.relax.fuse.fuse_scans import FuseScans
from tvm_scan.relax.operators import LegalizeScans
from tvm_scan.relax.passes import ParallelizeScans
from tvm_scan.relax.repairs.dtypes import RepairOperators
from tvm_scan.relax.repairs.unlowered import unlowered
from tvm_scan.schedules.choose.arguments import target_for
from tvm_scan.schedules.machine.device import device_of

_LOG = logging.getLogger("tvm_scan")


def scan_passes(target: Target | str | None = None, database: Any = None) -> tvm.ir.transform.Pass:
    """Give the one line to put in front of a pipeline of your own.

    Parameters
    ----------
    target : tvm.target.Target or str, optional
        What is compiled for; of kind llvm, cuda, opencl, webgpu, metal or rocm. The
        current target, else this machine's CPU.
    database : RecordStore, tvm.s_tir.meta_schedule.Database or path, optional
        Tuning records, looked up before the default plans.

    Returns
    -------
    Pass
        ``LegalizeScans()``, ``FuseScans(target, database)``, then
        ``ParallelizeScans(target, database)``.

    Raises
    ------
    ScanError
        If the target is none that scans are scheduled for, or the database is none.
    """
    target, database = as_target(target, "scan_passes"), as_database(database, "scan_passes")
    passes = [
        LegalizeScans(),
        FuseScans(target, database),
        ParallelizeScans(target, database),
    ]
    return tvm.ir.transform.Sequential(passes, name="tvm_scan")


def get_pipeline(target: Target | str | None = None, database: Any = None) -> tvm.ir.transform.Pass:
    """Give a pipeline for ``tvm.compile(mod, target, relax_pipeline=...)``.

    Parameters
    ----------
    target : tvm.target.Target or str, optional
        What is compiled for; of kind llvm, cuda, opencl, webgpu, metal or rocm. The
        current target, else this machine's CPU.
    database : RecordStore, tvm.s_tir.meta_schedule.Database or path, optional
        Tuning records, looked up before the default plans.

    Returns
    -------
    Pass
        ``scan_passes(target, database)``, then TVM's default pipeline for the target, in which
        a schedule rule that fails on a function leaves it to the next. Operators that TVM lowers
        and has no code for (arithmetic on bool, functions of halves) are rewritten first.

    Raises
    ------
    ScanError
        If the target is none that scans are scheduled for, or the database is none; when it runs,
        if an operator of the model cannot be lowered, which it names.
    """
    target = target_for(target, None, "get_pipeline")
    database = as_database(database, "get_pipeline")
    default = _default_pipeline(target)

    @tvm.ir.transform.module_pass(opt_level=0, name="tvm_scan_pipeline")
    def run(mod: IRModule, _context: Any) -> IRModule:
        mod = RepairOperators()(mod)
        try:
            return default(scan_passes(target, database)(mod))
        except ScanError:
            raise
        except Exception as error:
            named = unlowered(mod)
            if not named:
                raise
            raise ScanError(
                "get_pipeline: expected operators that TVM lowers, got\n"
                + "\n".join(f"  {line}" for line in named)
                + "\nreplace these in the model"
            ) from error

    return run


def _default_pipeline(target: Target) -> Any:
    # TVM 0.27 does not export these modules, though its own compile() uses them.
    device = device_of(target)
    backend = import_module(f"tvm.relax.backend.{device.backend}.pipeline")
    if not device.is_gpu:
        return backend.get_default_pipeline(target)
    return _within(
        target,
        [
            *_operator_passes(target),
            *backend.dataflow_lower_passes(target),
            *backend.finalize_passes(target),
        ],
    )


def scheduled_operators(mod: IRModule, target: Target, database: Any) -> IRModule:
    """Make every operator of a model a call of a scheduled function, as ``get_pipeline`` does.

    Parameters
    ----------
    mod : IRModule
        As imported.
    target : tvm.target.Target
        Of a GPU.
    database : Database or None
        Tuning records.

    Returns
    -------
    IRModule
        Before what is the virtual machine's: memory is not planned.
    """
    scheduled = scan_passes(target, database)(RepairOperators()(mod))
    return _within(target, _operator_passes(target))(scheduled)


def _operator_passes(target: Target) -> list[Any]:
    """TVM's passes from operators to scheduled functions."""
    backend = import_module(f"tvm.relax.backend.{device_of(target).backend}.pipeline")
    return [
        *backend.library_dispatch_passes(target),
        *(_tolerant(each) for each in backend.legalize_passes(target)),
    ]


def _within(target: Target, passes: list[Any]) -> Any:
    def run(mod: IRModule) -> IRModule:
        with target:
            return tvm.ir.transform.Sequential(passes)(mod)

    return run


def _tolerant(each: Any) -> Any:
    """TVM's schedule rules, each but the last of which may fail on a function; others as they are.

    The rule for products of a matrix and a vector of TVM 0.27 raises on some shapes of real models
    rather than leave them to the next rule.
    """
    if each.info.name != "ApplyDefaultSchedule":
        return each
    rules = list(each.rules)
    return dlight.ApplyDefaultSchedule(*(_Tolerant(rule) for rule in rules[:-1]), rules[-1])


class _Tolerant(ScheduleRule):
    def __init__(self, rule: ScheduleRule) -> None:
        self._rule = rule

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> Any:
        try:
            return self._rule.apply(func, target, tunable)
        except Exception as error:  # rules raise whatever their assertions and primitives raise
            name = type(self._rule).__name__
            _LOG.info("TVM's rule %s fails on a function, the next one is tried: %s", name, error)
            return None
