"""States of a delta rule whose rows are vectors, and the passes of the way back over them.

A panel has as many rows as a vector has cells, and of each column a vector; a state is panel after
panel. So what a row sums over columns (see `delta_adjoint`: three sums of each row and step)
is a sum of vectors, and none is a sum over the cells of a vector, but one of each column and step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from math import gcd
from operator import add
from typing import Any

from tvm import tirx
from tvm.ir import Expr
from tvm.script.ir_builder import tirx as T

from tvm_scan.loops.delta import Matrix
from tvm_scan.loops.delta_chunk import Chunk
from tvm_scan.loops.writer import Cells

#: Asks for a share of the lines of later steps, given which of how many.
Ask = Callable[[Any, int], None]
#: Of a panel, a column and a row of the panel.
At = tuple[Any, Any, Any]
#: Columns of a share of a pass.
_COLUMNS = 16
_ZERO = tirx.IntImm("int32", 0)


@dataclass(frozen=True)
class Panels:
    """A state in panels, from a cell of an array on."""

    cells: Cells
    start: Any
    width: int
    lanes: int

    def _where(self, at: At) -> Any:
        panel, column, row = at
        return self.start + ((panel * self.width + column) * self.lanes + row)

    def __getitem__(self, at: At) -> Expr:
        return self.cells[self._where(at)]

    def __setitem__(self, at: At, value: Expr) -> None:
        self.cells[self._where(at)] = value


class PanelPasses:
    """Writes the passes over the states of a block.

    Parameters
    ----------
    chunk : Chunk
        The steps that a pass takes.
    """

    def __init__(self, chunk: Chunk) -> None:
        self.chunk, self.walk, self.loop = chunk, chunk.walk, chunk.loop
        self.keys, self.width = chunk.keys, chunk.block.width
        #: Rows of a panel, and panels of a state.
        self.lanes = self.walk.rows.vector
        self.count = self.keys // self.lanes
        #: Rows and columns of a tile that is transposed in registers.
        self.side = gcd(self.lanes, chunk.block.vector)
        # A pass has a sum of each step for what is read and for each term, and one for the gate.
        most = max(self.lanes, self.most * (2 + len(chunk.names)) + 1)
        self.parts = [chunk.cells(f"part_{n}", self.lanes) for n in range(most)]
        #: Of the steps of a chunk to cells of an adjoint.
        self.contribution = chunk.cells("contribution", self.lanes)
        self.tile = [
            [chunk.cells(f"{name}_{n}", self.lanes) for n in range(self.lanes)]
            for name in ("square", "transposed")
        ]

    @property
    def most(self) -> int:
        """Return the most steps of a chunk."""
        return max(self.chunk.strips)

    def part(self, cells: Cells, start: Any = 0) -> Panels:
        """Return the state that stands in an array from a cell on."""
        return Panels(cells, start, self.width, self.lanes)

    # ---- to panels and back --------------------------------------------------------------------

    def gather(self, panels: Panels, state: Matrix) -> None:
        """Write the panels of a state."""
        with self._tiles() as (n, first, j):

            def cell(r: int, x: Any) -> Expr:
                return state[n * self.lanes + first + r, j + x, self._column(j + x)]

            transposed = self._transposed(cell)
            for c in range(self.side):
                with self.loop.over(self.side, "x", T.vectorized) as x:
                    panels[n, j + c, first + x] = transposed[c][x]

    def scatter(self, state: Matrix, panels: Panels) -> None:
        """Write the state of panels."""
        with self._tiles() as (n, first, j):
            transposed = self._transposed(lambda c, x: panels[n, j + c, first + x])
            for r in range(self.side):
                row = n * self.lanes + first + r
                with self.loop.over(self.side, "x", T.vectorized) as x:
                    state[row, j + x, self._column(j + x)] = transposed[r][x]

    def _column(self, column: Any) -> Any:
        return self.chunk.block.first + column

    @contextmanager
    def _tiles(self) -> Iterator[tuple[Any, Any, Any]]:
        """Loop over tiles: their panel, their first row in it, and their first column."""
        over, side = self.loop.over, self.side
        grid = over(self.count, "n"), over(self.lanes // side, "r"), over(self.width // side, "m")
        with grid[0] as n, grid[1] as r, grid[2] as m:
            yield n, r * side, m * side

    def _transposed(self, cell: Callable[[int, Any], Expr]) -> list[Cells]:
        """Transpose a tile, given its cell in a row and a column: halves of rows change places."""
        side, (now, then) = self.side, self.tile
        for r in range(side):
            with self.loop.over(side, "x", T.vectorized) as x:
                now[r][x] = cell(r, x)
        by = side // 2
        while by:
            for r in (r for r in range(side) if not r & by):
                low = [side + c - by if c & by else c for c in range(side)]
                high = [side + c if c & by else c + by for c in range(side)]
                _store(then[r], _mixed(now[r], now[r + by], low, side), side)
                _store(then[r + by], _mixed(now[r], now[r + by], high, side), side)
            now, then, by = then, now, by // 2
        return now

    # ---- the passes ----------------------------------------------------------------------------

    def advance(
        self, count: int, before: Panels, after: Panels, update: list[Cells], ask: Ask
    ) -> None:
        """Write the state after some steps, given what each term writes by step and column."""
        together, over, keys, width = gcd(self.count, 2), self.loop.over, self.keys, self.width
        # Shares of the pass: some columns of some panels.
        each = gcd(width, _COLUMNS)
        shares = self.count // together, width // each
        with over(shares[0], "g") as g, over(shares[1], "m") as m:
            ask(g * shares[1] + m, shares[0] * shares[1])
            with over(each, "c") as c:
                j = m * each + c
                for panel in range(together):
                    n = g * together + panel
                    with self._rows(n) as (x, i):
                        cell = self.chunk.passing(count, i, before[n, j, x])
                        for writes, amount in zip(self.chunk.writes, update, strict=True):
                            for t in range(count):
                                cell = cell + writes[t * keys + i] * amount[t * width + j]
                        after[n, j, x] = cell

    def read(
        self, count: int, vectors: Cells, state: Panels, target: Cells, ask: Ask | None = None
    ) -> None:
        """Write the products of the steps' vectors and the columns of a state.

        Those of as many columns as make a vector of sums are added up together.
        """
        rows, over, width = self.walk.rows, self.loop.over, self.width
        each = gcd(width, max(1, self.lanes // count))
        parts = self.parts[: count * each]
        with over(width // each, "g") as g:
            if ask is not None:
                ask(g, width // each)
            rows.clear(*parts)
            with over(self.count, "n") as n, self._rows(n) as (x, i):
                for t in range(count):
                    for c in range(each):
                        part = parts[t * each + c]
                        product = vectors[t * self.keys + i] * state[n, g * each + c, x]
                        part[x] = part[x] + product
            if len(parts) == self.lanes > 1:
                sums = self._across(parts)
                for t in range(count):
                    with over(each, "c", T.vectorized) as c:
                        target[t * width + g * each + c] = sums[t * each + c]
                return
            for number, part in enumerate(parts):
                at = number // each * width + g * each + number % each
                target[at] = rows.halved(part)

    def _across(self, parts: list[Cells]) -> Cells:
        """Add up the cells of each of as many vectors as one has cells; return the sums.

        Vectors meet in pairs at distances ``lanes / 2, ..., 1``; of a pair, halves of one are added
        and stand beside those of the other. That is ``lanes - 1`` additions, each of cells that
        stay where they are and of a shuffle, where each vector alone would take ``log2 lanes``.
        """
        lanes, by = self.lanes, self.lanes // 2
        while by:
            for r in range(by):
                staying = [lanes + c if c & by else c for c in range(lanes)]
                moved = [lanes + c - by if c & by else c + by for c in range(lanes)]
                pair = parts[r], parts[r + by]
                _store(parts[r], _mixed(*pair, staying, lanes) + _mixed(*pair, moved, lanes), lanes)
            by //= 2
        return parts[0]

    def write(
        self,
        count: int,
        before: Panels,
        adjoint: Panels,
        asked: tuple[Cells, Cells],
        update: list[Cells],
        totals: Cells,
    ) -> None:
        """Write the sums of all rows over columns, and pass the adjoint back through the chunk.

        Parameters
        ----------
        count : int
            Steps of the chunk.
        before, adjoint : Panels
            The state before it, and the adjoint of that after it; then of that before it.
        asked : pair of Cells
            For each step and column of the block, the gradients of the outputs, and of what is
            known.
        update : list of Cells
            Likewise for each term what is written.
        totals : Cells
            For each sum and row: of outputs, what is known, terms, and what all gates leave.
        """
        over, width, rows = self.loop.over, self.width, self.walk.rows
        pairs = [(before, cells) for cells in asked] + [(adjoint, cells) for cells in update]

        def term(state: Panels, cells: Cells, t: int) -> Callable[[At], Expr]:
            return lambda at: state[at] * cells[t * width + at[1]]

        terms = [term(*pair, t) for pair in pairs for t in range(count)]
        if self.chunk.gate != "none":
            terms.append(lambda at: before[at] * adjoint[at])
        parts = self.parts[: len(terms)]
        sums, most = list(zip(parts, terms, strict=True)), self.chunk.block.sums
        # What the adjoint is passed back with takes registers, too.
        alone = [sums] if len(sums) <= most else [sums[:most], sums[most:]]
        with over(self.count, "n") as n:
            rows.clear(*parts)
            for some in alone:
                with over(width, "j") as j, self._rows(n) as (x, i):
                    at = (n, j, x)
                    if some is alone[-1]:
                        self.contribution[x] = self._contribution(count, i, asked, j)
                    for part, value in some:
                        part[x] = part[x] + value(at)
                    if some is alone[-1]:
                        adjoint[at] = self.contribution[x] + self.chunk.passing(
                            count, i, adjoint[at]
                        )
            for number, part in enumerate(parts):
                with self._rows(n) as (x, i):
                    totals[number * self.keys + i] = part[x]

    def _contribution(self, count: int, i: Any, asked: tuple[Cells, Cells], column: Any) -> Expr:
        """Return what the steps give to a cell of the adjoint before them.

        It needs neither state, so it stands before all that waits for one, and in two sums. Added
        product after product to what the gates leave of the cell, each waits for the one before it,
        more of them than a core has in view (512 steps of 32 x 128 x 128 back on a Cascade Lake:
        39.1 ms, and so 34.4, with lines asked for as in `_asks` of `delta_adjoint`).
        """
        sums = [
            reduce(
                add,
                (vectors[t * self.keys + i] * cells[t * self.width + column] for t in range(count)),
            )
            for vectors, cells in zip((self.chunk.query, self.chunk.source), asked, strict=True)
        ]
        return sums[0] + sums[1]

    @contextmanager
    def _rows(self, n: Any) -> Iterator[tuple[Any, Any]]:
        """Loop over the rows of a panel: where each stands in the panel, and in the state."""
        with self.loop.over(self.lanes, "x", T.vectorized) as x:
            yield x, n * self.lanes + x


def _mixed(first: Cells, second: Cells, order: list[int], side: int) -> Expr:
    """Return cells of two vectors in an order."""
    pair = [tirx.BufferLoad(row.buffer, [tirx.Ramp(_ZERO, 1, side)]) for row in (first, second)]
    return tirx.Shuffle(pair, order)


def _store(cells: Cells, value: Expr, side: int) -> None:
    T.buffer_store(cells.buffer, value, [tirx.Ramp(_ZERO, 1, side)])
