"""Events of a call, told while it runs: the tensors that it makes, and its kernels.

`declare.ways` makes of that a function that does the same to other tensors.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from tvm_scan.torch.kernels.devices import CPU, device_of
from tvm_scan.torch.kernels.runtime import LARGE, aligned_empty, aligned_like
from tvm_scan.torch.private import empty_on_cpu


class Step(NamedTuple):
    """A tensor, and how to make one alike; None of what is done for its effect, as a check."""

    result: Tensor | None
    function: Callable[..., Any]
    arguments: tuple[Any, ...]


class Run(NamedTuple):
    """A run of a kernel: what `cache.kernel_at` knows it by, and what it was run on."""

    key: Any
    operands: tuple[Any, ...]


class Recording(NamedTuple):
    """A call that autograd recorded: how to make one alike, what it took, gave, and did."""

    call: Callable[..., Any]
    arguments: tuple[Any, ...]
    results: Any
    inside: list[Any]


Event = Step | Run | Recording
Result = TypeVar("Result", bound=Tensor | None)

#: Of each thread the events that are gathered.
_watched = threading.local()


@contextlib.contextmanager
def events() -> Iterator[list[Event]]:
    """Gather what is told in this thread, which whoever gathers already is not told."""
    before, gathered = getattr(_watched, "events", None), list[Event]()
    _watched.events = gathered
    try:
        yield gathered
    finally:
        _watched.events = before


def note(event: Event) -> None:
    """Tell `events` of one."""
    gathered = getattr(_watched, "events", None)
    if gathered is not None:
        gathered.append(event)


def recorded(call: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Make a call that autograd records; the last argument of `call` is None, or a way inside."""
    if getattr(_watched, "events", None) is None:  # what is gathered lives until then
        return call(*arguments, None)
    with events() as inside:
        results = call(*arguments, None)
    note(Recording(call, arguments, results, inside))
    return results


def noted(result: Result, function: Callable[..., Any], *arguments: Any) -> Result:
    """Return a result, having told `events` which function of which arguments it is.

    All that a call makes of its arguments and then uses has to be told; with a result of None, too,
    that it wrote to what it made, or checked values of tensors.
    """
    # An argument that is returned as it is was not made.
    is_made = result is None or all(result is not value for value in arguments)
    if is_made and not torch.compiler.is_compiling():
        note(Step(result, function, arguments))
    return result


def told(function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function, and tell `events` of it as in `noted`."""
    return noted(function(*arguments), function, *arguments)


def converted(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert a tensor to a dtype; one that has it stays itself."""
    # To ask torch for the same tensor takes ten times as long as to compare.
    return tensor if tensor.dtype == dtype else told(Tensor.to, tensor, dtype)


def copied(tensor: Tensor) -> Tensor:
    """Copy a tensor for a kernel that overwrites it."""
    copy = allocated_like(tensor).copy_(tensor)
    noted(None, Tensor.copy_, copy, tensor)
    return copy


def allocated(shape: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Allocate a contiguous aligned tensor for a kernel that writes all of it."""
    return _allocation(aligned_empty(shape, dtype, device))


def allocated_like(tensor: Tensor) -> Tensor:
    """Allocate another tensor of its shape, dtype and device."""
    return _allocation(aligned_like(tensor))


def _allocation(tensor: Tensor) -> Tensor:
    shape, dtype = tuple(tensor.shape), tensor.dtype
    if device_of(tensor) is CPU and tensor.nbytes < LARGE:
        return noted(tensor, empty_on_cpu, shape, tensor.stride(), dtype)
    return noted(tensor, aligned_empty, shape, dtype, tensor.device)
