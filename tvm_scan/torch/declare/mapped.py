"""Rules of ``torch.vmap``: what a mapped axis of its arguments means to an operator.

A rule is given the operator, the size of the mapped axis, the axis of every argument (None where it
has none), and the arguments; it returns the results and the mapped axis of each.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

Rule = Callable[[Callable[..., Any], int, Sequence[Any], Sequence[Any]], tuple[Any, Any]]


def fold(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    """Put a mapped axis (or `size` copies, where there is none) into the first axis."""
    if dim is None:
        return tensor.unsqueeze(0).expand(size, *tensor.shape).flatten(0, 1)
    return tensor.movedim(dim, 0).flatten(0, 1)


def folded(
    call: Callable[..., Any],
    size: int,
    dims: Sequence[Any],
    arguments: Sequence[Any],
    shared: Container[int] = (),
) -> tuple[Any, Any]:
    """Run an operator once, mapped elements as further rows along the first axis of all tensors.

    Those whose numbers are `shared` have no such axis, and belong to all rows; where one of them is
    mapped, the operator runs on one element after another.
    """
    if any(dim is not None for i, dim in enumerate(dims) if i in shared):
        return one_by_one(call, size, dims, arguments)
    others = [None if i in shared else argument for i, argument in enumerate(arguments)]
    rows = enumerate(_each(lambda t, dim: fold(t, dim, size), others, dims))
    return _split(call(*(arguments[i] if i in shared else row for i, row in rows)), size)


def _split(results: Any, size: int) -> tuple[Any, Any]:
    """Results of folded arguments with the mapped axis first."""
    if isinstance(results, Tensor):
        return results.unflatten(0, (size, -1)), 0
    parts = [t.unflatten(0, (size, -1)) for t in results]
    return type(results)(parts), type(results)([0] * len(parts))


def one_by_one(
    call: Callable[..., Any], size: int, dims: Sequence[Any], arguments: Sequence[Any]
) -> tuple[Any, Any]:
    """Run an operator on one mapped element after another."""

    def element(index: int) -> Iterator[Any]:
        return _each(lambda t, dim: t if dim is None else t.select(dim, index), arguments, dims)

    rows = [call(*element(index)) for index in range(size)]
    if isinstance(rows[0], Tensor):
        return torch.stack(rows), 0
    stacked = [torch.stack(parts) for parts in zip(*rows, strict=True)]
    return type(rows[0])(stacked), type(rows[0])([0] * len(stacked))


def _each(
    change: Callable[[Tensor, Any], Tensor], arguments: Sequence[Any], dims: Sequence[Any]
) -> Iterator[Any]:
    """The arguments with their tensors changed, those in lists too."""
    for argument, dim in zip(arguments, dims, strict=True):
        if isinstance(argument, Tensor):
            yield change(argument, dim)
        elif isinstance(argument, (list, tuple)):
            each = [None] * len(argument) if dim is None else dim
            yield [change(t, d) for t, d in zip(argument, each, strict=True)]
        else:
            yield argument
