"""``export``: a compiled model in a folder, for ``tvm_scan.artifact.load``."""

from __future__ import annotations

import json
import logging
import platform
import re
import shutil
from importlib import metadata
from pathlib import Path
from typing import Any

from tvm import relax
from tvm.ir import IRModule
from tvm.support import cc
from tvm.target import Target

from tvm_scan import __version__
from tvm_scan._files import check_folder, write_file, write_library
from tvm_scan.arguments import as_module
from tvm_scan.artifact import FORMAT, MANIFEST, sha256_of
from tvm_scan.artifact_inputs import DEVICE_TYPES
from tvm_scan.cuda_math import build
from tvm_scan.errors import ScanError
from tvm_scan.meta.store.arguments import as_database
from tvm_scan.meta.store.nearest import tuned_function
from tvm_scan.relax.cubins import compiled_kernels, cuda_modules, kernel_format
from tvm_scan.relax.findings import FindScans, number_or_text
from tvm_scan.relax.fuse.fuse_scans import FuseScans
from tvm_scan.relax.operators import LegalizeScans
from tvm_scan.relax.pipeline import get_pipeline
from tvm_scan.schedules.choose.arguments import target_for
from tvm_scan.schedules.choose.plan_of import plan_of
from tvm_scan.schedules.machine.device import device_of

_LOG = logging.getLogger("tvm_scan")
_NEAR = ("of the nearest shape",)


def export(
    mod: IRModule,
    target: Target | str,
    folder: str | Path,
    *,
    database: Any = None,
    linker: str | None = None,
) -> Path:
    """Compile a model and write it with a manifest.

    Parameters
    ----------
    mod : IRModule
        A Relax module, as imported.
    target : tvm.target.Target or str
        What it shall run on; of kind llvm or cuda. It need not be this machine.
    folder : path
        Where to write ``manifest.json`` and ``model.so``; made if it is not there.
    database : RecordStore, tvm.s_tir.meta_schedule.Database or path, optional
        Tuning records, looked up before the default plans.
    linker : str, optional
        Compiler driver that links for the target's machine; this machine's, or the GNU one for
        another machine (``aarch64-linux-gnu-g++``). Where there is none for another machine the
        object files are written as ``model.tar``, to be linked there.

    Returns
    -------
    Path
        The manifest.

    Raises
    ------
    ScanError
        If `mod` is no module, an input of it is no tensor of known rank, the folder cannot be made
        or written to, the linker is not there, or TVM's wheels have no runtime for the target.
    """
    mod, target = as_module(mod, "export"), target_for(target, None, "export")
    database = as_database(database, "export")
    runtime = device_of(target).runtime
    if runtime not in DEVICE_TYPES:
        raise ScanError(
            f"export: expected a target whose models `load` runs, of {' or '.join(DEVICE_TYPES)}, "
            f"got one of {runtime}; use tvm.compile with get_pipeline, and TVM's own runtime there"
        )
    folder = Path(folder)
    check_folder(folder, "export")
    if linker is not None and shutil.which(linker) is None:
        raise ScanError(f"export: expected the linker {linker}, found none; install it")
    legal = FuseScans(target, database)(LegalizeScans()(mod))
    functions = {
        str(name.name_hint): _signature(str(name.name_hint), func)
        for name, func in mod.functions_items()
        if isinstance(func, relax.Function) and (func.attrs or {}).get("global_symbol")
    }
    built = build(mod, target, relax_pipeline=get_pipeline(target, database))
    folder.mkdir(parents=True, exist_ok=True)
    form = kernel_format(built.mod)
    library = _write(built, folder, target, linker, form)
    manifest = {
        "format": FORMAT,
        "library": library.name,
        "sha256": sha256_of(library),
        "target": str(target),
        "device": runtime,
        "machine": _machine(target),
        "versions": {
            "tvm_scan": __version__,
            **{name: metadata.version(name) for name in ("apache-tvm", "apache-tvm-ffi")},
        },
        "functions": functions,
        "kernels": _kernels(built.mod),
        "kernel_format": form,
        "scans": _scans(legal, target, database),
    }
    path = folder / MANIFEST
    write_file(path, json.dumps(manifest, indent=1) + "\n")
    return path


def _machine(target: Target) -> str:
    """Kind of machine of the host code, as ``platform.machine()`` names it."""
    host = target.host if device_of(target).is_gpu else target
    triple = str(host.attrs.get("mtriple", "")) if host is not None else ""
    return triple.partition("-")[0] or platform.machine()


def _write(built: Any, folder: Path, target: Target, linker: str | None, form: str) -> Path:
    machine = _machine(target)
    for name in ("model.so", "model.tar"):
        (folder / name).unlink(missing_ok=True)
    # What is text, nvcc compiles for the target's architecture; see cubins.py.
    options = {"fpack_imports": compiled_kernels(target)} if form == "cubin" else {}
    if form == "cuda":
        _LOG.info("found no nvcc: the kernels are text, to be compiled where they are loaded")
    if linker is None and machine != platform.machine():
        linker = shutil.which(f"{machine}-linux-gnu-g++")
        if linker is None:
            write_library(built.mod, folder / "model.tar", **options)
            return folder / "model.tar"
    compile_with = None if linker is None else cc.cross_compiler(linker)
    write_library(built.mod, folder / "model.so", fcompile=compile_with, **options)
    return folder / "model.so"


def _kernels(module: Any) -> list[str]:
    """Names of the CUDA kernels in a built module, at whatever depth."""
    text = "\n".join(str(inner.inspect_source()) for inner in cuda_modules(module))
    names = re.findall(r"__global__ void (?:__launch_bounds__\([\d, ]+\) )?(\w+)\(", text)
    return sorted(set(names))


def _signature(name: str, func: relax.Function) -> dict[str, Any]:
    def described(kind: Any, called: str) -> Any:
        if isinstance(kind, relax.TupleType):
            return [described(field, f"{called}_{i}") for i, field in enumerate(kind.fields)]
        if not isinstance(kind, relax.TensorType) or kind.ndim < 0:
            return {"type": str(kind)}
        if isinstance(kind.shape, relax.ShapeExpr):
            extents = [number_or_text(extent) for extent in kind.shape.values]
        else:  # of any extents, which have no names
            extents = [f"{called}_{i}" for i in range(kind.ndim)]
        return {"shape": extents, "dtype": str(kind.dtype)}

    inputs = []
    for param in func.params:
        entry = described(param.ty, str(param.name))
        if not isinstance(entry, dict) or "shape" not in entry:
            raise ScanError(
                f"export: expected tensors of known rank as inputs of {name}, got "
                f"{param.name}: {param.ty}; make each tensor an input of its own"
            )
        inputs.append({"name": str(param.name), **entry})
    return {"inputs": inputs, "outputs": described(func.ret_ty, "output")}


def _scans(mod: IRModule, target: Target, database: Any) -> list[dict[str, Any]]:
    scans = []
    for report in FindScans(mod):
        func = mod[report.name]
        tuned = None if database is None else tuned_function(database, func, target)
        for number, recurrence in enumerate(report.accepted):
            plan = str(plan_of(recurrence, target))
            if tuned is not None:
                plans = [str(p) for p in tuned.plans[number : number + 1]]
                plan = " ".join([*plans, "from a tuning record", *([] if tuned.exact else _NEAR)])
            families = [str(name) for _, name, *_ in recurrence.families]
            steps = number_or_text(recurrence.time.extent)
            scans.append(
                {"function": report.name, "families": families, "steps": steps, "plan": plan}
            )
        scans += [
            {"function": report.name, "refused": refusal.kind.value, "detail": refusal.detail}
            for refusal in report.refused
        ]
    return scans
