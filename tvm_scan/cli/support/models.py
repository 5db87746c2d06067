"""Model files as Relax modules, and as artifacts of compiled code."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar
from zipfile import is_zipfile

from tvm_scan.cli.support.failure import CommandError
from tvm_scan.cli.support.load import load_module
from tvm_scan.cli.support.paths import check_file

_Result = TypeVar("_Result")


@contextmanager
def noted() -> Iterator[list[str]]:
    """Collect what the passes log: loops rolled up, fused, scheduled by a record or refused."""
    notes: list[str] = []
    logger, handler = logging.getLogger("tvm_scan"), logging.Handler(logging.INFO)
    # All that it does; a class of its own would be longer.
    handler.emit = lambda record: notes.append(record.getMessage())  # type: ignore[method-assign]
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield notes
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def timed_step(label: str, work: Callable[[], _Result]) -> _Result:
    """Do a part of the work, and say on the terminal how long it took."""
    print(f"{label} ...", end=" ", file=sys.stderr, flush=True)
    start = perf_counter()
    try:
        result = work()
    except BaseException:
        print("failed", file=sys.stderr)
        raise
    print(f"{perf_counter() - start:.1f} s", file=sys.stderr, flush=True)
    return result


def import_model(model: Path) -> Any:
    """Import a model file as a Relax module.

    Parameters
    ----------
    model : Path
        .pt2, .onnx or .py.

    Raises
    ------
    CommandError
        If it is no such file, with the fix.
    """
    check_file(model, "a model file")
    if model.suffix == ".pt2":
        return _import_torch(model)
    if model.suffix == ".onnx":
        return _import_onnx(model)
    if model.suffix == ".py":
        return load_module(model)
    raise CommandError(
        f"expected a model as .pt2, .onnx or .py, got {model.name}; "
        "save it with torch.export.save or onnx.save"
    )


def _import_torch(model: Path) -> Any:
    import torch

    from tvm_scan.relax import from_exported

    try:
        if not is_zipfile(model):
            raise ValueError("it is no archive")
        program = torch.export.load(str(model))
    except Exception as error:  # torch raises whatever its archive reader raises
        said = (str(error).strip().splitlines() or ["no reason given"])[0]
        raise CommandError(
            f"expected {model.name} to be a program of torch.export.save, got "
            f"{type(error).__name__}: {said}; save it again"
        ) from error
    return from_exported(program)


def _import_onnx(model: Path) -> Any:
    try:
        import onnx
    except ImportError:
        raise CommandError(
            "expected the package onnx, found none; run python -m pip install onnx"
        ) from None
    from tvm_scan.relax import from_onnx

    try:
        loaded = onnx.load(str(model))
    except Exception as error:  # the parser raises its own kinds
        raise CommandError(
            f"expected {model.name} to be an ONNX model, got {type(error).__name__}; save it again"
        ) from error
    return from_onnx(loaded)
