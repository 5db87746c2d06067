"""The gradients of a chunk of a delta rule that are sums over columns; see `delta_adjoint`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm import tirx
from tvm.ir import Expr

from tvm_scan.loops.delta import OfRow, Step, key_head
from tvm_scan.loops.delta_chunk import STEPS, Chunk, product
from tvm_scan.loops.writer import Cells


class RowsAdjoint:
    """Writes the gradients of the vectors of a chunk and of its gates.

    Parameters
    ----------
    chunk : Chunk
        The chunk, in the block of a task.
    gradients : mapping of str to Cells
        Of the arrays, by their names.

    Attributes
    ----------
    is_later : mapping of bool to Expr
        Whether another block was before: of the head of values, and of the head of keys.
    to_lower, to_reader : list of Cells
        For each term the gradients of `Chunk.lower` and `Chunk.reader`.
    """

    is_later: Mapping[bool, Expr]

    def __init__(self, chunk: Chunk, gradients: Mapping[str, Cells]) -> None:
        self.chunk, self.walk, self.loop, self.g = chunk, chunk.walk, chunk.loop, gradients
        self.block, self.keys = chunk.block, chunk.keys
        self.gate, self.is_delta = chunk.gate, chunk.walk.arrays.rule == "delta"
        terms, vector = len(chunk.names), self.block.vector
        #: Of a row: what reads and what is written by step, and what the gates of all leave.
        rows = STEPS * (2 + terms) + (self.gate != "none")
        self.totals = chunk.cells("totals", rows * self.keys)
        self.parts = [chunk.cells(f"pair_{n}", vector) for n in range(STEPS * STEPS)]
        self.to_lower = [chunk.cells(f"to_lower_{n}", STEPS * STEPS) for n in range(terms)]
        self.to_reader = [chunk.cells(f"to_reader_{n}", STEPS * STEPS) for n in range(terms)]

    # ---- sums over columns ---------------------------------------------------------------------

    def sums(self, terms: Sequence[Callable[[Any], Expr]]) -> list[Expr]:
        """Add up terms over the columns of the block, given where a column stands in it."""
        parts, each = self.parts[: len(terms)], self.block.sums
        for first in range(0, len(terms), each):
            some = list(zip(parts, terms, strict=True))[first : first + each]
            self.block.clear(*(part for part, _ in some))
            with self.block.vectors() as (x, column):
                for part, term in some:
                    part[x] = part[x] + term(column)
        return [self.block.halved(part) for part in parts]

    # ---- rows ----------------------------------------------------------------------------------

    def pull(self, first: Expr, terms: list[Step]) -> None:
        """Write the gradients of the vectors and the gates of the chunk, given all sums."""
        walk, count = self.walk, len(terms)
        tokens = [walk.token(first + t) for t in range(count)]
        queries = [walk.reader(first + t)("q") for t in range(count)]
        gated = self.chunk.sums[:count] if self.gate == "head" else []
        walk.rows.clear(*gated)
        with walk.rows.vectors() as (x, i):
            row = _Row(self, i, terms, queries)
            for t, token in enumerate(tokens):
                for name, total in row.vectors(t).items():
                    self.put(name, (token, walk.h, i), total)
                if self.gate == "key":
                    self.put("w", (token, walk.h, i), row.gate(t))
            for t, part in enumerate(gated):
                part[x] = part[x] + row.gate(t)
        for r, part in enumerate(gated):
            pairs = self._across(r, count)
            self.put("w", (tokens[r], walk.h), walk.rows.halved(part) + pairs)

    def _across(self, r: int, count: int) -> Expr:
        """Return the gradient of a head's gate by what steps read after it of those before it."""
        chunk, total = self.chunk, tirx.const(0, self.walk.dtype)
        both = [
            (0, chunk.reader, self.to_reader),
            (0 if self.is_delta else 1, chunk.lower, self.to_lower),
        ]
        for ahead, factors, gradients in both:
            for factor, gradient in zip(factors, gradients, strict=True):
                for t in range(r + ahead, count):
                    for s in range(r):
                        total = total + factor[t * STEPS + s] * gradient[t * STEPS + s]
        return total

    def put(self, name: str, at: Any, total: Expr) -> None:
        """Write the sum over a block to a gradient, or add it to that of the blocks before."""
        of_value = name in ("w", "beta")
        cells = self.g[name]
        token, h, *i = at
        group = 1 if of_value else self.walk.arrays.group
        where = (token, key_head(h, group), i)
        if self.block.count * group > 1:
            zero = tirx.const(0, self.walk.dtype)
            total = total + tirx.Select(self.is_later[of_value], cells[where], zero)
        cells[where] = total


class _Row:
    """Gradients of a row as expressions, of gates multiplied up and never divided.

    What stands at step s reaches step t through the gates after s up to that of t; a source that
    reads before its gate does not pass that. Step -1 is the state before the chunk, and the state
    after it reads what is left by the last step.
    """

    def __init__(self, of: RowsAdjoint, i: Any, terms: list[Step], queries: list[OfRow]) -> None:
        self.of, self.i, self.count, self.terms = of, i, len(terms), terms
        self.queries = [query(i) for query in queries]
        if of.is_delta:
            self.sources = [step.into(i) for step in terms]
            self.writes = [[step.into(i) for step in terms]]
        else:
            erases = [step.erase for step in terms if step.erase is not None]
            self.sources = [erase[0](i) for erase in erases]
            self.writes = [[step.into(i) for step in terms], [erase[1](i) for erase in erases]]
        #: Steps from that of a source to the last one whose gate it has passed.
        self.ahead = 0 if of.is_delta else 1

    def _total(self, number: int, t: int) -> Expr:
        """Return a sum over columns: of outputs, what is known, and terms, in that order."""
        return self.of.totals[(number * self.count + t) * self.of.keys + self.i]

    def _passed(self, s: int, t: int) -> Expr | None:
        """Return the gates after s up to that of t; None for 1."""
        factor = None
        for n in range(s + 1, t + 1):
            gate = self.terms[n].gate
            if gate is not None:
                factor = product(factor, gate(self.i))
        return factor

    def _read(self, number: int, t: int, last: int, steps: range) -> Expr:
        """Return what is read at step t of the state before the chunk, and of what steps wrote.

        Number 0 is a query, and 1 a source, which have passed the gates up to the last.
        """
        factors = self.of.to_lower if number else self.of.to_reader
        total = product(self._passed(-1, last), self._total(number, t))
        for writes, factor in zip(self.writes, factors, strict=True):
            for s in steps:
                value = product(self._passed(s, last), factor[t * STEPS + s])
                total = total + value * writes[s]
        return total

    def written(self, number: int, s: int) -> Expr:
        """Return the gradient of a vector that a step writes with."""
        of, last = self.of, self.count - 1
        total = product(self._passed(s, last), self._total(2 + number, s))
        for t in range(s, self.count):
            factor = product(self._passed(s, t), of.to_reader[number][t * STEPS + s])
            total = total + factor * self.queries[t]
        for t in range(s + 1, self.count):
            factor = of.to_lower[number][t * STEPS + s]
            factor = product(self._passed(s, t - self.ahead), factor)
            total = total + factor * self.sources[t]
        return total

    def vectors(self, t: int) -> dict[str, Expr]:
        """Return the gradients of the vectors of a step, by the names of their arrays."""
        query, into = self._read(0, t, t, range(t + 1)), self.written(0, t)
        source = self._read(1, t, t - self.ahead, range(t))
        if self.of.is_delta:
            return {"q": query, "k": source + into}
        return {"q": query, "a": source, "k": into, "b": self.written(1, t)}

    def gate(self, r: int) -> Expr:
        """Return the gradient of the logarithm of a gate: of all products that it is a factor of.

        Those are of what stands before it, the state or what a step wrote, with what reads after
        it, a query, a source or the state after the chunk. Of a head what steps read of each other
        is left out: that is told by numbers of all rows, see `RowsAdjoint`.
        """
        of, last = self.of, self.count - 1
        before = range(r if of.gate == "key" else 0)
        z = of.totals[(2 + len(self.writes)) * self.count * of.keys + self.i]
        total = product(self._passed(-1, last), z)
        for t in range(r, self.count):
            total = total + self.queries[t] * self._read(0, t, t, before)
        for t in range(r + self.ahead, self.count):
            total = total + self.sources[t] * self._read(1, t, t - self.ahead, before)
        for number, writes in enumerate(self.writes):
            for s in range(r):
                value = product(self._passed(s, last), self._total(2 + number, s))
                total = total + writes[s] * value
        return total
