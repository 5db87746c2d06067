"""Checks of the functions, targets and recurrences that callers of public functions pass.

Every message says what was expected, what was found, and how to get the one from the other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from tvm.ir import IRModule
from tvm.target import Target
from tvm.tirx import PrimFunc

from tvm_scan.delta_rule import TimeLoop
from tvm_scan.errors import RefusalError, ScanError
from tvm_scan.recurrence import Refusal

#: What every GPU of a kind has: TVM's targets of CUDA say nothing of it, and those of WebGPU more.
_LIMITS: dict[str, dict[str, int]] = {
    "cuda": {"max_threads_per_block": 1024, "max_shared_memory_per_block": 48 << 10},
    "webgpu": {"max_shared_memory_per_block": 16 << 10},
}


def as_func(value: Any, caller: str) -> PrimFunc:
    """The function that a caller gave.

    Parameters
    ----------
    value : PrimFunc
        What was given.
    caller : str
        Name of the public function, for the message.

    Raises
    ------
    ScanError
        If it is something else.
    """
    if isinstance(value, PrimFunc):
        return value
    if isinstance(value, IRModule):
        names = [str(n.name_hint) for n, f in value.functions_items() if isinstance(f, PrimFunc)]
        held = f"an IRModule with {', '.join(names)}" if names else "an IRModule without any"
        fix = f"pass one function, mod[{names[0]!r}]" if names else "write it as a PrimFunc"
    else:
        held, fix = f"{_a(value)}", "write the loop with @T.prim_func(s_tir=True)"
    raise ScanError(f"{caller}: expected a PrimFunc, got {held}; {fix}")


def as_module(value: Any, caller: str) -> IRModule:
    """The module that a caller gave.

    Raises
    ------
    ScanError
        If it is something else.
    """
    if isinstance(value, IRModule):
        return value
    fix = "pass IRModule({'main': func})" if isinstance(value, PrimFunc) else "import the model"
    raise ScanError(f"{caller}: expected an IRModule, got {_a(value)}; {fix}")


def as_recurrence(value: Any, caller: str) -> TimeLoop:
    """The recurrence or delta rule that a caller gave.

    Parameters
    ----------
    value : Recurrence or DeltaRule
        What was given.
    caller : str
        Name of the public function, for the message.

    Raises
    ------
    RefusalError
        If it is a refusal, with its text.
    ScanError
        If it is something else.
    """
    if isinstance(value, TimeLoop):
        return value
    if isinstance(value, Refusal):
        raise RefusalError(
            f"{caller}: expected a Recurrence, got a Refusal\n{value.message()}", value
        )
    raise ScanError(
        f"{caller}: expected a Recurrence, got {_a(value)}; pass that of tvm_scan.extract(func)"
    )


def host_target() -> Target:
    """Return this machine's CPU with its own instruction set (``mcpu="native"`` means generic)."""
    return Target.from_device("cpu")


def as_target(value: Any, caller: str) -> Target | None:
    """The target that a caller gave; None stays, for whoever knows the default.

    Parameters
    ----------
    value : Target, str, mapping or None
        A string is ``cpu`` (this machine with its own instruction set), ``cuda`` (sm_90) or
        ``cuda:sm_100``, and whatever TVM takes: ``llvm``, ``webgpu``, a tag, JSON. A mapping is
        TVM's.
    caller : str
        Name of the public function, for the message.

    Raises
    ------
    ScanError
        If it names no target that scans are scheduled for.
    """
    if value is None or isinstance(value, Target):
        return value
    if not isinstance(value, str | Mapping):
        raise _no_target(caller, _a(value))
    if value == "cpu":
        return host_target()
    try:
        options = _options(value) if isinstance(value, str) else dict(value)
        target = Target(options)
        settings = options if isinstance(options, dict) else {}
        return _of_gpu(target, settings) if "gpu" in target.keys else target
    except (ValueError, TypeError, KeyError, RuntimeError) as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[-1]
        said = said.partition(" Target creation from ")[0]
        raise _no_target(caller, f"{value!r} ({said})") from error


def _options(text: str) -> Any:
    """Convert a target's name to what ``Target`` takes: a name, or a mapping of options."""
    if text == "cuda" or re.fullmatch(r"cuda:sm_\d+[a-z]?", text):
        return {"kind": "cuda", "arch": text.partition(":")[2] or "sm_90"}
    return json.loads(text) if text.startswith("{") else text


def _of_gpu(target: Target, settings: Mapping[str, Any]) -> Target:
    """The target with a host, and with the limits of every GPU of its kind.

    Options that were given, and those of a tag, stay.
    """
    options = dict(target.export())
    host = options.pop("host", None) or {"kind": "llvm"}
    kind = str(target.kind.name)
    if kind in _LIMITS:
        plain = dict(Target({n: options[n] for n in ("kind", "arch") if n in options}).attrs)
        for name, limit in _LIMITS[kind].items():
            if name not in settings and options.get(name) == plain.get(name):
                options[name] = limit
    return Target(options, host=host)


def _no_target(caller: str, found: str) -> ScanError:
    return ScanError(
        f"{caller}: expected a target, got {found}; pass a tvm.target.Target, 'cpu', 'cuda', "
        "'cuda:sm_100', or TVM's own options such as {'kind': 'llvm', 'mcpu': 'znver4'}"
    )


def _a(value: Any) -> str:
    """The value as a noun: its type, and what it says where that is short."""
    kind = type(value).__name__
    return "None" if value is None else f"{kind} {value!r}" if isinstance(value, str) else kind
