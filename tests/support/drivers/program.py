"""Programs of `tvm_scan.schedules.launch`, kept from run to run."""

from __future__ import annotations

import json
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import tvm
from tvm import tirx
from tvm.target import Target

from tests.support.compiled import key_of
from tests.support.cusim import _toolchain
from tests.support.drivers.amdgpu import without_tools
from tests.support.environment import cache_folder
from tvm_scan.schedules.launch import Driver, Program, program, run
from tvm_scan.schedules.launch.program import Array, Kernel

__all__ = ["Driver", "emit", "run"]


def emit(func: tirx.PrimFunc, target: Target) -> Program:
    """`program.emit`, kept from run to run."""
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    path = _folder() / f"{key_of(mod, target)}.json"
    if not path.exists():
        form = "asm" if str(target.kind.name) == "rocm" else ""
        with without_tools():
            emitted = program.emit(func, target, form=form)
        _toolchain.publish(json.dumps(emitted.as_data()).encode(), path)
    os.utime(path)
    return _program(json.loads(path.read_text()))


def _program(data: dict[str, Any]) -> Program:
    """Read what ``Program.as_data`` wrote."""
    kernels = {
        name: Kernel(**{**kernel, "parameters": tuple(kernel["parameters"])})
        for name, kernel in data["kernels"].items()
    }
    arrays = [Array(**{**a, "shape": tuple(a["shape"])}) for a in data["parameters"]]
    return Program(tuple(arrays), kernels, tuple(data["steps"]))


@lru_cache(maxsize=1)
def _folder() -> Path:
    # Named for the form of what is in it.
    folder = cache_folder() / "programs"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _toolchain.remove_unused(folder.iterdir())
    return folder
