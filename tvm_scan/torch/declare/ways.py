"""The one kernel of a call, and where its operands are among the arguments.

`repeated` remembers calls by these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tvm_scan.torch.kernels.cache import Gathered, kernel_at
from tvm_scan.torch.kernels.runtime import ALIGNMENT, aligned_empty, launch, prepared

_empty_like = torch.empty_like


class _New(NamedTuple):
    """An operand that a call makes.

    Attributes
    ----------
    like : int
        An argument that has all of the rest, which is told quicker; -1 where there is none.
    shape, dtype, device
        Of it.
    """

    like: int
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class Way:
    """A kernel, and where its operands and the results of a call are.

    Both are indices of what a call has gathered: its arguments, then `numbers`, those that are
    `changed`, and those that are `new`.

    Attributes
    ----------
    key : tuple
        Of the kernel.
    numbers : tuple
        Its operands that are no tensors.
    changed : tuple of (int, dtype, bool)
        Arguments that the kernel reads in another dtype, and whether they are copied then, since
        they lie in memory otherwise than it reads them.
    new : tuple of _New
        Operands that the call makes.
    operands : callable
        Picks the operands.
    results : callable
        Picks what the results are, or are converted from.
    converted : tuple of (int, dtype)
        Results that are converted.
    written : tuple of int
        Arguments that are results, too: autograd is told that the kernel wrote to them.
    """

    key: Any
    numbers: tuple[Any, ...]
    changed: tuple[tuple[int, torch.dtype, bool], ...]
    new: tuple[_New, ...]
    operands: Callable[[Sequence[Any]], tuple[Any, ...]]
    results: Callable[[Sequence[Any]], tuple[Any, ...]]
    converted: tuple[tuple[int, torch.dtype], ...]
    written: tuple[int, ...]

    def __call__(self, values: Sequence[Any]) -> Any:
        """Run the kernel on the arguments of a call; its results."""
        pool = [*values, *self.numbers]
        for number, dtype, is_copied in self.changed:
            tensor = values[number].to(dtype)
            pool.append(prepared(tensor) if is_copied else tensor)
        for like, shape, dtype, device in self.new:
            tensor = _empty_like(values[like]) if like >= 0 else None
            if tensor is None or tensor.data_ptr() % ALIGNMENT:
                tensor = aligned_empty(shape, dtype, device)
            pool.append(tensor)
        launch(kernel_at(self.key).call, *self.operands(pool))
        for number in self.written:
            torch.autograd.graph.increment_version(values[number])
        if not self.converted:
            return self.results(pool)
        results = [*self.results(pool)]
        for index, dtype in self.converted:
            results[index] = results[index].to(dtype)
        return tuple(results)


def pick(indices: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """Return a function of a sequence: the tuple of what it has at some indices."""
    if len(indices) > 1:
        return itemgetter(*indices)  # of one index it returns no tuple
    (index,) = indices or (None,)
    return lambda sequence: () if index is None else (sequence[index],)


def _like(result: Tensor, values: Sequence[Any]) -> int:
    """Return an argument with the shape, strides, dtype and device of a result, or -1."""

    def kind(tensor: Tensor) -> tuple[Any, ...]:
        return tensor.shape, tensor.stride(), tensor.dtype, tensor.device

    return next(
        (n for n, v in enumerate(values) if isinstance(v, Tensor) and kind(v) == kind(result)), -1
    )


def way_of(gathered: Gathered, values: Sequence[Any], result: Any) -> Way | None:
    """The way of a call, given the kernels that it ran; None where it is more than one kernel."""
    if len(gathered.runs) != 1:
        return None
    (run,) = gathered.runs
    sources = {id(to): source for source, to in gathered.conversions}
    new_ids = {id(sources.get(id(part), part)) for part in result}
    numbers: list[Any] = []
    changed: list[tuple[int, torch.dtype, bool]] = []
    new: list[_New] = []
    # Of each operand, in which of the parts of what a call gathers it is, and where there.
    parts: list[tuple[int, int]] = []
    for operand in run.operands:
        source = sources.get(id(operand), operand)
        number = next((n for n, value in enumerate(values) if value is source), -1)
        if not isinstance(operand, Tensor):
            parts.append((1, len(numbers)))
            numbers.append(operand)
        elif number >= 0:
            is_copied = prepared(operand).data_ptr() != operand.data_ptr()
            is_changed = is_copied or source is not operand
            parts.append((2, len(changed)) if is_changed else (0, number))
            changed += [(number, operand.dtype, is_copied)] * is_changed
        elif id(operand) in new_ids:
            parts.append((3, len(new)))
            new.append(_New(_like(operand, values), operand.shape, operand.dtype, operand.device))
        else:  # something else was computed of the arguments
            return None
    starts = list(accumulate((len(values), len(numbers), len(changed)), initial=0))
    operands = [starts[part] + index for part, index in parts]
    results: list[int] = []
    for part in result:
        operand = sources.get(id(part), part)
        index = next((n for n, passed in enumerate(run.operands) if passed is operand), -1)
        # What a kernel writes to a copy is in no argument.
        if index < 0 or parts[index][0] == 2:
            return None
        results.append(operands[index])
    converted = [(n, part.dtype) for n, part in enumerate(result) if id(part) in sources]
    written = tuple(index for index in results if index < len(values))
    taken = tuple(numbers), tuple(changed), tuple(new), pick(operands), pick(results)
    return Way(run.key, *taken, tuple(converted), written)
