"""Steps of a delta rule one by one, over the tile of a state that a chunk has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.ir import Var
from tvm.tirx import ForKind

from tvm_scan import tir
from tvm_scan.algebra.literal import zero
from tvm_scan.schedules.common.ir import loop
from tvm_scan.schedules.delta.chunk import Chunk

__all__ = ["SingleSteps"]

#: Cells of a vector.
_VECTOR = 16
#: Columns whose sums are in registers together: four chains of additions hide their latency.
_STRIP = 64


class SingleSteps:
    """Code for a step whose vectors and amounts stand in the first row of a chunk's arrays.

    A pass over the tile yields what the step reads of the state before it, another writes the state
    after it and yields what is read of that::

        u  = drive + rate (source . S)
        S' = gate S + sum of into u

    Parameters
    ----------
    chunk : Chunk
        Whose arrays they are; its width is a multiple of a vector.
    buffer : callable
        Makes a buffer of a name and a number of cells.
    """

    def __init__(self, chunk: Chunk, buffer: Callable[[str, int], Var]) -> None:
        self.chunk, self.index, self.dtype = chunk, chunk.index, chunk.dtype
        widths = range(_VECTOR, min(_STRIP, chunk.width) + 1, _VECTOR)
        self.strip = max(n for n in widths if chunk.width % n == 0)

        def sums(name: str, count: int) -> list[Var]:
            return [buffer(f"{name}{n}", self.strip) for n in range(count)]

        self.known = sums("known", len(chunk.reading))
        self.seen = sums("seen", len(chunk.rule.reads))
        self.amount = sums("amount", len(chunk.rule.terms))

    @property
    def registers(self) -> list[Var]:
        """Buffers that are used in vector loops only."""
        return [*self.known, *self.seen, *self.amount]

    def step(self) -> Any:
        """Return the statements: the reads into ``outs``, and the state after the step."""
        return loop("w", self.chunk.width // self.strip, self._strip, dtype=self.index)

    def _vectors(self, make: Callable[[Any], Any]) -> Any:
        """``make(u)`` for the columns of a strip, in registers."""

        def part(m: Any) -> Any:
            return loop(
                "u", _VECTOR, lambda u: make(m * _VECTOR + u), ForKind.VECTORIZED, self.index
            )

        return loop("m", self.strip // _VECTOR, part, ForKind.UNROLLED, self.index)

    def _strip(self, w: Any) -> Any:
        chunk, reads = self.chunk, self.chunk.rule.reads
        before = [n for n, read in enumerate(reads) if not read.after]
        after = [n for n, read in enumerate(reads) if read.after]
        first = [(self.known[n], source) for n, source in enumerate(chunk.source)]
        first += [(self.seen[n], chunk.weights[n]) for n in before]
        column = w * self.strip

        def cell(i: Any, u: Any) -> Any:
            return [i * chunk.width + column + u]

        def clear(buffer: Var) -> Any:
            value = zero(self.dtype)
            return self._vectors(lambda u: tirx.BufferStore(buffer, value, [u]))

        def add(total: Var, vector: Var, i: Any, value: Any, u: Any) -> Any:
            term = tirx.BufferLoad(vector, [i]) * value
            return tirx.BufferStore(total, tirx.BufferLoad(total, [u]) + term, [u])

        def read(i: Any) -> Any:
            def at(u: Any) -> Any:
                value = tirx.BufferLoad(chunk.state, cell(i, u))
                return tir.seq(add(total, vector, i, value, u) for total, vector in first)

            return self._vectors(at)

        def write(i: Any) -> Any:
            def at(u: Any) -> Any:
                where = cell(i, u)
                value = tirx.BufferLoad(chunk.gates, [i]) * tirx.BufferLoad(chunk.state, where)
                for into, amount in zip(chunk.into, self.amount, strict=True):
                    value = value + tirx.BufferLoad(into, [i]) * tirx.BufferLoad(amount, [u])
                stored = tirx.BufferLoad(chunk.state, where)
                return tir.seq(
                    [
                        tirx.BufferStore(chunk.state, value, where),
                        *(add(self.seen[n], chunk.weights[n], i, stored, u) for n in after),
                    ]
                )

            return self._vectors(at)

        def emit(n: int) -> Any:
            return self._vectors(
                lambda u: tirx.BufferStore(
                    chunk.outs[n], tirx.BufferLoad(self.seen[n], [u]), [column + u]
                )
            )

        return tir.seq(
            [
                *(clear(buffer) for buffer in (*self.known, *self.seen)),
                loop("i", chunk.rows, read, dtype=self.index) if first else None,
                *(self._vectors(self._amount(n, column)) for n, _ in enumerate(self.amount)),
                loop("i", chunk.rows, write, dtype=self.index),
                *(emit(n) for n, _ in enumerate(reads)),
            ]
        )

    def _amount(self, term: int, column: Any) -> Callable[[Any], Any]:
        """Store what a term writes: its drive, and its rate times what it has read."""
        chunk, to = self.chunk, self.amount[term]

        def cell(u: Any) -> Any:
            if term not in chunk.reading:
                value = tirx.BufferLoad(chunk.update[term], [column + u])
            else:
                n = chunk.reading.index(term)
                known = tirx.BufferLoad(self.known[n], [u])
                value = tirx.BufferLoad(chunk.rate[n], [column + u]) * known
                value = tirx.BufferLoad(chunk.drive[n], [column + u]) + value
            return tirx.BufferStore(to, value, [u])

        return cell
