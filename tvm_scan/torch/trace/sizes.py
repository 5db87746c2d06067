"""Sizes that vary in a program that is traced once for all of them.

A user's function is traced on tensors of some shapes. In a compiled or exported program a size may
stand for many; there it has a name, and the trace must not depend on its number.
"""

from __future__ import annotations

import itertools
import operator
from typing import Any

import torch

#: Shape and dtype of each of some tensors; a size that varies is a name, a number below 0.
Kinds = tuple[tuple[tuple[int, ...], torch.dtype], ...]


def has_names(kinds: Kinds) -> bool:
    """Return whether a size varies."""
    return any(n < 0 for shape, _ in kinds for n in shape)


def sized(kinds: Kinds) -> Kinds:
    """Put a number for every size that varies: one that no other size has."""
    if not has_names(kinds):
        return kinds
    taken = {n for shape, _ in kinds for n in shape}
    free = (n for n in itertools.count(2) if n not in taken)
    numbers = {n: n if n >= 0 else next(free) for n in sorted(taken, reverse=True)}
    return tuple((tuple(numbers[n] for n in shape), dtype) for shape, dtype in kinds)


def named_sizes(*groups: Kinds) -> tuple[Kinds, ...]:
    """Name the sizes that vary in a program: the same at one position from the right, if equal."""
    from torch.fx.experimental.symbolic_shapes import has_static_value

    known: list[tuple[int, Any]] = []

    def named(axis: int, size: Any) -> Any:
        if has_static_value(size):
            return size
        for number, (other_axis, other) in enumerate(known):
            if other_axis == axis and other == size:
                return -1 - number
        known.append((axis, size))
        return -len(known)

    return tuple(
        tuple(
            (tuple(named(len(shape) - i, n) for i, n in enumerate(shape)), dtype)
            for shape, dtype in kinds
        )
        for kinds in groups
    )


def constant_sizes(*groups: Kinds) -> tuple[Kinds, ...]:
    """Bind a program to the sizes that it is traced with."""
    return tuple(
        tuple((tuple(operator.index(n) for n in shape), dtype) for shape, dtype in kinds)
        for kinds in groups
    )
