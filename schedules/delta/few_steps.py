"""A few steps of a delta rule at once, over a tile of the state that a core's first cache holds.

With the names of ``chunk``, in chunks so short that all sums are in registers: one pass over the
tile yields what all steps read of the state before them, what they read of each other follows by
substitution, and another pass leaves the state after them. A cell takes ``3 + 1 / C`` operations a
step for one term and one read, where step after step it takes 4, and is read twice and written once
for all C of them. `tvm_scan.loops.delta_chunk` is the same for the loops of torch's functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import gcd
from typing import Any

from tvm import tirx
from tvm.ir import Var
from tvm.tirx import ForKind

from tvm_scan import tir
from tvm_scan.algebra.literal import zero
from tvm_scan.schedules.common.ir import int_const, loop
from tvm_scan.schedules.delta.chunk import Chunk, scale
from tvm_scan.schedules.delta.walk import WalkPlan

__all__ = ["FewSteps"]

#: Sums of a step for which a plan's strip is: what is known before it, and an output.
_READS = 2


class FewSteps:
    """Code for steps whose vectors and amounts stand in the first rows of a chunk's arrays.

    Parameters
    ----------
    chunk : Chunk
        Whose arrays they are; its width is a multiple of 16.
    count : int
        Steps, at most those of the chunk.
    plan : WalkPlan
        Columns whose sums are in registers, and cells of a vector.
    buffer : callable
        Makes a buffer of a name and a number of cells.
    """

    def __init__(
        self, chunk: Chunk, count: int, plan: WalkPlan, buffer: Callable[[str, int], Var]
    ) -> None:
        self.chunk, self.count, self.rows = chunk, count, chunk.rows
        self.index, self.dtype = chunk.index, chunk.dtype
        reading, reads = len(chunk.reading), len(chunk.rule.reads)
        self.vector = plan.vector
        # More columns for fewer steps, fewer where more is read.
        most = plan.strip * chunk.steps * _READS // (count * max(_READS, reading + reads))
        widths = range(self.vector, chunk.width + 1, self.vector)
        fitting = [n for n in widths if n <= most and chunk.width % n == 0]
        self.strip = max(fitting, default=self.vector)
        #: Rows of a vector.
        self.lanes = gcd(self.rows, self.vector)

        def sums(name: str, number: int) -> list[Var]:
            return [buffer(f"{name}{n}_{count}", count * self.strip) for n in range(number)]

        self.known, self.seen = sums("known", reading), sums("seen", reads)
        self.amount = sums("amount", len(chunk.rule.terms))
        pairs = (reading + reads) * len(chunk.rule.terms) * count
        self.parts = [buffer(f"part{n}_{count}", self.lanes) for n in range(pairs)]

    def steps(self) -> Any:
        """Return the statements: the reads into ``outs``, and the state after the steps."""
        strips = self.chunk.width // self.strip
        return tir.seq(
            [
                *(self._prepare(t) for t in range(self.count)),
                loop("w", strips, self._strip, dtype=self.index),
            ]
        )

    # ---- what all columns share ----------------------------------------------------------------

    def _prepare(self, t: int) -> Any:
        """Write what a step reads of what those before write, and the gates since the head."""
        chunk, steps = self.chunk, self.chunk.steps
        dots = [  # where the sum goes, the vector, the term and step that it reads
            (triangle, vectors, after, n, s)
            for n, _ in enumerate(chunk.into)
            for vectors, triangle, after in chunk.triangles(n)
            for s in range(t + after)
        ]
        parts = self.parts[: len(dots)]

        def begin(part: Var) -> Any:
            value = zero(self.dtype)
            return self._vector(self.lanes, lambda u: tirx.BufferStore(part, value, [u]))

        def rows(g: Any) -> Any:
            def cell(u: Any) -> Any:
                i = g * self.lanes + u
                at = t * self.rows + i

                def dot(part: Var, vectors: Var, n: int, s: int) -> Any:
                    term = tirx.BufferLoad(vectors, [at]) * tirx.BufferLoad(
                        chunk.into[n], [s * self.rows + i]
                    )
                    return tirx.BufferStore(part, tirx.BufferLoad(part, [u]) + term, [u])

                def passing(is_after: bool) -> list[Any]:
                    return [
                        dot(part, vectors, n, s)
                        for part, (_, vectors, after, n, s) in zip(parts, dots, strict=True)
                        if after == is_after
                    ]

                return tir.seq(
                    [
                        *passing(False),
                        *(
                            scale(into, s * self.rows + i, chunk.gates, at)
                            for into in chunk.into
                            for s in range(t)
                        ),
                        *passing(True),
                        chunk.pass_on(at, chunk.passed, i),
                    ]
                )

            return self._vector(self.lanes, cell)

        return tir.seq(
            [
                *(begin(part) for part in parts),
                loop("g", self.rows // self.lanes, rows, dtype=self.index),
                *(
                    self._halve(part, triangle, t * steps + s)
                    for part, (triangle, *_, s) in zip(parts, dots, strict=True)
                ),
            ]
        )

    def _halve(self, part: Var, to: Var, at: int) -> Any:
        """Add up the cells of a vector."""
        stmts, half = [], self.lanes // 2

        def cell(u: Any, half: int) -> Any:
            value = tirx.BufferLoad(part, [u]) + tirx.BufferLoad(part, [half + u])
            return tirx.BufferStore(part, value, [u])

        while half:
            stmts.append(self._vector(half, partial(cell, half=half)))
            half //= 2
        first = tirx.BufferLoad(part, [int_const(0, self.index)])
        return tir.seq([*stmts, tirx.BufferStore(to, first, [int_const(at, self.index)])])

    def _vector(self, count: int, make: Callable[[Any], Any]) -> Any:
        if count == 1:
            return make(int_const(0, self.index))
        return loop("u", count, make, ForKind.VECTORIZED, self.index)

    # ---- the columns of a strip ----------------------------------------------------------------

    def _columns(self, make: Callable[[Any], Any]) -> Any:
        """``make(u)`` for the columns of a strip, in registers."""

        def part(m: Any) -> Any:
            return self._vector(self.vector, lambda u: make(m * self.vector + u))

        return loop("m", self.strip // self.vector, part, ForKind.UNROLLED, self.index)

    def _strip(self, w: Any) -> Any:
        chunk, column = self.chunk, w * self.strip
        pairs = [
            *zip(self.known, chunk.source, strict=True),
            *zip(self.seen, chunk.weights, strict=True),
        ]

        def state(i: Any, u: Any) -> list[Any]:
            return [i * chunk.width + column + u]

        def read(i: Any) -> Any:
            def term(t: int, total: Var, vectors: Var) -> Any:
                return self._columns(
                    lambda u: self._add(
                        total,
                        t,
                        u,
                        tirx.BufferLoad(vectors, [t * self.rows + i])
                        * tirx.BufferLoad(chunk.state, state(i, u)),
                    )
                )

            return tir.seq(term(t, *pair) for t in range(self.count) for pair in pairs)

        def write(i: Any) -> Any:
            def cell(u: Any) -> Any:
                value = tirx.BufferLoad(chunk.passed, [i])
                value = value * tirx.BufferLoad(chunk.state, state(i, u))
                for into, amount in zip(chunk.into, self.amount, strict=True):
                    for t in range(self.count):
                        factor = tirx.BufferLoad(into, [t * self.rows + i])
                        value = value + factor * self._at(amount, t, u)
                return tirx.BufferStore(chunk.state, value, state(i, u))

            return self._columns(cell)

        return tir.seq(
            [
                *(self._clear(total, t) for total, _ in pairs for t in range(self.count)),
                loop("i", self.rows, read, dtype=self.index) if pairs else None,
                *(self._substitute(t, column) for t in range(self.count)),
                loop("i", self.rows, write, dtype=self.index),
            ]
        )

    def _at(self, sums: Var, t: int, u: Any) -> Any:
        return tirx.BufferLoad(sums, [t * self.strip + u])

    def _add(self, sums: Var, t: int, u: Any, value: Any) -> Any:
        return tirx.BufferStore(sums, self._at(sums, t, u) + value, [t * self.strip + u])

    def _clear(self, sums: Var, t: int) -> Any:
        value = zero(self.dtype)
        return self._columns(lambda u: tirx.BufferStore(sums, value, [t * self.strip + u]))

    def _substitute(self, t: int, column: Any) -> Any:
        """Add what a step reads of those before; then what it writes, and its outputs."""
        chunk = self.chunk

        def add(sums: Var, triangles: Sequence[Var], steps: range) -> list[Any]:
            def term(triangle: Var, amount: Var, s: int) -> Any:
                factor = tirx.BufferLoad(triangle, [int_const(t * chunk.steps + s, self.index)])
                return self._columns(
                    lambda u: self._add(sums, t, u, factor * self._at(amount, s, u))
                )

            several = zip(triangles, self.amount, strict=True)
            return [term(triangle, amount, s) for triangle, amount in several for s in steps]

        def write(n: int, u: Any) -> Any:
            at = [t * chunk.width + column + u]
            if n not in chunk.reading:
                value = tirx.BufferLoad(chunk.update[n], at)
            else:
                m = chunk.reading.index(n)
                value = tirx.BufferLoad(chunk.rate[m], at) * self._at(self.known[m], t, u)
                value = tirx.BufferLoad(chunk.drive[m], at) + value
            return tirx.BufferStore(self.amount[n], value, [t * self.strip + u])

        def emit(n: int, u: Any) -> Any:
            at = [t * chunk.width + column + u]
            return tirx.BufferStore(chunk.outs[n], self._at(self.seen[n], t, u), at)

        before = [
            stmt
            for sums, triangles in zip(self.known, chunk.lower, strict=True)
            for stmt in add(sums, triangles, range(t))
        ]
        after = [
            stmt
            for sums, triangles, read in zip(
                self.seen, chunk.readers, chunk.rule.reads, strict=True
            )
            for stmt in add(sums, triangles, range(t + read.after))
        ]
        return tir.seq(
            [
                *before,
                *(self._columns(partial(write, n)) for n, _ in enumerate(self.amount)),
                *after,
                *(self._columns(partial(emit, n)) for n, _ in enumerate(self.seen)),
            ]
        )
