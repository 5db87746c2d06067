"""Square blocks of memory, transposed in registers by shuffles."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.schedules.ir import local

__all__ = ["LINE_BYTES", "Square", "square_side"]

#: Bytes of a cache line, which is one row of a square.
LINE_BYTES = 64


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
        self._sides = [local(f"sq{i}_{dtype}", [self.side * self.side], dtype) for i in range(2)]

    @property
    def buffers(self) -> list[Var]:
        """Registers to allocate."""
        return self._sides

    def _row(self, which: int, row: int) -> Any:
        return tirx.Ramp(tirx.IntImm("int32", row * self.side), 1, self.side)

    def transpose(self, read: Any, write: Any) -> Any:
        """``write(j, column j)`` of the square whose row ``i`` is ``read(i)``.

        Parameters
        ----------
        read : callable
            ``read(i)`` is a vector of ``side`` lanes.
        write : callable
            ``write(j, vector)`` is a statement.

        Returns
        -------
        Stmt
        """
        side = self.side
        out = [tirx.BufferStore(self._sides[0], read(i), [self._row(0, i)]) for i in range(side)]
        now, by = 0, side // 2
        while by:
            old, new = self._sides[now], self._sides[1 - now]
            for i in range(side):
                if i & by:
                    continue
                pair = [tirx.BufferLoad(old, [self._row(now, r)]) for r in (i, i + by)]
                upper = [side + c - by if c & by else c for c in range(side)]
                lower = [side + c if c & by else c + by for c in range(side)]
                for row, places in ((i, upper), (i + by, lower)):
                    shuffled = tirx.Shuffle(pair, places)
                    out.append(tirx.BufferStore(new, shuffled, [self._row(1 - now, row)]))
            now, by = 1 - now, by // 2
        last = self._sides[now]
        out += [write(j, tirx.BufferLoad(last, [self._row(now, j)])) for j in range(side)]
        return tir.seq(out)
