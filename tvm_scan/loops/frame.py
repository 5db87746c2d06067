"""Arrays with time in the middle, and the order of their axes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

from tvm import tirx
from tvm.ir import Expr

from tvm_scan.loops.writer import Index


@dataclass(frozen=True)
class Frame:
    """The axes of arrays (outer, length, inner), or (outer, inner, length) where time is last.

    Plans put the inner axis into vectors, or interleave it where time is contiguous. A side that
    is None is no axis of the arrays.
    """

    outer: Expr | None
    inner: Expr | None
    length: Expr
    time_last: bool
    reverse: bool

    @property
    def lanes(self) -> tuple[Expr, ...]:
        """The extents of the lanes: those of the arrays without time."""
        return tuple(side for side in (self.outer, self.inner) if side is not None)

    @property
    def names(self) -> str:
        """A letter for each axis of the lanes."""
        sides = zip("pq", (self.outer, self.inner), strict=True)
        return "".join(name for name, side in sides if side is not None)

    @property
    def shape(self) -> tuple[Expr, ...]:
        """The extents of the arrays."""
        return self._with_time(self.lanes, self.length)

    def time(self, step: Expr) -> Expr:
        """Return the index in time that the loop reaches at `step`."""
        return self.length - 1 - step if self.reverse else step

    def at(self, lane: Index, step: Expr) -> tuple[Any, ...]:
        """Return the indices of the element that a lane reaches at `step`."""
        return self._with_time(lane, self.time(step))

    def _with_time(self, lane: Index, time: Expr) -> tuple[Any, ...]:
        before = len(lane) if self.time_last else self.outer is not None
        return (*lane[:before], time, *lane[before:])


def framed(write: Callable[..., tirx.PrimFunc]) -> Callable[..., tirx.PrimFunc]:
    """Let a function of a `Frame` take the fields of one instead, the sides first."""

    @wraps(write)
    def build(
        outer: Expr | None,
        inner: Expr | None,
        length: Expr,
        *,
        time_last: bool = False,
        reverse: bool = False,
        **options: Any,
    ) -> tirx.PrimFunc:
        return write(Frame(outer, inner, length, time_last, reverse), **options)

    return build
