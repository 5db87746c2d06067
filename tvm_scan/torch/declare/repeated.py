"""Calls that are one kernel on their own arguments, without what leads there.

What a function does before its kernel runs takes tens of microseconds: checks, promotion, the
kernel's name. A step of decoding is called again and again with tensors that differ in their
values alone. So where a call was a single kernel on the tensors of the call as they are, the next
one alike is that kernel at once. A way is known by a key of all that it relies on; those that were
last taken are asked first, which is quicker than to make a key.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from tvm_scan.torch.kernels.cache import Gathered, kernel_at, runs_of_kernels
from tvm_scan.torch.kernels.runtime import ALIGNMENT, aligned_empty, launch, prepared
from tvm_scan.torch.private import is_watched, tensor_check, transforms_active

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

#: What is no tensor and may stand in a signature.
_NUMBERS = (bool, int, float, str)
#: Signatures that are remembered, and those that are asked first.
_MOST, _RECENT = 1024, 4


@dataclass(frozen=True)
class _New:
    """An operand that a call makes.

    Attributes
    ----------
    index : int
        Of the operand.
    shape, dtype, device
        Of it.
    like : int
        An argument that has all three, which is told quicker; -1 where there is none.
    """

    index: int
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    like: int

    def make(self, values: Sequence[Any]) -> Tensor:
        if self.like >= 0:
            tensor = torch.empty_like(values[self.like])
            if not tensor.data_ptr() % ALIGNMENT:
                return tensor
        return aligned_empty(self.shape, self.dtype, self.device)


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
    converted : tuple of (int, dtype)
        Those of the operands that are converted.
    copied : tuple of int
        Those that then lie in memory otherwise than the kernel reads them.
    new : tuple of _New
        Operands that the call makes.
    results : tuple of (int, dtype or None)
        The operand that each result is, or is converted from.
    changed : tuple of int
        Arguments that are results, too: autograd is told that the kernel wrote to them.
    """

    key: Any
    numbers: tuple[Any, ...]
    arguments: tuple[tuple[int, int], ...]
    converted: tuple[tuple[int, torch.dtype], ...]
    copied: tuple[int, ...]
    new: tuple[_New, ...]
    results: tuple[tuple[int, torch.dtype | None], ...]
    changed: tuple[int, ...]

    def __call__(self, values: Sequence[Any]) -> Any:
        operands = [*self.numbers]
        for index, number in self.arguments:
            operands[index] = values[number]
        for index, dtype in self.converted:
            operands[index] = operands[index].to(dtype)
        for index in self.copied:
            operands[index] = prepared(operands[index])
        for tensor in self.new:
            operands[tensor.index] = tensor.make(values)
        launch(kernel_at(self.key).call, *operands)
        for number in self.changed:
            torch.autograd.graph.increment_version(values[number])
        return tuple(
            [operands[p] if dtype is None else operands[p].to(dtype) for p, dtype in self.results]
        )


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
        #: The last ones.
        recent: list[_Recent] = []

        @functools.wraps(function)
        def call(*arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
            # `is_compiling` first: what comes after it is not traced.
            if torch.compiler.is_compiling() or not when(named):
                return function(*arguments, **named)
            # Of a transform or a mode tensors may have no data to ask for.
            if transforms_active() or is_watched():
                return function(*arguments, **named)
            values, names = (*arguments, *named.values()), tuple(named)
            for known in recent:
                if known.takes(values, names):
                    return known.way(values)  # type: ignore[no-any-return]
            key = _signature(values, names)
            if key is None:
                return function(*arguments, **named)
            way = ways.get(key, ways)
            if way is ways:
                if len(ways) >= _MOST:
                    ways.clear()
                with runs_of_kernels() as gathered:
                    result = function(*arguments, **named)
                ways[key] = _way_of(gathered, values, result)
                return result
            if not isinstance(way, _Way):
                return function(*arguments, **named)
            if (last := _recent_of(way, values, names)) is not None:
                recent[:] = [last, *recent[: _RECENT - 1]]
            return way(values)  # type: ignore[no-any-return]

        return call

    return decorate


@dataclass(frozen=True)
class _Recent:
    """A way, and how to tell quickly that a call is of its signature.

    Attributes
    ----------
    way : _Way
        The way.
    names : tuple of str
        What is passed by name.
    tensors, others : tuple of int
        Which of the values are tensors, and which are not.
    constants, kinds : tuple
        Those that are not, and their types.
    alike : callable
        Whether tensors differ from those of the signature in their values alone.
    """

    way: _Way
    names: tuple[str, ...]
    tensors: tuple[int, ...]
    others: tuple[int, ...]
    constants: tuple[Any, ...]
    kinds: tuple[type, ...]
    alike: Callable[..., bool]

    def takes(self, values: Sequence[Any], names: tuple[str, ...]) -> bool:
        if names != self.names or len(values) != len(self.tensors) + len(self.others):
            return False
        for number, constant, kind in zip(self.others, self.constants, self.kinds, strict=True):
            # The types first: a tensor would compare its cells.
            value = values[number]
            if type(value) is not kind or value != constant:
                return False
        tensors = [values[number] for number in self.tensors]
        if not self.alike(*tensors):
            return False
        for tensor in tensors:
            if tensor.data_ptr() % ALIGNMENT or tensor.requires_grad:
                return False
        return True


def _recent_of(way: _Way, values: Sequence[Any], names: tuple[str, ...]) -> _Recent | None:
    """Return how to tell the calls of a way quickly; None where two arguments are one tensor."""
    tensors = tuple([n for n, value in enumerate(values) if isinstance(value, Tensor)])
    if len({id(values[n]) for n in tensors}) < len(tensors):
        return None
    others = tuple([n for n, _ in enumerate(values) if n not in tensors])
    constants = tuple([values[n] for n in others])
    kinds = tuple([type(value) for value in constants])
    alike = tensor_check([values[n] for n in tensors])
    return _Recent(way, names, tensors, others, constants, kinds, alike)


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


def _like(result: Tensor, values: Sequence[Any]) -> int:
    """Return an argument with the shape, strides, dtype and device of a result, or -1."""

    def kind(tensor: Tensor) -> tuple[Any, ...]:
        return tensor.shape, tensor.stride(), tensor.dtype, tensor.device

    return next(
        (n for n, v in enumerate(values) if isinstance(v, Tensor) and kind(v) == kind(result)), -1
    )


def _way_of(gathered: Gathered, values: Sequence[Any], result: Any) -> _Way | None:
    """The way of a call, given the kernels that it ran; None where it is more than one kernel."""
    if len(gathered.runs) != 1:
        return None
    (run,) = gathered.runs
    sources = {id(to): source for source, to in gathered.conversions}
    arguments, converted, copied, new = [], [], [], []
    for index, passed in enumerate(run.operands):
        if not isinstance(passed, Tensor):
            continue
        source = sources.get(id(passed), passed)
        number = next((n for n, value in enumerate(values) if value is source), None)
        if number is not None:
            arguments.append((index, number))
            if source is not passed:
                converted.append((index, passed.dtype))
            if prepared(passed).data_ptr() != passed.data_ptr():
                copied.append(index)
        elif any(sources.get(id(part), part) is passed for part in result):
            new.append(
                _New(index, passed.shape, passed.dtype, passed.device, _like(passed, values))
            )
        else:  # something else was computed of the arguments
            return None
    results: list[tuple[int, torch.dtype | None]] = []
    for part in result:
        operand = sources.get(id(part), part)
        index = next(
            (n for n, operand_of_run in enumerate(run.operands) if operand_of_run is operand), -1
        )
        results.append((index, None if operand is part else part.dtype))
    written = {index for index, _ in results}
    # What a kernel writes to a copy is in no argument.
    if -1 in written or written & {*copied, *(index for index, _ in converted)}:
        return None
    numbers = tuple(None if isinstance(value, Tensor) else value for value in run.operands)
    changed = tuple(number for index, number in arguments if index in written)
    taken = tuple(arguments), tuple(converted), tuple(copied), tuple(new)
    return _Way(run.key, numbers, *taken, tuple(results), changed)
