"""Lanes that share a block: which of them a thread is in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class Row:
    """One lane of a block; its threads are a row of the block.

    Attributes
    ----------
    count : int
        Lanes of the block.
    index : Expr, optional
        Which of them; None if there is only one.
    """

    count: int = 1
    index: Any = None

    @property
    def lead(self) -> list[Any]:
        """Leading extents of an array that each lane has a part of."""
        return [] if self.index is None else [self.count]

    @property
    def at(self) -> list[Any]:
        """Leading indices into such an array."""
        return [] if self.index is None else [self.index]


#: A block with one lane.
ALONE = Row()
