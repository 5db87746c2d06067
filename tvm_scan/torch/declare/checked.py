"""Checks of the tensors of a function by its signature."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ParamSpec, TypeVar, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from tvm_scan.torch.arguments import INTEGERS, check, check_number, check_tensors

__all__ = ["checked"]

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

#: Kinds of dtypes, and the words for them.
_KINDS: Mapping[str, tuple[Callable[[torch.dtype], bool], str]] = {
    "floats": (lambda dtype: dtype.is_floating_point, "floats in"),
    "complex": (lambda dtype: dtype.is_floating_point or dtype.is_complex, "floats or complex in"),
    "integers": (lambda dtype: dtype in INTEGERS, "integers in"),
    "bool": (lambda dtype: dtype == torch.bool, "a bool"),
}


def checked(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Have the annotated tensors of a function checked before each call.

    Parameters
    ----------
    function : callable
        With parameters such as ``x: Annotated[Tensor, "batch length"]``: a name for each size, the
        same for the same size; ``|`` between shapes of which it may have either, ``...`` for any
        shape; before them the kind of dtypes (`_KINDS`), floats where it is left out. ``Tensor |
        None`` may be None, ``Tensor | float`` a number.

    Returns
    -------
    callable
        Which raises ``ValueError`` unless each is such a tensor, all of them on one device.
    """
    names = tuple(inspect.signature(function).parameters)
    hints = get_type_hints(function, include_extras=True)
    takes = {n: get_args(hints[n]) for n in names if get_origin(hints[n]) is Annotated}
    may_be = {n: get_args(types) for n, (types, _) in takes.items()}
    shapes = {n: _kind_and_shapes(text) for n, (_, text) in takes.items()}

    @functools.wraps(function)
    def call(*arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        owner = function.__name__
        sizes: dict[str, int] = {}
        by_name = {**dict(zip(names, arguments, strict=False)), **named}
        tensors: dict[str, Any] = {}
        for name, types in may_be.items():
            if name not in by_name:
                continue
            value = by_name[name]
            if isinstance(value, Tensor):
                tensors[name] = value
            elif float in types:
                check_number(owner, name, value)
            elif value is not None or type(None) not in types:
                tensors[name] = value
        check_tensors(owner, **tensors)
        for name, tensor in tensors.items():
            _check(owner, name, tensor, *shapes[name], sizes)
        return function(*arguments, **named)

    return call


def _kind_and_shapes(text: str) -> tuple[str, list[list[str]]]:
    first, _, rest = text.partition(" ")
    kind, text = (first, rest) if first in _KINDS else ("floats", text)
    return kind, [] if text == "..." else [one.split() for one in text.split("|")]


def _check(
    owner: str, name: str, tensor: Tensor, kind: str, shapes: list[list[str]], sizes: dict[str, int]
) -> None:
    """Compare kind and shape with those declared; take note of the sizes that are new."""
    found = tuple(tensor.shape)
    for shape in shapes:
        if len(shape) == len(found):
            expected = tuple([sizes.setdefault(n, s) for n, s in zip(shape, found, strict=True)])
            if expected != found:
                check(False, owner, f"{name} of shape {expected}", found, "reshape it")
            break
    else:
        if shapes:
            counts = " or ".join(str(len(one)) for one in shapes)
            check(False, owner, f"{name} with {counts} axes", found, "reshape it")
    holds, words = _KINDS[kind]
    if not holds(tensor.dtype):
        check(False, owner, f"{words} {name}", tensor.dtype, "convert it with .to")
