"""Programs to tune, compare and look up: functions by name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tvm.tirx import PrimFunc

from tvm_scan.cli.support.failure import CommandError
from tvm_scan.cli.support.load import find_loop, load_func
from tvm_scan.cli.support.paths import MODELS


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
        return {what.partition(":")[2]: load_func(what, name, shape, dtype=dtype)}
    if is_model(Path(what)) and shape is None:
        return _model(Path(what), target)
    func = load_func(what, name, shape)
    find_loop(func)
    return {name or str((func.attrs or {}).get("global_symbol", "main")): func}


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
