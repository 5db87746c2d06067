"""Traces on disk: recording a function imports torch's compiler, which takes seconds.

A trace is found again by what the function is, as text: its bytecode and constants, and all that
it reads beside its arguments. What has no text that means the same in another process is not kept.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
import types
from importlib import import_module
from typing import Any

import torch

from tvm_scan.torch import store
from tvm_scan.torch.kernels.digest import KERNEL_SOURCES, source_digest

__all__ = ["found_trace", "global_state", "keep_trace", "key_of", "state_of"]

_PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype)


def global_state() -> tuple[Any, ...]:
    """What torch makes of a function, beside what the function reads."""
    cast = torch.is_autocast_enabled("cpu")
    kind = torch.get_autocast_dtype("cpu") if cast else None
    return torch.get_default_dtype(), cast, kind


def key_of(state: tuple[Any, ...], *details: Any) -> str | None:
    """Return the key of a trace, given the function's state; None if it has none."""
    try:
        parts = [_text(state), *map(str, details), str(global_state())]
    except _NoTextError:
        return None
    parts += [torch.__version__, str(sys.implementation.cache_tag)]
    parts.append(source_digest((*KERNEL_SOURCES, "torch/**/*.py")))
    return hashlib.sha256(json.dumps(["trace", *parts]).encode()).hexdigest()[:40]


def found_trace(key: str) -> tuple[str, list[Any]] | None:
    """Return the graph and the structure of an earlier trace, of this process or another."""
    path = store.fetch(key, ".txt")
    try:
        graph, structure = json.loads(b"" if path is None else path.read_bytes())
        if isinstance(graph, str):
            return graph, ast.literal_eval(structure)
    except FileNotFoundError:  # another process made room meanwhile
        return None
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        pass  # no trace, whatever its label says: a new one takes its place
    return None


def keep_trace(key: str, graph: str, structure: list[Any], what: str) -> None:
    """Keep a trace, if what goes with it can be written down."""
    try:
        same = ast.literal_eval(repr(structure)) == structure
    except (ValueError, SyntaxError):
        return
    if same and _is_simple(structure):
        content = json.dumps([graph, repr(structure)]).encode()
        store.insert(key, ".txt", content, f"trace of {what}")


def _is_simple(structure: Any) -> bool:
    """Whether there are no types that only look like these."""
    if type(structure) is dict:
        return all(type(k) in (str, int) and _is_simple(v) for k, v in structure.items())
    if type(structure) in (list, tuple):
        return all(map(_is_simple, structure))
    return structure is None or type(structure) in (int, str)


class _NoTextError(Exception):
    """There is no text that another process would understand."""


def _text(value: Any) -> str:
    if isinstance(value, types.CodeType):
        return _code_text(value)
    if type(value) is tuple:
        return f"({','.join(map(_text, value))})"
    if type(value) in (str, bytes, int, float, bool, type(None), type(...), complex):
        return f"{type(value).__name__}:{value!r}"
    if isinstance(value, torch.dtype):
        return str(value)
    return _name(value)


def _code_text(code: types.CodeType) -> str:
    parts = (
        code.co_code,
        code.co_consts,
        *(code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars),
        *(code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags),
        getattr(code, "co_exceptiontable", b""),
    )
    return f"code{_text(parts)}"


def _name(value: Any) -> str:
    """Name a module, class or function, if the name leads back to it."""
    if isinstance(value, types.ModuleType):
        if sys.modules.get(value.__name__) is value:
            return f"module {value.__name__}"
        raise _NoTextError
    home, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(home, str) or not isinstance(name, str):
        raise _NoTextError
    try:
        found: Any = import_module(home)
        for part in name.split("."):
            found = getattr(found, part)
    except (AttributeError, ImportError):
        raise _NoTextError from None
    if found is not value:
        raise _NoTextError
    return f"{home}:{name}"


def state_of(function: Any, seen: frozenset[int] = frozenset()) -> Any:
    """Return what a function reads beside its arguments, comparable; None if that is unknown."""
    if not isinstance(function, types.FunctionType) or id(function) in seen:
        return None
    seen |= {id(function)}
    values: list[Any] = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    try:
        values += [cell.cell_contents for cell in function.__closure__ or ()]
    except ValueError:  # a variable without a value yet
        return None
    codes = [function.__code__]
    for code in codes:
        codes += [c for c in code.co_consts if isinstance(c, types.CodeType)]
        for name in code.co_names:
            if name in function.__globals__:
                values.append(function.__globals__[name])
    # Code compares by its content. What is kept by identity stays alive in the key.
    parts: list[Any] = [function.__code__]
    for value in values:
        if isinstance(value, _PLAIN):
            parts.append((type(value), repr(value)))  # 0.0 is not -0.0
        elif _is_constant(value):
            parts.append(value)
        else:
            inner = state_of(value, seen)
            if inner is None:
                return None
            parts.append(inner)
    return tuple(parts)


def _is_constant(value: Any) -> bool:
    """Whether this is a module, class or function of torch or Python, with its attributes."""
    kinds = (types.ModuleType, type, types.BuiltinFunctionType, types.FunctionType)
    if not isinstance(value, kinds):
        return False
    is_module = isinstance(value, types.ModuleType)
    home = str(value.__name__ if is_module else getattr(value, "__module__", ""))
    return home.partition(".")[0] in ("torch", "math", "operator", "builtins", "_operator")
