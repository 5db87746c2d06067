"""``tvm-scan tune``: measure plans, keep records, say what was gained."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import tvm
from tvm.tirx import PrimFunc

from tvm_scan.cli.support.failure import INTERRUPTED, MACHINES_GONE, WRONG_RESULT, CommandError
from tvm_scan.cli.support.load import find_recurrence, load_func, make_target
from tvm_scan.cli.support.terminal import print_json, visible
from tvm_scan.errors import ScanError
from tvm_scan.library import LIBRARY
from tvm_scan.meta import tune
from tvm_scan.meta.measure.progress import duration
from tvm_scan.meta.search.result import FunctionResult, TuningResult
from tvm_scan.schedules.machine.device import device_of

__all__ = ["is_model", "load_program", "parse_budget", "tune_file"]

_MODELS = (".pt2", ".onnx")
#: Trials for each function where only minutes are given.
_MANY = 100_000


def parse_budget(text: str) -> tuple[int, float | None]:
    """Trials, and minutes where the text says so.

    Parameters
    ----------
    text : str
        ``64``: trials for each function; ``10m``, ``2.5m``: minutes for all of them.

    Returns
    -------
    trials : int
    minutes : float or None

    Raises
    ------
    CommandError
        For any other text.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)m", text)
    if match and float(match[1]) > 0:
        return _MANY, float(match[1])
    if text.isdigit() and int(text) > 0:
        return int(text), None
    raise CommandError(
        f"expected --budget as trials (64) or minutes (10m), got {text}; give one of them"
    )


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

    Returns
    -------
    dict of str to PrimFunc

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
    find_recurrence(func)
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
    """Whether a file is a model: .pt2, .onnx, or Python text with a module.

    Parameters
    ----------
    path : Path
        Need not be there.

    Returns
    -------
    bool
    """
    if path.suffix != ".py" or not path.is_file():
        return path.suffix in _MODELS
    text = path.read_text(encoding="utf-8", errors="replace")
    return any(word in text for word in ("ir_module", "BlockBuilder", "IRModule"))


def _model(path: Path, target: Any) -> dict[str, PrimFunc]:
    from tvm_scan.cli.compile import import_model
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


def tune_file(
    what: str,
    name: str | None,
    shape: str | None,
    dtype: str,
    target_name: str,
    database: Path,
    budget: str,
    seed: int,
    tracker: str | None,
    key: str | None,
    as_json: bool,
) -> None:
    """Print; see ``tvm-scan tune --help``."""
    trials, minutes = parse_budget(budget)
    target = make_target(target_name)
    runner = None if tracker is None and key is None else _remote(tracker, key)
    if runner is None and not tvm.device(device_of(target).runtime, 0).exist:
        raise CommandError(
            "expected a CUDA device, found none on this machine; tune on another one with "
            "--tracker host:port --key NAME"
        )
    program = load_program(what, name, shape, dtype, target)
    options: dict[str, Any] = {} if runner is None else {"runner": runner}
    try:
        result = tune(
            program,
            target,
            database,
            trials=trials,
            budget=minutes,
            seed=seed,
            progress=not as_json,
            **options,
        )
    except ScanError as error:
        raise CommandError(str(error)) from error
    if as_json:
        print_json(_report(result))
    else:
        print("\n".join(map(visible, _lines(result))))
    if result.wrong:
        raise CommandError(
            f"expected every candidate to agree with its loop, found {len(result.wrong)} that do "
            "not; they are not recorded; please report the function and the plan",
            WRONG_RESULT,
        )
    if result.stopped is not None:
        raise CommandError("stopped before its time; every record is kept", MACHINES_GONE)
    if result.interrupted:
        raise CommandError("interrupted; every record is kept", INTERRUPTED)


def _remote(tracker: str | None, key: str | None) -> Any:
    if tracker is None or key is None:
        raise CommandError(
            "expected --tracker host:port and --key NAME together, got one of them; give both"
        )
    from tvm_scan.meta.measure.rpc import parse_tracker, rpc_runner

    try:
        host, port = parse_tracker(tracker)
        return rpc_runner(host, port, key)
    except ScanError as error:
        raise CommandError(str(error)) from error


def _report(result: TuningResult) -> dict[str, Any]:
    return {
        "database": str(result.database),
        "seconds": result.seconds,
        "interrupted": result.interrupted,
        "functions": [
            {
                "function": f.name,
                "space": f.space,
                "best": None if f.best is None else str(f.best),
                "best_seconds": None if f.best is None else f.best.seconds,
                "default_seconds": None if f.default is None else f.default.seconds,
                "sequential_seconds": None if f.sequential is None else f.sequential.seconds,
                "trials": [
                    {"plan": str(t), "seconds": t.seconds, "error": t.error, "wrong": t.wrong}
                    for t in f.trials
                ],
            }
            for f in result.functions
        ],
    }


def _lines(result: TuningResult) -> list[str]:
    lines = []
    for found in result.functions:
        lines.append(f"function    {found.name}")
        lines.append(f"trials      {len(found.trials)} of a space of {found.space}")
        lines.append(f"sequential  {_time(found, found.sequential)}")
        lines.append(f"default     {_time(found, found.default)}")
        lines.append(f"best        {_time(found, found.best)}")
    lines.append(f"records     {result.database}")
    return lines


def _time(found: FunctionResult, trial: Any) -> str:
    if trial is None or trial.seconds is None:
        return "not measured"
    loop = found.sequential
    gain = ""
    if loop is not None and loop.seconds is not None and loop is not trial:
        gain = f"  {loop.seconds / trial.seconds:.2f}x the loop"
    return f"{duration(trial.seconds)}  {trial}{gain}"
