"""Calls that are one kernel on their own arguments, without what leads there.

What a function does before its kernel runs takes tens of microseconds: checks, promotion, the
kernel's name. A step of decoding or of training is called again and again with tensors that differ
in their values alone. So where a call was a single kernel on the tensors of the call as they are,
the next one alike is that kernel at once; where autograd recorded that, so it does then. A way is
known by a key of all that it relies on; those that were last taken are asked first, which is
quicker than to make a key.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor, is_grad_enabled

from tvm_scan.torch.declare.ways import Way, way_of
from tvm_scan.torch.kernels.events import events
from tvm_scan.torch.kernels.runtime import ALIGNMENT
from tvm_scan.torch.private import (
    dual_level_is_open,
    function_modes,
    is_watched,
    tensor_check,
    transforms_active,
)

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class _Shortcut(NamedTuple):
    """A way of one signature, for calls that are like the one before."""

    #: Arguments that are passed by name, and how many values there are.
    names: tuple[str, ...]
    size: int
    #: Of the values: the result, or None where more than cells and addresses of tensors differ.
    take: Callable[..., Any]


#: What is no tensor and may stand in a signature.
_NUMBERS = (bool, int, float, str)
#: Signatures that are remembered, and those that are asked first.
_MOST, _RECENT = 1024, 4


def repeated(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Make a function remember the kernels of its signatures.

    Parameters
    ----------
    function : callable
        What it does must follow from shapes, dtypes, strides and from what is no tensor, not from
        the values of tensors, unless it is told (`events.noted`). Its result must be a tuple or a
        list, of new tensors that a kernel writes alone.

    Returns
    -------
    callable
        That does the same.
    """
    ways: dict[Any, Way | None] = {}
    #: The last ones.
    recent: list[_Shortcut] = []

    @functools.wraps(function)
    def call(*arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        # `is_compiling` first: what comes after it is not traced.
        if torch.compiler.is_compiling():
            return function(*arguments, **named)
        values, names = (*arguments, *named.values()), tuple(named)
        # What sees operators, or transforms them, `tensor_check` answers for.
        if recent and not function_modes() and not dual_level_is_open():
            for passed, size, take in recent:
                if names == passed and len(values) == size:
                    result: Result | None = take(*values)
                    if result is not None:
                        return result
        # Of a transform or a mode tensors may have no data to ask for.
        if transforms_active() or is_watched():
            return function(*arguments, **named)
        key = _signature(values, names)
        if key is None:
            return function(*arguments, **named)
        way = ways.get(key, ways)
        if way is ways:
            if len(ways) >= _MOST:
                ways.clear()
            with events() as told:
                result = function(*arguments, **named)
            ways[key] = way_of(told, values, result)
            return result
        if not isinstance(way, Way):
            return function(*arguments, **named)
        if (last := _shortcut(way, values, names)) is not None:
            recent[:] = [last, *recent[: _RECENT - 1]]
        return way.function()(*values)  # type: ignore[no-any-return]

    return call


def _shortcut(way: Way, values: tuple[Any, ...], names: tuple[str, ...]) -> _Shortcut | None:
    """Return the shortcut of a way for what is like some values.

    There is none where two arguments are one tensor.
    """
    tensors: dict[str, Tensor] = {}
    constants: dict[str, Any] = {}
    conditions = []
    for name, value in zip(way.arguments, values, strict=True):
        if isinstance(value, Tensor):
            tensors[name] = value
        elif value is None or isinstance(value, bool):
            conditions.append(f"{name} is {value}")
        else:
            # The type first: a tensor would compare its cells with a constant.
            constants |= {f"type_of_{name}": type(value), f"value_of_{name}": value}
            conditions.append(f"type({name}) is type_of_{name} and {name} == value_of_{name}")
    if len({id(tensor) for tensor in tensors.values()}) < len(tensors):
        return None
    if any(tensor.requires_grad for tensor in tensors.values()):
        conditions.append(f"is_grad_enabled() is {is_grad_enabled()}")
        constants["is_grad_enabled"] = is_grad_enabled
    conditions.append(f"alike({', '.join(tensors)})")
    constants["alike"] = tensor_check(list(tensors.values()))
    addresses = " | ".join(f"{name}.data_ptr()" for name in tensors)
    conditions.append(f"not ({addresses}) % {ALIGNMENT}")
    return _Shortcut(names, len(values), way.function(*conditions, **constants))


def _signature(values: Sequence[Any], named: Iterable[str]) -> Any:
    """All but the values of tensors; None where a kernel would not take one as it is."""
    parts: list[Any] = [len(values), *named]
    numbers: dict[int, int] = {}
    enabled = is_grad_enabled()
    for number, value in enumerate(values):
        kind = type(value)
        if kind is Tensor or kind is torch.nn.Parameter:
            if (
                not value.is_cpu
                or value.is_nested
                or value.layout is not torch.strided
                or value.data_ptr() % ALIGNMENT
                or value.is_neg()
            ):
                return None
            # Which arguments are the same tensor: an operand is known by the first of them.
            same = numbers.setdefault(id(value), number)
            parts += (same, value.shape, value.stride(), value.dtype)
            parts.append(value.requires_grad and enabled)
        elif value is None or kind in _NUMBERS:
            parts.append(value)
        else:
            return None
    return tuple(parts)
