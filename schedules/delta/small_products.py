"""Products of small row-major matrices in a core's caches, by blocks of rows in registers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

from tvm import tirx
from tvm.ir import Var
from tvm.tirx import ForKind

from tvm_scan import tir
from tvm_scan.algebra.literal import zero
from tvm_scan.schedules.common.ir import int_const, loop
from tvm_scan.schedules.delta.chunk import Chunk, Product

__all__ = ["Products"]

#: Rows of a block: with two vectors each, eight chains hide the latency of a multiply-add.
_ROWS = 4


class Products:
    """Code for the products of a chunk.

    Parameters
    ----------
    chunk : Chunk
        Whose products; its width is a multiple of ``strip``.
    strip : int
        Cells of a row that are in registers together.
    buffer : callable
        Makes a buffer of a name and a number of cells.
    """

    def __init__(self, chunk: Chunk, strip: int, buffer: Callable[[str, int], Var]) -> None:
        self.chunk, self.strip, self.buffer = chunk, strip, buffer
        self.width, self.index = chunk.width, chunk.index
        self.sums = [buffer(f"sum{n}", strip) for n in range(_ROWS)]

    def _vector(self, make: Callable[[Any], Any], lanes: int | None = None) -> Any:
        return loop("u", lanes or self.strip, make, ForKind.VECTORIZED, self.index)

    def times(self, product: Product, rows: Any) -> Any:
        """A product of so many rows; an expression is rounded up to whole blocks."""

        def block(first: Any, count: int) -> Any:
            return self._block(product, first, count, partial(self._keep, product.result))

        def blocks(count: Any) -> Any:
            return loop("m", count, lambda m: block(m * _ROWS, _ROWS), dtype=self.index)

        if not isinstance(rows, int):
            return blocks(tir.simplify((rows + (_ROWS - 1)) // _ROWS))
        full, rest = divmod(rows, _ROWS)
        last = block(int_const(full * _ROWS, self.index), rest) if rest else None
        return tir.seq([blocks(full), last])

    def solve(self, t: Any) -> Any:
        """Row ``t`` of the systems, where the rows before it are done."""

        def row(number: int) -> Any:
            system = self.chunk.system(number)
            rate, drive = self.chunk.rate[number], self.chunk.drive[number]

            def keep(total: Var, at: Any, u: Any) -> Any:
                value = tirx.BufferLoad(rate, [at + u]) * tirx.BufferLoad(total, [u])
                value = tirx.BufferLoad(drive, [at + u]) + value
                return tirx.BufferStore(system.result, value, [at + u])

            return self._block(system, t, 1, keep)

        return tir.seq(row(number) for number, _ in enumerate(self.chunk.reading))

    def _keep(self, result: Var, total: Var, at: Any, u: Any) -> Any:
        return tirx.BufferStore(result, tirx.BufferLoad(total, [u]), [at + u])

    def _block(
        self, product: Product, first: Any, count: int, keep: Callable[[Var, Any, Any], Any]
    ) -> Any:
        """Rows from ``first`` on, a strip at a time; ``keep(total, at, u)`` stores a sum."""
        plus, beyond = product.plus, product.beyond
        terms = product.terms if beyond is None else first + beyond

        def begin(n: int, column: Any) -> Any:
            def cell(u: Any) -> Any:
                value = zero(tir.dtype_of(product.result))
                if plus is not None:
                    value = tirx.BufferLoad(plus, [(first + n) * self.width + column + u])
                    if product.scale is not None:
                        value = tirx.BufferLoad(product.scale, [first + n]) * value
                return tirx.BufferStore(self.sums[n], value, [u])

            return self._vector(cell)

        def add(left: Var, right: Var, j: Any, column: Any, least: int = 0) -> Any:
            def cell(n: int, u: Any) -> Any:
                factor = tirx.BufferLoad(right, [j * self.width + column + u])
                value = product.factor(left, first + n, j) * factor
                value = tirx.BufferLoad(self.sums[n], [u]) + value
                return tirx.BufferStore(self.sums[n], value, [u])

            return tir.seq(self._vector(partial(cell, n)) for n in range(least, count))

        def strip(w: Any) -> Any:
            column = w * self.strip
            # What later rows of the block use besides: a triangle's corner.
            more = [] if beyond is None else [(n, n + beyond - 1) for n in range(1, count)]

            def times(left: Var, right: Var) -> list[Any]:
                return [
                    loop("j", terms, lambda j: add(left, right, j, column), dtype=self.index),
                    *(add(left, right, first + term, column, n) for n, term in more),
                ]

            return tir.seq(
                [
                    *(begin(n, column) for n in range(count)),
                    *(stmt for pair in product.factors for stmt in times(*pair)),
                    *(
                        self._vector(partial(keep, self.sums[n], (first + n) * self.width + column))
                        for n in range(count)
                    ),
                ]
            )

        return loop("w", self.width // self.strip, strip, dtype=self.index)

    def triangle_row(self, t: Any, term: int, decayed: Var) -> Any:
        """Row ``t`` of every triangle of a term, and ``decayed`` after step ``t``.

        ``decayed`` has in column s the vector of step s times the gates after it.
        """
        rows, size = self.chunk.rows, self.chunk.steps
        chains = 4 if rows % 4 == 0 else 1
        dots = [
            (*dot, sums[:chains])
            for dot, sums in zip(self.chunk.triangles(term), self.dots, strict=True)
        ]

        def begin(buffer: Var) -> Any:
            value = zero(tir.dtype_of(buffer))
            return self._vector(lambda u: tirx.BufferStore(buffer, value, [u]), size)

        def row(i: Any, chain: int) -> Any:
            at = [t * rows + i]

            def cell(u: Any) -> Any:
                here = [i * size + u]
                old = tirx.BufferLoad(decayed, here)

                def dot(vectors: Var, sums: list[Var]) -> Any:
                    term = tirx.BufferLoad(vectors, at) * tirx.BufferLoad(decayed, here)
                    value = tirx.BufferLoad(sums[chain], [u]) + term
                    return tirx.BufferStore(sums[chain], value, [u])

                into = tirx.BufferLoad(self.chunk.into[term], at)
                new = tirx.Select(tirx.EQ(u, t), into, old * tirx.BufferLoad(self.chunk.gates, at))
                return tir.seq(
                    [
                        *(dot(v, sums) for v, _, after, sums in dots if not after),
                        tirx.BufferStore(decayed, new, here),
                        *(dot(v, sums) for v, _, after, sums in dots if after),
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

        def chained(i: Any) -> Any:
            return tir.seq(row(i * chains + c, c) for c in range(chains))

        return tir.seq(
            [
                *(begin(b) for *_, sums in dots for b in sums),
                loop("i", rows // chains, chained, dtype=self.index),
                *(end(triangle, sums) for _, triangle, _, sums in dots),
            ]
        )

    @cached_property
    def dots(self) -> list[list[Var]]:
        """Sums of the rows of every triangle of a term, four chains of each."""
        size = self.chunk.steps
        numbers = range(len(self.chunk.triangles(0)))
        return [[self.buffer(f"dot{n}_{c}", size) for c in range(4)] for n in numbers]
