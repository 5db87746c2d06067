"""Products of small row-major matrices in a core's caches, by blocks of rows in registers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tvm import tirx
from tvm.ir import Var
from tvm.tirx import ForKind

from tvm_scan import tir
from tvm_scan.algebra.literal import zero
from tvm_scan.schedules.common.ir import int_const, loop

__all__ = ["Products"]

#: Rows of a block: with two vectors each, eight chains hide the latency of a multiply-add.
_ROWS = 4


class Products:
    """Code for products whose right side has rows of ``width`` cells.

    Parameters
    ----------
    width : int
        Cells in a row of the right side and of the result; a multiple of ``strip``.
    strip : int
        Cells of a row that are in registers together.
    buffer : callable
        Makes a buffer of a name and a shape.
    index : str
        Dtype of indices.
    """

    def __init__(
        self, width: int, strip: int, buffer: Callable[[str, list[int]], Var], index: str
    ) -> None:
        self.width, self.strip, self.index = width, strip, index
        self.sums = [buffer(f"sum{n}", [strip]) for n in range(_ROWS)]
        self.dots: list[list[Var]] = []
        self.buffer = buffer

    def _vector(self, make: Callable[[Any], Any], lanes: int | None = None) -> Any:
        return loop("u", lanes or self.strip, make, ForKind.VECTORIZED, self.index)

    def times(
        self,
        result: Var,
        left: Var,
        right: Var,
        rows: Any,
        stride: int,
        inner: Any = None,
        plus: Var | None = None,
        scale: Var | None = None,
        beyond: int | None = None,
    ) -> Any:
        """``result = left right (+ scale plus)``, with one factor of scale for each row.

        ``left`` has rows of ``stride`` cells, of which ``inner`` (all, if not given) are used. A
        number of rows that is an expression is rounded up to whole blocks. With ``beyond``, row n
        uses its first n + ``beyond`` cells (0 or 1): the others are not read, since zero times an
        infinity is none.
        """
        sizes = (stride, stride if inner is None else inner)

        def block(first: Any, count: int) -> Any:
            def strip(w: Any) -> Any:
                return self._block(result, left, right, first, count, w, sizes, plus, scale, beyond)

            return loop("w", self.width // self.strip, strip, dtype=self.index)

        if not isinstance(rows, int):
            blocks = tir.simplify((rows + (_ROWS - 1)) // _ROWS)
            return loop("m", blocks, lambda m: block(m * _ROWS, _ROWS), dtype=self.index)
        full = rows // _ROWS
        return tir.seq(
            [
                loop("m", full, lambda m: block(m * _ROWS, _ROWS), dtype=self.index),
                block(int_const(full * _ROWS, self.index), rows % _ROWS) if rows % _ROWS else None,
            ]
        )

    def _block(
        self,
        result: Var,
        left: Var,
        right: Var,
        first: Any,
        count: int,
        w: Any,
        sizes: tuple[int, Any],
        plus: Var | None,
        scale: Var | None,
        beyond: int | None,
    ) -> Any:
        (stride, inner), sums, column = sizes, self.sums[:count], w * self.strip

        def begin(n: int) -> Any:
            def cell(u: Any) -> Any:
                value = zero(tir.dtype_of(result))
                if plus is not None:
                    value = tirx.BufferLoad(plus, [(first + n) * self.width + column + u])
                    if scale is not None:
                        value = tirx.BufferLoad(scale, [first + n]) * value
                return tirx.BufferStore(sums[n], value, [u])

            return self._vector(cell)

        def add(j: Any, least: int = 0) -> Any:
            def cell(n: int, u: Any) -> Any:
                term = tirx.BufferLoad(left, [(first + n) * stride + j]) * tirx.BufferLoad(
                    right, [j * self.width + column + u]
                )
                return tirx.BufferStore(sums[n], tirx.BufferLoad(sums[n], [u]) + term, [u])

            return tir.seq(self._vector(partial(cell, n)) for n in range(least, count))

        def end(n: int) -> Any:
            at = (first + n) * self.width + column
            return self._vector(
                lambda u: tirx.BufferStore(result, tirx.BufferLoad(sums[n], [u]), [at + u])
            )

        numbers = range(count)
        return tir.seq(
            [
                *(begin(n) for n in numbers),
                loop("j", inner if beyond is None else first + beyond, add, dtype=self.index),
                # What later rows of the block use besides: a triangle's corner.
                *(add(first + (n + beyond - 1), n) for n in numbers[1:] if beyond is not None),
                *(end(n) for n in numbers),
            ]
        )

    def solve(self, t: Any, x: Var, lower: Var, size: int, rate: Var, drive: Var) -> Any:
        """Row ``t`` of ``x = drive + rate (x + lower x)``, where the rows before it are done."""

        def strip(w: Any) -> Any:
            own = t * self.width + w * self.strip
            total = self.sums[0]

            def add(s: Any) -> Any:
                factor = tirx.BufferLoad(lower, [t * size + s])
                at = s * self.width + w * self.strip
                return self._vector(
                    lambda u: tirx.BufferStore(
                        total,
                        tirx.BufferLoad(total, [u]) + factor * tirx.BufferLoad(x, [at + u]),
                        [u],
                    )
                )

            return tir.seq(
                [
                    self._vector(
                        lambda u: tirx.BufferStore(total, tirx.BufferLoad(x, [own + u]), [u])
                    ),
                    loop("s", t, add, dtype=self.index),
                    self._vector(
                        lambda u: tirx.BufferStore(
                            x,
                            tirx.BufferLoad(drive, [own + u])
                            + tirx.BufferLoad(rate, [own + u]) * tirx.BufferLoad(total, [u]),
                            [own + u],
                        )
                    ),
                ]
            )

        return loop("w", self.width // self.strip, strip, dtype=self.index)

    def triangle_row(
        self,
        t: Any,
        decayed: Var,
        gates: Var,
        into: Var,
        dots: list[tuple[Var, Var, bool]],
        rows: int,
        size: int,
    ) -> Any:
        """Row ``t`` of every triangle, and ``decayed`` after step ``t``.

        ``decayed`` has in column s the vector of step s times the gates after it. A dot is
        (vectors, triangle, whether it is taken after the step's gate and vector went in).
        """
        chains = 4 if rows % 4 == 0 else 1
        while len(self.dots) < len(dots):
            number = len(self.dots)
            self.dots.append([self.buffer(f"dot{number}_{c}", [size]) for c in range(4)])
        used = [(*dot, self.dots[n][:chains]) for n, dot in enumerate(dots)]

        def begin(buffer: Var) -> Any:
            value = zero(tir.dtype_of(buffer))
            return self._vector(lambda u: tirx.BufferStore(buffer, value, [u]), size)

        def row(i: Any, chain: int) -> Any:
            at = t * rows + i

            def cell(u: Any) -> Any:
                here = [i * size + u]
                old = tirx.BufferLoad(decayed, here)

                def dot(vectors: Var, sums: list[Var]) -> Any:
                    term = tirx.BufferLoad(vectors, [at]) * tirx.BufferLoad(decayed, here)
                    value = tirx.BufferLoad(sums[chain], [u]) + term
                    return tirx.BufferStore(sums[chain], value, [u])

                new = tirx.Select(
                    tirx.EQ(u, t),
                    tirx.BufferLoad(into, [at]),
                    old * tirx.BufferLoad(gates, [at]),
                )
                return tir.seq(
                    [
                        *(dot(v, sums) for v, _, after, sums in used if not after),
                        tirx.BufferStore(decayed, new, here),
                        *(dot(v, sums) for v, _, after, sums in used if after),
                    ]
                )

            return self._vector(cell, size)

        def end(triangle: Var, sums: list[Var]) -> Any:
            def cell(u: Any) -> Any:
                value = tirx.BufferLoad(sums[0], [u])
                for other in sums[1:]:
                    value = value + tirx.BufferLoad(other, [u])
                return tirx.BufferStore(triangle, value, [t * size + u])

            return self._vector(cell, size)

        return tir.seq(
            [
                *(begin(b) for *_, sums in used for b in sums),
                loop(
                    "i",
                    rows // chains,
                    lambda i: tir.seq(row(i * chains + c, c) for c in range(chains)),
                    dtype=self.index,
                ),
                *(end(triangle, sums) for _, triangle, _, sums in used),
            ]
        )
