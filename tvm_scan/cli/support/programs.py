"""Programs to tune, compare and look up: functions by name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tvm.tirx import PrimFunc

from tvm_scan.cli.support.failure import CommandError
from tvm_scan.cli.support.load import find_loop, load_func
from tvm_scan.cli.support.paths import MODELS
from tvm_scan.library import LIBRARY


def load_program(
    what: str, name: str | None, shape: str | None, dtype: str, target: Any = None
) -> dict[str, PrimFunc]:
    """Functions to tune, by name.

    Parameters
    ----------
    what : str
        A Python file with a primfunc or a module, ``library:NAME``, .pt2 or .onnx.
    name : str or None
        Of the primfunc in a Python file.
    shape : str or None
        Sizes of a library recurrence, ``4,4096``.
    dtype : str
        Of a library recurrence.
    target : tvm.target.Target, optional
        What a model is compiled for, on which depends what is fused; this machine's CPU.

    Raises
    ------
    CommandError
        If there is nothing of the kind, with the fix.
    """
    if what.startswith("library:"):
        func = load_func(what, name) if shape is None else _library(what, shape, dtype)
        return {what.partition(":")[2]: func}
    if shape is not None:
        raise CommandError(f"expected --shape for library:NAME alone, got it for {what}; drop it")
    path = Path(what)
    if is_model(path):
        return _model(path, target)
    func = load_func(what, name)
    find_loop(func)
    return {name or str((func.attrs or {}).get("global_symbol", "main")): func}


def _library(what: str, shape: str, dtype: str) -> PrimFunc:
    load_func(what, None)
    entry = LIBRARY[what.partition(":")[2]]
    sizes = shape.split(",")
    names = ",".join(entry.size_names)
    if len(sizes) != len(entry.size_names) or not all(s.isdigit() for s in sizes):
        raise CommandError(f"expected --shape {names} as numbers, got {shape}; give each of them")
    try:
        return entry.factory(*(int(s) for s in sizes), dtype=dtype)
    except ValueError as error:
        raise CommandError(str(error)) from error


def is_model(path: Path) -> bool:
    """Return whether a file is a model: .pt2, .onnx, or Python text with a module.

    Parameters
    ----------
    path : Path
        Need not be there.
    """
    if path.suffix != ".py" or not path.is_file():
        return path.suffix in MODELS
    text = path.read_text(encoding="utf-8", errors="replace")
    return any(word in text for word in ("ir_module", "BlockBuilder", "IRModule"))


def _model(path: Path, target: Any) -> dict[str, PrimFunc]:
    from tvm_scan.cli.support.models import import_model
    from tvm_scan.relax.tasks import scan_tasks

    tasks, symbolic = scan_tasks(import_model(path), target)
    for name in symbolic:
        print(f"{name} has symbolic extents and is not tuned", file=sys.stderr)
    if not tasks:
        raise CommandError(
            f"expected a recurrence of constant extents in {path.name}, found "
            f"{len(symbolic)} of symbolic ones; export the model with constant shapes"
        )
    return tasks
