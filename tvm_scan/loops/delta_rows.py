"""The gradients of a chunk of a delta rule that are sums over columns; see `delta_adjoint`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import gcd
from typing import Any

from tvm import tirx
from tvm.ir import Expr
from tvm.script.ir_builder import tirx as T

from tvm_scan.loops.delta import Matrix, OfRow, Step, key_head
from tvm_scan.loops.delta_chunk import STEPS, Chunk, product
from tvm_scan.loops.delta_walk import Section
from tvm_scan.loops.writer import Cells

#: Most rows of a tile. Wider vectors are halved in registers first, with fewer shuffles of 64 bytes
#: and stores (512 steps of 32 x 128 x 128 on a core of a Zen 4: 60.1 instead of 62.3 ms).
_SIDE = 8


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
        self.count = STEPS * (2 + terms) + (self.gate != "none")
        most = max(self.count, STEPS * STEPS)
        self.parts = [chunk.cells(f"part_{n}", vector) for n in range(most)]
        #: Rows whose sums are added up together, in vectors of as many cells.
        self.side = gcd(chunk.walk.rows.vector, vector, _SIDE)
        self.tile = chunk.cells("tile", self.count * self.side * self.side)
        self.square = [chunk.cells(f"square_{n}", self.side) for n in range(self.side)]
        self.totals = chunk.cells("totals", self.count * self.keys)
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

    def write(
        self,
        count: int,
        before: Matrix,
        adjoint: Matrix,
        asked: tuple[Section, Section],
        update: list[Section],
    ) -> None:
        """Write the sums of all rows, and pass the adjoint back through the chunk.

        Parameters
        ----------
        count : int
            Steps of the chunk.
        before, adjoint : Matrix
            The state before it, and the adjoint of that after it; then of that before it.
        asked : pair of Section
            For each step and column of the block, the gradients of the outputs, and of what is
            known.
        update : list of Section
            Likewise for each term what is written.
        """
        over, side, width = self.loop.over, self.side, self.block.width
        rows = [(before, cells) for cells in asked] + [(adjoint, cells) for cells in update]
        parts = self.parts[: count * len(rows) + (self.gate != "none")]

        def term(matrix: Matrix, cells: Section, t: int) -> Callable[[Any], Expr]:
            return lambda at: matrix[at] * cells[t * width + at[1]]

        terms = [term(*pair, t) for pair in rows for t in range(count)]
        if self.gate != "none":
            terms.append(lambda at: before[at] * adjoint[at])
        sums, most = list(zip(parts, terms, strict=True)), self.block.sums
        # What the adjoint is passed back with takes registers, too.
        alone = [sums] if len(sums) <= most else [sums[:most], sums[most:]]
        with over(self.keys // side, "g") as g:
            with over(side, "r") as r:
                i = g * side + r
                self.block.clear(*parts)
                for some in alone:
                    with self.block.vectors() as (x, column):
                        at = (i, column, None)
                        for part, value in some:
                            part[x] = part[x] + value(at)
                        if some is alone[-1]:
                            adjoint[at] = self._passed_back(count, i, adjoint[at], asked, column)
                for number, part in enumerate(parts):
                    self.block.halved(part, self.side)
                    with over(side, "x", T.vectorized) as x:
                        self.tile[(number * side + r) * side + x] = part[x]
            with over(len(parts), "n") as number:
                self._across(number, g)

    def _passed_back(
        self, count: int, i: Any, cell: Expr, asked: tuple[Section, Section], column: Any
    ) -> Expr:
        """Return a cell of the adjoint before the chunk, given that after it."""
        chunk, width = self.chunk, self.block.width
        cell = chunk.passing(count, i, cell)
        for t in range(count):
            cell = cell + chunk.query[t * self.keys + i] * asked[0][t * width + column]
            cell = cell + chunk.source[t * self.keys + i] * asked[1][t * width + column]
        return cell

    def _across(self, number: Any, g: Any) -> None:
        """Add up each row of a tile.

        Rows meet in pairs at distances ``side / 2, ..., 1``; of a pair, halves of one are added and
        stand beside those of the other. That is ``side - 1`` additions of two shuffles each, where
        each row alone would take ``side log2 side``.
        """
        side, square, over = self.side, self.square, self.loop.over
        for r, row in enumerate(square):
            with over(side, "x", T.vectorized) as x:
                row[x] = self.tile[(number * side + r) * side + x]
        by = side // 2
        while by:
            for r in range(by):
                pair = [_whole(square[r], side), _whole(square[r + by], side)]
                low = [side + c - by if c & by else c for c in range(side)]
                high = [side + c if c & by else c + by for c in range(side)]
                total = tirx.Shuffle(pair, low) + tirx.Shuffle(pair, high)
                T.buffer_store(square[r].buffer, total, [tirx.Ramp(_ZERO, 1, side)])
            by //= 2
        with over(side, "x", T.vectorized) as x:
            self.totals[number * self.keys + g * side + x] = square[0][x]

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
        for t, part in enumerate(gated):
            self.put("w", (tokens[t], walk.h), walk.rows.halved(part))

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


_ZERO = tirx.IntImm("int32", 0)


def _whole(cells: Cells, side: int) -> Expr:
    return tirx.BufferLoad(cells.buffer, [tirx.Ramp(_ZERO, 1, side)])


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
                value = factor[t * STEPS + s] * product(self._passed(s, last), writes[s])
                total = total + value
        return total

    def written(self, number: int, s: int) -> Expr:
        """Return the gradient of a vector that a step writes with."""
        of, last = self.of, self.count - 1
        total = product(self._passed(s, last), self._total(2 + number, s))
        for t in range(s, self.count):
            factor = of.to_reader[number][t * STEPS + s]
            total = total + factor * product(self._passed(s, t), self.queries[t])
        for t in range(s + 1, self.count):
            factor = of.to_lower[number][t * STEPS + s]
            total = total + factor * product(self._passed(s, t - self.ahead), self.sources[t])
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
        it, a query, a source or the state after the chunk.
        """
        of, last = self.of, self.count - 1
        z = of.totals[(2 + len(self.writes)) * self.count * of.keys + self.i]
        total = product(self._passed(-1, last), z)
        for t in range(r, self.count):
            total = total + self.queries[t] * self._read(0, t, t, range(r))
        for t in range(r + self.ahead, self.count):
            total = total + self.sources[t] * self._read(1, t, t - self.ahead, range(r))
        for number, writes in enumerate(self.writes):
            for s in range(r):
                value = product(self._passed(s, last), self._total(2 + number, s))
                total = total + writes[s] * value
        return total
