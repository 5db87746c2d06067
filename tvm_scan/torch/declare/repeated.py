"""Calls that are one kernel on their own arguments, without what leads there.

What a function does before its kernel runs takes tens of microseconds: checks, promotion, the
kernel's name. A step of decoding is called again and again with tensors that differ in their
values alone. So where a call was a single kernel on the tensors of the call as they are, the next
one alike is that kernel at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from tvm_scan.torch.kernels.cache import Run, kernel_at, runs_of_kernels
from tvm_scan.torch.kernels.runtime import ALIGNMENT, aligned_empty, launch
from tvm_scan.torch.private import is_watched, transforms_active

__all__ = ["repeated"]

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

#: What is no tensor and may stand in a signature.
_NUMBERS = (bool, int, float, str)
#: Signatures that are remembered.
_MOST = 1024


@dataclass(frozen=True)
class _Way:
    """The kernel of a signature.

    Attributes
    ----------
    key : tuple
        Of the kernel.
    numbers : tuple
        Its operands; those that are tensors are None.
    arguments : tuple of (int, int)
        Operands that are arguments of the call, and which.
    new : tuple of (int, Size, dtype, device)
        Operands that the call makes.
    results : tuple of int
        The operand that each result is.
    changed : tuple of int
        Arguments that are results, too: autograd is told that the kernel wrote to them.
    """

    key: Any
    numbers: tuple[Any, ...]
    arguments: tuple[tuple[int, int], ...]
    new: tuple[tuple[int, torch.Size, torch.dtype, torch.device], ...]
    results: tuple[int, ...]
    changed: tuple[int, ...]

    def __call__(self, values: Sequence[Any]) -> Any:
        operands = [*self.numbers]
        for place, number in self.arguments:
            operands[place] = values[number]
        for place, shape, dtype, device in self.new:
            operands[place] = aligned_empty(shape, dtype, device)
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
            # `is_compiling` first: what comes after it is not traced.
            if torch.compiler.is_compiling() or not when(named):
                return function(*arguments, **named)
            values = (*arguments, *named.values())
            # Of a transform or a mode tensors may have no data to ask for.
            key = None if transforms_active() or is_watched() else _signature(values, named)
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


def _signature(values: Sequence[Any], named: Iterable[str]) -> Any:
    """All but the values of tensors; None where a kernel would not take one as it is."""
    parts: list[Any] = [len(values), *named]
    numbers: dict[int, int] = {}
    for number, value in enumerate(values):
        kind = type(value)
        if kind is Tensor or kind is torch.nn.Parameter:
            if (
                value.requires_grad
                or not value.is_cpu
                or value.is_nested
                or value.layout is not torch.strided
                or value.data_ptr() % ALIGNMENT
                or value.is_neg()
            ):
                return None
            # Which arguments are the same tensor: an operand is known by the first of them.
            same = numbers.setdefault(id(value), number)
            parts += (same, value.shape, value.stride(), value.dtype)
        elif value is None or kind in _NUMBERS:
            parts.append(value)
        else:
            return None
    return tuple(parts)


def _way_of(runs: Sequence[Run], values: Sequence[Any], result: Any) -> _Way | None:
    """The way of a call, given the kernels that it ran; None where it is more than one kernel."""
    if len(runs) != 1:
        return None
    (run,) = runs
    arguments, new = [], []
    for place, one in enumerate(run.operands):
        number = next((n for n, value in enumerate(values) if value is one), None)
        if not isinstance(one, Tensor):
            continue
        if number is not None:
            arguments.append((place, number))
        elif any(part is one for part in result):
            new.append((place, one.shape, one.dtype, one.device))
        else:  # something was computed of the arguments
            return None
    places = [next((n for n, one in enumerate(run.operands) if one is part), -1) for part in result]
    if -1 in places:
        return None
    numbers = tuple(None if isinstance(one, Tensor) else one for one in run.operands)
    by_operand = dict(arguments)
    changed = tuple(by_operand[place] for place in places if place in by_operand)
    return _Way(run.key, numbers, tuple(arguments), tuple(new), tuple(places), changed)
