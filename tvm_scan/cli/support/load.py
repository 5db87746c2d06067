"""Objects for what a user names: a file, a library entry, a target, a plan."""

from __future__ import annotations

import importlib.util
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import tvm
from tvm.ir import IRModule
from tvm.target import Target
from tvm.tirx import PrimFunc

from tvm_scan import Refusal, ScanPlan, library
from tvm_scan.arguments import as_target
from tvm_scan.cli.support.failure import REFUSED, CommandError
from tvm_scan.cli.support.paths import check_file
from tvm_scan.delta_rule import TimeLoop
from tvm_scan.errors import ScanError
from tvm_scan.schedules.analysis import first_loop
from tvm_scan.schedules.choose.plan_of import plan_of
from tvm_scan.schedules.machine.device import DEVICES, device_of

Choose = Callable[[TimeLoop, Target], ScanPlan]
_Kind = TypeVar("_Kind")

#: Sizes of a recurrence of the library where none are given, and those of most.
EXAMPLE_SIZES = {"selective_scan": (1, 64, 1024, 16)}
USUAL_SIZES = (3, 5000)


def load_file(path: Path, name: str | None) -> PrimFunc:
    """Load a primfunc from a Python file.

    Parameters
    ----------
    path : Path
        The file; it is executed.
    name : str or None
        Name of the primfunc; may be None if there is exactly one.

    Raises
    ------
    CommandError
        If there is no such file or function, or the file fails.
    """
    functions = _defined(path, PrimFunc)
    if name is None:
        fix = "choose one with --func" if functions else "define one with @T.prim_func(s_tir=True)"
        return _only(path, functions, "primfunc", fix)
    if name not in functions:
        raise CommandError(
            f"expected a primfunc named {name} in {path.name}, found "
            f"{', '.join(sorted(functions)) or 'none'}; pass one of these as --func"
        )
    return functions[name]


def load_module(path: Path) -> IRModule:
    """Load a Relax module from a Python file.

    Parameters
    ----------
    path : Path
        The file; it is executed.

    Raises
    ------
    CommandError
        If there is not exactly one IRModule in it, or the file fails.
    """
    fix = "leave one, from @I.ir_module or a BlockBuilder"
    return _only(path, _defined(path, IRModule), "IRModule", fix)


def _defined(path: Path, kind: type[_Kind]) -> dict[str, _Kind]:
    """The objects of a kind that a file defines, by name."""
    named = vars(_executed(path))
    return {name: value for name, value in named.items() if isinstance(value, kind)}


def _only(path: Path, objects: dict[str, _Kind], noun: str, fix: str) -> _Kind:
    if len(objects) != 1:
        found = ", ".join(sorted(objects)) or "none"
        raise CommandError(f"expected exactly one {noun} in {path.name}, found {found}; {fix}")
    return next(iter(objects.values()))


def _executed(path: Path) -> ModuleType:
    check_file(path, "a Python file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise CommandError(f"expected a Python file, got {path.name}; give it the ending .py")
    module = importlib.util.module_from_spec(spec)
    # TVM's parser looks for the source of a class in the module of that name, which another file
    # may have taken.
    before = sys.modules.get(spec.name)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
        line = f", line {frames[-1].lineno}" if frames else ""
        text = str(error).strip().splitlines()
        raise CommandError(
            f"expected {path.name} to run, got {type(error).__name__} in {path}{line}: "
            f"{text[0] if text else ''}; mend the file"
        ) from error
    finally:
        if before is not None:
            sys.modules[spec.name] = before
    return module


def load_func(
    what: str, name: str | None, shape: str | None = None, *, symbolic: bool = False, **options: str
) -> PrimFunc:
    """Load a file as ``load_file`` does, or a recurrence of the library.

    Parameters
    ----------
    what : str
        The file, or ``library:NAME``.
    name : str or None
        Of the primfunc in a file.
    shape : str or None
        Sizes of a recurrence of the library: ``4,4096``.
    symbolic : bool
        Whether a size may be a letter, and be left open; the length is, without a shape.
    **options : str
        Of the recurrence of the library: ``dtype``.

    Raises
    ------
    CommandError
        If there is nothing of the kind, or it has no such sizes.
    """
    if not what.startswith("library:"):
        if shape is not None:
            raise CommandError(
                f"expected --shape for library:NAME alone, got it for {what}; drop it"
            )
        return load_file(Path(what), name)
    key = what.partition(":")[2]
    if key not in library.LIBRARY:
        raise CommandError(
            f"expected one of {', '.join(sorted(library.LIBRARY))}, got library:{key}; "
            "choose one of them"
        )
    entry = library.LIBRARY[key]
    usual = zip(entry.size_names, EXAMPLE_SIZES.get(key, USUAL_SIZES), strict=True)
    words = ["n" if symbolic and name == "length" else str(size) for name, size in usual]
    words = words if shape is None else shape.split(",")
    fits = all(word.isalnum() if symbolic else word.isdigit() for word in words)
    if len(words) != len(entry.size_names) or not fits:
        kinds = "numbers, or letters for what the page chooses" if symbolic else "numbers"
        raise CommandError(
            f"expected --shape {','.join(entry.size_names)} as {kinds}, got {shape}; give each of "
            "them"
        )
    sizes = [int(word) if word.isdigit() else None for word in words]
    try:
        return entry.factory(*sizes, **options)
    except ValueError as error:
        raise CommandError(str(error)) from error


def make_target(name: str) -> Target:
    """Name a target.

    Parameters
    ----------
    name : str
        ``cpu`` is this machine with its own instruction set; ``cuda`` is sm_90, and
        ``cuda:sm_100`` another architecture; ``opencl``, ``webgpu`` and the like are TVM's kinds
        of GPUs; or a TVM target as JSON, for another machine.

    Raises
    ------
    CommandError
        If it names none that scans are scheduled for.
    """
    is_json = name.startswith("{")
    names = ["cpu", *(row.name for row in DEVICES.values() if row.is_gpu and row.is_served)]
    if name in DEVICES and name not in names:
        try:
            device_of(Target(name))
        except ScanError as error:
            raise CommandError(f"--target: {error}") from error
    if not is_json and name not in names and not re.fullmatch(r"cuda:sm_\d+[a-z]?", name):
        raise CommandError(
            f"expected --target {', '.join(names[:-1])} or {names[-1]}, got {name}; choose one of "
            "them, an architecture as cuda:sm_100, or a TVM target as JSON"
        )
    try:
        target = as_target(name, "--target")
        device_of(target)
    except ScanError as error:
        raise CommandError(
            f"expected --target as JSON that TVM takes, got {name} ({error}); give it as, for "
            'example, {"kind": "llvm", "mtriple": "aarch64-linux-gnu"}'
        ) from error
    return target


def missing_device(target: Target) -> str | None:
    """Say that TVM has no device of a target on this machine; None where it has one."""
    name = device_of(target).runtime
    if tvm.device(name, 0).exist:
        return None
    return f"expected a device of {name} that TVM can reach, found none on this machine"


def find_loop(func: PrimFunc) -> TimeLoop:
    """Return the recurrence of a function, else its delta rule, or fail with the refusal.

    Raises
    ------
    CommandError
        With the refusal as text and the exit code for refusals.
    """
    loop = first_loop(func)
    if isinstance(loop, Refusal):
        raise CommandError(f"refused\n{loop.message()}", REFUSED)
    return loop


class Choice:
    """A plan for each recurrence of a function as `choose` has it; as text, all of them."""

    def __init__(self, target: Target, choose: Choose = plan_of) -> None:
        self._target, self._choose = target, choose
        self._plans: list[ScanPlan] = []

    def __call__(self, recurrence: TimeLoop) -> ScanPlan:
        """Choose, and remember it."""
        self._plans.append(self._choose(recurrence, self._target))
        return self._plans[-1]

    def __str__(self) -> str:
        return " + ".join(dict.fromkeys(map(str, self._plans)))
