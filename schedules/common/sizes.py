"""Sizes of a recurrence: lanes, steps, and the elements of its state."""

from __future__ import annotations

from math import prod
from typing import Any

from tvm_scan import tir
from tvm_scan.delta_rule import TimeLoop

#: Stand-in for an extent that is not known until run time.
UNKNOWN = 4096


def known_extent(extent: Any) -> int:
    """A constant extent, or ``UNKNOWN`` for one that is not known until run time."""
    value = tir.as_int(extent)
    return UNKNOWN if value is None else value


def known_rows(recurrence: TimeLoop) -> int:
    """Lanes of a recurrence, extents that are not known taken as ``UNKNOWN``."""
    return prod(known_extent(lane.extent) for lane in recurrence.lanes)


def sizes_of(recurrence: TimeLoop) -> tuple[int | None, int | None]:
    """Lanes and steps; None where they are not known until run time.

    Parameters
    ----------
    recurrence : Recurrence or DeltaRule
        What is asked about.

    Returns
    -------
    rows : int or None
    length : int or None
    """
    lanes = [tir.as_int(lane.extent) for lane in recurrence.lanes]
    rows = None if None in lanes else prod(n for n in lanes if n is not None)
    return rows, tir.as_int(recurrence.time.extent)


def chunks_too_short(chunks: int, steps: int) -> str | None:
    """Say why chunks of so many steps are not worth it; None where they are."""
    if chunks <= max(1, steps // 4):
        return None
    return f"expected chunks of 4 steps or more, got {chunks} chunks of {steps} steps"


def element_parts(recurrence: TimeLoop) -> list[tuple[int, str]]:
    """Cells and dtype of every part of every group's element."""
    return [
        (prod(int(axis.extent) for axis in recurrence.state_axes(group)), dtype)
        for group in recurrence.groups
        for dtype in group.algebra.dtypes
    ]


def element_bytes(recurrence: TimeLoop) -> int:
    """Bytes of one element of the whole state of a lane."""
    return sum(cells * tir.byte_size(dtype) for cells, dtype in element_parts(recurrence))
