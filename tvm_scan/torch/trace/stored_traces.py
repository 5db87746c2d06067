"""Traces on disk: recording a function imports torch's compiler, which takes seconds.

A trace is found again by what the function is, as text: its bytecode and constants, and all that
it reads beside its arguments, where `reads` knows that exactly. On an AMD EPYC, Zen 4, the first
call of `associative_scan` takes 0.20 s with a trace from there and 1.87 s without, of `scan` 0.21 s
and 2.08 s.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
import types
from typing import Any

import torch

from tvm_scan.torch import entries
from tvm_scan.torch.kernels.digest import KERNEL_SOURCES, source_digest
from tvm_scan.torch.trace.reads import global_state


def key_of(state: tuple[Any, ...], *details: Any) -> str | None:
    """Return the key of a trace, given the function's state; None if it has none."""
    try:
        parts = [_text(state), *map(str, details), str(global_state())]
    except _NoTextError:
        return None
    parts += [torch.__version__, str(sys.implementation.cache_tag)]
    parts.append(source_digest((*KERNEL_SOURCES, "torch/**/*.py")))
    return hashlib.sha256(json.dumps(["trace", *parts]).encode()).hexdigest()[:40]


def stored_trace(key: str) -> tuple[str, list[Any]] | None:
    """Return the graph and the structure of an earlier trace, of this process or another."""
    path = entries.fetch(key, ".txt")
    try:
        graph, structure = json.loads(b"" if path is None else path.read_bytes())
        if isinstance(graph, str):
            return graph, ast.literal_eval(structure)
    except FileNotFoundError:  # another process made room meanwhile
        return None
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        pass  # no trace, whatever its label says: a new one takes its place
    return None


def store_trace(key: str, graph: str, structure: list[Any], what: str) -> None:
    """Keep a trace, if what goes with it can be written down."""
    if _is_simple(structure):
        content = json.dumps([graph, repr(structure)]).encode()
        entries.insert(key, ".txt", content, f"trace of {what}")


def _is_simple(structure: Any) -> bool:
    """Return whether a structure has no types that only look like plain ones."""
    if type(structure) is dict:
        return all(type(k) in (str, int) and _is_simple(v) for k, v in structure.items())
    if type(structure) in (list, tuple):
        return all(map(_is_simple, structure))
    return structure is None or type(structure) in (int, str)


class _NoTextError(Exception):
    """The error that a value has no text that another process would understand."""


def _text(value: Any) -> str:
    if isinstance(value, types.CodeType):
        return _code_text(value)
    if type(value) is tuple:
        return f"({','.join(map(_text, value))})"
    if type(value) in (str, bytes, int, float, bool, type(None), type(...), complex):
        return f"{type(value).__name__}:{value!r}"
    raise _NoTextError


def _code_text(code: types.CodeType) -> str:
    parts = (
        code.co_code,
        code.co_consts,
        *(code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars),
        *(code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags),
        getattr(code, "co_exceptiontable", b""),
    )
    return f"code{_text(parts)}"
