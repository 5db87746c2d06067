"""One array of shared memory for all that a block holds of a dtype.

nvcc makes an address of its own for each array, and one for each of its buffers; parts of one
array, all in the same buffer, differ in a constant, which is a part of an instruction. Only where
the builder sets the barriers itself: TVM's pass believes that threads meet wherever they use one
array.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.schedules.common.ir import as_dtype, local

#: Bytes of an alignment at which vectors begin.
_VECTOR = 16


@dataclass(frozen=True)
class Cells:
    """Cells of a dtype that are wanted, for each buffer of a tile or once."""

    dtype: str
    count: int
    buffered: bool = False

    @property
    def padded(self) -> int:
        """Cells up to where the next vector begins."""
        vector = max(1, _VECTOR // tir.byte_size(self.dtype))
        return -(-self.count // vector) * vector


@dataclass(frozen=True, eq=False)
class Region:
    """A part of an array.

    Attributes
    ----------
    memory : Var
        The array.
    first, stride : int
        Its first cell, and how many are from one buffer to the next; 0 where there is one.
    buffers : int
        Of a tile.
    """

    memory: Var
    first: int
    stride: int
    buffers: int

    def at(self, index: Any, tile: Any = 0) -> list[Any]:
        """Indices of a cell, or of the first one of a vector, in the buffer that a tile has."""
        index = index + self.first
        if self.stride:
            slot = as_dtype(tile % self.buffers, "int32")
            index = slot * self.stride + index
        return [index]


def sizes_of(wanted: Sequence[Cells], buffers: int) -> dict[str, tuple[int, int]]:
    """Cells of each dtype: of one buffer of all that have several, and of the rest together."""
    sizes: dict[str, tuple[int, int]] = {}
    for cells in wanted:
        in_buffer, alone = sizes.get(cells.dtype, (0, 0))
        if cells.buffered and buffers > 1:
            sizes[cells.dtype] = in_buffer + cells.padded, alone
        else:
            sizes[cells.dtype] = in_buffer, alone + cells.padded
    return sizes


def memory_bytes(wanted: Sequence[Cells], buffers: int) -> list[int]:
    """Bytes of the arrays of ``regions``."""
    return [
        (buffers * in_buffer + alone) * tir.byte_size(dtype)
        for dtype, (in_buffer, alone) in sizes_of(wanted, buffers).items()
    ]


def regions(wanted: Sequence[Cells], buffers: int) -> tuple[list[Region], list[Var]]:
    """A region for each that is wanted, and the arrays to allocate."""
    sizes = sizes_of(wanted, buffers)
    arrays = {
        dtype: local(f"{dtype}_tile", [buffers * in_buffer + alone], dtype, "shared")
        for dtype, (in_buffer, alone) in sizes.items()
    }
    in_buffer = dict.fromkeys(sizes, 0)
    behind = {dtype: buffers * size for dtype, (size, _) in sizes.items()}
    parts: list[Region] = []
    for cells in wanted:
        buffered = cells.buffered and buffers > 1
        ends, stride = (in_buffer, sizes[cells.dtype][0]) if buffered else (behind, 0)
        parts.append(Region(arrays[cells.dtype], ends[cells.dtype], stride, buffers))
        ends[cells.dtype] += cells.padded
    return parts, list(arrays.values())
