"""Square blocks of memory, transposed in registers by shuffles."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.schedules.cpu.vector_values import Vector


def square_side(dtype: str) -> int:
    """Rows of a square of cache lines: 16 for four bytes; 0 where none is made.

    Parameters
    ----------
    dtype : str
        Of one cell.
    """
    return {"float32": 16, "int32": 16, "uint32": 16, "float64": 8, "int64": 8}.get(dtype, 0)


class Square:
    """Registers of a square, and its transposition.

    ``side`` rows meet in pairs at distances ``side / 2, ..., 2, 1``: each pair exchanges the
    blocks of that width off its diagonal. That is ``side log2 side`` shuffles of two vectors.
    (J. O. Eklundh, "A fast computer method for matrix transposing", IEEE Trans. C-21 (7), 1972.)

    Parameters
    ----------
    dtype : str
        Of one cell.
    """

    def __init__(self, dtype: str) -> None:
        self.side = square_side(dtype)
        # An array for each row: TVM keeps a whole square in memory, not in registers.
        self._rows = [
            [Vector(f"sq{i}_{row}_{dtype}", self.side, dtype) for row in range(self.side)]
            for i in range(2)
        ]

    @property
    def buffers(self) -> list[Var]:
        """Registers to allocate."""
        return [row.buffer for rows in self._rows for row in rows]

    def transpose(self, read: Any, write: Any) -> Any:
        """``write(j, column j)`` of the square whose row ``i`` is ``read(i)``.

        Parameters
        ----------
        read : callable
            ``read(i)`` is a vector of ``side`` cells.
        write : callable
            ``write(j, vector)`` is a statement.
        """
        side = self.side
        old, new = self._rows
        out = [old[i].store(read(i)) for i in range(side)]
        by = side // 2
        while by:
            for i in range(side):
                if i & by:
                    continue
                pair = [old[r].load() for r in (i, i + by)]
                upper = [side + c - by if c & by else c for c in range(side)]
                lower = [side + c if c & by else c + by for c in range(side)]
                for row, order in ((i, upper), (i + by, lower)):
                    out.append(new[row].store(tirx.Shuffle(pair, order)))
            old, new, by = new, old, by // 2
        out += [write(j, old[j].load()) for j in range(side)]
        return tir.seq(out)
