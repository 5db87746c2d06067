"""Reads of a user's function beside its arguments, as far as they are known exactly.

Theorem. A function whose bytecode imports nothing, binds no global and no attribute, and whose
globals, builtins and closure variables, followed through the attributes of modules, all end in
values that are compared, in functions of the same kind, or in operators and functions without a
state, records the same graph whenever those values, its arguments' kinds and `global_state` are the
same: nothing else enters. A function that this cannot be said of has no state, and is traced anew.
"""

from __future__ import annotations

import builtins
import dis
import functools
import types
from itertools import takewhile
from typing import Any

import torch

from tvm_scan.torch.private import is_watched

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...), torch.dtype)
#: Builtins that give the same for the same arguments, and read nothing else.
_PURE_NAMES = (
    "abs all any bool complex dict divmod enumerate filter float frozenset int isinstance "
    "issubclass iter len list map max min next pow range reversed round set slice sorted str "
    "sum tuple type zip ArithmeticError AssertionError Exception IndexError KeyError "
    "NotImplementedError RuntimeError TypeError ValueError"
)
_PURE = frozenset(_PURE_NAMES.split())
#: Of torch, beside the operators on tensors: they read `global_state` alone.
_OF_TORCH = "tensor zeros ones full arange eye linspace is_tensor Tensor device finfo iinfo"
#: Modules whose functions have no state.
_STATELESS = ("math", "cmath", "operator", "_operator")


def global_state() -> tuple[Any, ...]:
    """The state of torch that a function depends on, beside what the function reads."""
    casts = [
        torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        for kind in ("cpu", "cuda")
    ]
    # Another default device is a mode, which takes long to ask.
    device = str(torch.get_default_device()) if is_watched() else "cpu"
    return torch.get_default_dtype(), device, *casts


def state_of(function: Any) -> Any:
    """Return what a function reads beside its arguments.

    Parameters
    ----------
    function : callable
        The user's.

    Returns
    -------
    tuple or None
        Comparable, and the same if the function records the same graph; None if that is unknown.
    """
    try:
        return _state(function, frozenset())
    except _UnknownError:
        return None


class _UnknownError(Exception):
    """The error that something is read that cannot be compared."""


def _state(function: Any, seen: frozenset[int]) -> tuple[Any, ...]:
    if type(function) is not types.FunctionType or id(function) in seen:
        raise _UnknownError
    seen |= {id(function)}
    code, variables = function.__code__, function.__globals__
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    named = function.__kwdefaults__ or {}
    # Code compares by its content.
    parts: list[Any] = [code]
    parts += (_value(value, seen) for value in (*(function.__defaults__ or ()), *named.values()))
    for is_free, name, path in _reads(code):
        if is_free:
            if name not in cells:
                continue  # a variable of the function itself, which one inside of it reads
            try:
                value = cells[name].cell_contents
            except ValueError:  # without a value yet
                raise _UnknownError from None
        elif name in variables:
            value = variables[name]
        elif name in _PURE:
            value = getattr(builtins, name)
        else:
            raise _UnknownError
        for attribute in path:
            if not isinstance(value, types.ModuleType):
                break
            value = getattr(value, attribute, value)
        parts.append(_value(value, seen))
    return tuple(parts)


def _value(value: Any, seen: frozenset[int]) -> Any:
    """A value as what it is compared by."""
    if type(value) in _PLAIN or isinstance(value, torch.dtype):
        return type(value).__name__, repr(value)  # 0.0 is not -0.0
    if type(value) is tuple:
        return tuple(_value(part, seen) for part in value)
    known = _name_of_stateless(value)
    return _state(value, seen) if known is None else known


def _name_of_stateless(value: Any) -> str | None:
    """Name a function or class that reads nothing but `global_state`; None for any other."""
    if id(value) in _of_torch():
        return _of_torch()[id(value)]
    if isinstance(value, (types.BuiltinFunctionType, type)):
        home, name = value.__module__, value.__name__
        if home in _STATELESS or (home == "builtins" and name in _PURE):
            return f"{home}.{name}"
    return None


@functools.cache
def _of_torch() -> dict[int, str]:
    """Torch's functions on tensors, and those of `_OF_TORCH`, by identity."""
    from torch.overrides import get_overridable_functions, resolve_name

    functions = {f"torch.{name}": getattr(torch, name) for name in _OF_TORCH.split()}
    for group in get_overridable_functions().values():
        functions |= {resolve_name(function) or "": function for function in group}

    def is_own(function: Any) -> bool:
        """Return whether nobody has put another one in its place."""
        return (getattr(function, "__module__", None) or "torch").partition(".")[0] == "torch"

    return {id(f): name for name, f in functions.items() if name and is_own(f)}


@functools.lru_cache(maxsize=512)
def _reads(code: types.CodeType) -> tuple[tuple[bool, str, tuple[str, ...]], ...]:
    """Names that code reads of the outside: whether of the closure, the name, and its attributes.

    Functions inside of it are a part of it.
    """
    reads: list[tuple[bool, str, tuple[str, ...]]] = []
    instructions = list(dis.get_instructions(code))
    for position, instruction in enumerate(instructions):
        kind, name = instruction.opname, instruction.argval
        if kind in _OUTSIDE or kind.endswith("_NAME"):
            raise _UnknownError
        if kind in ("STORE_DEREF", "DELETE_DEREF") and name in code.co_freevars:
            raise _UnknownError
        if kind in ("LOAD_GLOBAL", "LOAD_DEREF"):
            following = takewhile(_is_of_attribute, instructions[position + 1 :])
            path = tuple(instruction.argval for instruction in following)
            reads.append((kind == "LOAD_DEREF", name, path))
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            reads += _reads(constant)
    return tuple(dict.fromkeys(reads))


#: Instructions that read or change what is outside of a function in other ways.
_OUTSIDE_NAMES = (
    "IMPORT_FROM IMPORT_STAR STORE_GLOBAL DELETE_GLOBAL STORE_ATTR DELETE_ATTR "
    "LOAD_BUILD_CLASS LOAD_LOCALS LOAD_CLASSDEREF LOAD_FROM_DICT_OR_DEREF "
    "LOAD_FROM_DICT_OR_GLOBALS"
)
_OUTSIDE = frozenset(_OUTSIDE_NAMES.split())


def _is_of_attribute(instruction: dis.Instruction) -> bool:
    return instruction.opname in ("LOAD_ATTR", "LOAD_METHOD")
