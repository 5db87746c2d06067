"""The functions of a model that a search is worth: those that a database will be asked for."""

from __future__ import annotations

from tvm import tirx
from tvm.ir import IRModule
from tvm.target import Target

from tvm_scan import tir
from tvm_scan.annotations import IS_SCHEDULED
from tvm_scan.relax.findings import FindScans
from tvm_scan.relax.fuse.fuse_scans import FuseScans
from tvm_scan.relax.operators import LegalizeScans


def scan_tasks(
    mod: IRModule, target: Target | None = None
) -> tuple[dict[str, tirx.PrimFunc], dict[str, tirx.PrimFunc]]:
    """Functions with a recurrence, as the pipeline will look them up.

    Parameters
    ----------
    mod : IRModule
        A Relax module, as imported.
    target : tvm.target.Target, optional
        What it is compiled for, on which depends what is fused; this machine's CPU if not given.

    Returns
    -------
    tasks : dict of str to PrimFunc
        For ``tvm_scan.meta.tune``.
    symbolic : dict of str to PrimFunc
        Those with symbolic extents, which cannot be measured.
    """
    legal = FuseScans(target)(LegalizeScans()(mod))
    tasks: dict[str, tirx.PrimFunc] = {}
    symbolic: dict[str, tirx.PrimFunc] = {}
    for report in FindScans(legal):
        func = legal[report.name]
        if not report.accepted or (func.attrs or {}).get(IS_SCHEDULED, False):
            continue
        constant = all(
            tir.as_int(extent) is not None for p in func.params for extent in tir.shape_of(p)
        )
        (tasks if constant else symbolic)[report.name] = func
    return tasks, symbolic
