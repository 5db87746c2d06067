"""Checks of the tensors of a function by its signature."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ParamSpec, TypeVar, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from tvm_scan.torch.arguments import INTEGERS, check, check_number, check_tensors

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

#: Kinds of dtypes, the words for them, and what to do with another; "any" is each.
_KINDS: Mapping[str, tuple[Callable[[torch.dtype], bool], str, str]] = {
    "ordered": (
        lambda dtype: not dtype.is_complex,
        "numbers with an order in",
        "take .abs() or .real",
    ),
    "floats": (lambda dtype: dtype.is_floating_point, "floats in", "convert it with .to"),
    "complex": (
        lambda dtype: dtype.is_floating_point or dtype.is_complex,
        "floats or complex in",
        "convert it with .to",
    ),
    "integers": (lambda dtype: dtype in INTEGERS, "integers in", "convert it with .to"),
    "bool": (lambda dtype: dtype == torch.bool, "a bool", "convert it with .bool()"),
}


def checked(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Have the annotated tensors of a function checked before each call.

    Parameters
    ----------
    function : callable
        With parameters such as ``x: Annotated[Tensor, "batch length"]``: a name for each size, the
        same for the same size; ``|`` between shapes of which it may have either, ``...`` for any
        shape; before them the kind of dtypes (`_KINDS`), floats where it is left out. ``Tensor |
        None`` may be None, ``Tensor | float`` and ``Tensor | complex`` a number.

    Returns
    -------
    callable
        Which raises ``ValueError`` unless each is such a tensor, all of them on one device.
    """
    names, held = tuple(inspect.signature(function).parameters), check_of(function)

    @functools.wraps(function)
    def call(*arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        held(**{**dict(zip(names, arguments, strict=False)), **named})
        return function(*arguments, **named)

    return call


def check_of(function: Callable[..., Any]) -> Callable[..., None]:
    """Return what checks arguments of a function by name, for one that has a shorter way first.

    See `checked`, which does it before each call.
    """
    hints = get_type_hints(function, include_extras=True)
    takes = [(n, *get_args(hint)) for n, hint in hints.items() if get_origin(hint) is Annotated]
    # Once: a call may be as quick as a check.
    declared = [
        (
            name,
            type(None) in get_args(types),
            not {float, complex}.isdisjoint(get_args(types)),
            *_kind_and_shapes(text),
        )
        for name, types, text in takes
    ]
    owner = function.__name__

    def held(**arguments: Any) -> None:
        tensors = {}
        for name, is_optional, may_be_number, _, _ in declared:
            if name not in arguments:
                continue
            value = arguments[name]
            if value is None and is_optional:
                continue
            if may_be_number and not isinstance(value, Tensor):
                check_number(owner, name, value)
            else:
                tensors[name] = value
        check_tensors(owner, **tensors)
        sizes: dict[str, int] = {}
        for name, _, _, kind, shapes in declared:
            if name not in tensors:
                continue
            tensor = tensors[name]
            if shapes:
                _check_shape(owner, name, tensor, shapes, sizes)
            if kind is not None:
                holds, words, fix = kind
                if not holds(tensor.dtype):
                    check(False, owner, f"{words} {name}", tensor.dtype, fix)

    return held


def _kind_and_shapes(text: str) -> tuple[Any, list[list[str]]]:
    first, _, rest = text.partition(" ")
    kind, text = (first, rest) if first in (*_KINDS, "any") else ("floats", text)
    return _KINDS.get(kind), [] if text == "..." else [shape.split() for shape in text.split("|")]


def _check_shape(
    owner: str, name: str, tensor: Tensor, shapes: list[list[str]], sizes: dict[str, int]
) -> None:
    """Compare a shape with those declared; take note of the sizes that are new."""
    found = tuple(tensor.shape)
    for shape in shapes:
        if len(shape) == len(found):
            expected = tuple([sizes.setdefault(n, s) for n, s in zip(shape, found, strict=True)])
            if expected != found:
                check(False, owner, f"{name} of shape {expected}", found, "reshape it")
            return
    counts = " or ".join(str(len(shape)) for shape in shapes)
    check(False, owner, f"{name} with {counts} axes", found, "reshape it")
