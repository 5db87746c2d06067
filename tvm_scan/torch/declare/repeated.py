"""Calls that are one kernel on their own arguments, without what leads there.

What a function does before its kernel runs takes tens of microseconds: checks, promotion, the
kernel's name. A step of decoding is called again and again with tensors that differ in their
values alone. So where a call was a single kernel on the tensors of the call as they are, the next
one alike is that kernel at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from tvm_scan.torch.declare.dispatch import sees_nothing
from tvm_scan.torch.kernels.cache import Run, kernel_at, runs_of_kernels
from tvm_scan.torch.kernels.runtime import ALIGNMENT, aligned_empty, launch

__all__ = ["repeated"]

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

#: Signatures that are remembered.
_MOST = 1024


@dataclass(frozen=True)
class _New:
    """A tensor that a call makes."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class _Argument:
    """The argument of a call with this number."""

    number: int


@dataclass(frozen=True)
class _Way:
    """The kernel of a signature.

    Attributes
    ----------
    key : tuple
        Of the kernel.
    operands : tuple
        For each operand where it comes from, or the number that it is.
    results : tuple of int
        The operand that each result is.
    changed : tuple of int
        Arguments that are results, too: autograd is told that the kernel wrote to them.
    """

    key: Any
    operands: tuple[Any, ...]
    results: tuple[int, ...]
    changed: tuple[int, ...]

    def __call__(self, values: Sequence[Any]) -> Any:
        operands = []
        for one in self.operands:
            if type(one) is _Argument:
                operands.append(values[one.number])
            elif type(one) is _New:
                operands.append(aligned_empty(one.shape, one.dtype, one.device))
            else:
                operands.append(one)
        launch(kernel_at(self.key).call, *operands)
        for number in self.changed:
            torch.autograd.graph.increment_version(values[number])
        return tuple([operands[place] for place in self.results])


def repeated(
    when: Callable[[Mapping[str, object]], bool],
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Make a function remember the kernels of its signatures.

    Parameters
    ----------
    when : callable
        Given what is passed by name: whether the call may be remembered. What it does must follow
        from shapes, dtypes, strides and from what is no tensor, not from the values of tensors,
        and its result must be a tuple.

    Returns
    -------
    callable
        A decorator.
    """

    def decorate(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        ways: dict[Any, _Way | None] = {}

        @functools.wraps(function)
        def call(*arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
            values = (*arguments, *named.values())
            if not when(named) or not sees_nothing(values):
                return function(*arguments, **named)
            key = _signature(values, named)
            if key is None:
                return function(*arguments, **named)
            way = ways.get(key, ways)
            if way is ways:
                if len(ways) >= _MOST:
                    ways.clear()
                with runs_of_kernels() as runs:
                    result = function(*arguments, **named)
                ways[key] = _way_of(runs, values, result)
                return result
            if way is None:
                return function(*arguments, **named)
            return way(values)  # type: ignore[operator, no-any-return]

        return call

    return decorate


def _signature(values: Sequence[Any], named: dict[str, Any]) -> Any:
    """All but the values of tensors; None where a kernel would not take one as it is."""
    parts: list[Any] = [len(values), *named]
    numbers: dict[int, int] = {}
    for number, value in enumerate(values):
        if not isinstance(value, Tensor):
            if value is not None and not isinstance(value, (bool, int, float, str)):
                return None
            parts.append(value)
            continue
        # Which arguments are the same tensor: an operand is known by the first of them.
        parts.append(numbers.setdefault(id(value), number))
        if value.requires_grad or not value.is_cpu or value.layout is not torch.strided:
            return None
        if value.data_ptr() % ALIGNMENT:
            return None
        parts += (value.shape, value.stride(), value.dtype)
    return tuple(parts)


def _way_of(runs: Sequence[Run], values: Sequence[Any], result: Any) -> _Way | None:
    """The way of a call, given the kernels that it ran; None where it is more than one kernel."""
    if len(runs) != 1:
        return None
    (run,) = runs
    operands: list[Any] = []
    for one in run.operands:
        number = next((n for n, value in enumerate(values) if value is one), None)
        if not isinstance(one, Tensor):
            operands.append(one)
        elif number is not None:
            operands.append(_Argument(number))
        elif any(part is one for part in result):
            operands.append(_New(one.shape, one.dtype, one.device))
        else:  # something was computed of the arguments
            return None
    places = [next((n for n, one in enumerate(run.operands) if one is part), -1) for part in result]
    if -1 in places:
        return None
    changed = [operands[n].number for n in places if isinstance(operands[n], _Argument)]
    return _Way(run.key, tuple(operands), tuple(places), tuple(changed))
