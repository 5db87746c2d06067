"""Delta rules in blocks of columns that a core's first cache holds, walking time.

A column of the state needs no other one, so a task walks time with some columns of one head: rows
of it are vectors in registers, the state stays in the first cache, and everything that is read of
a step is read once. `delta_chunk` takes some steps at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from math import gcd
from typing import Any

from tvm import tirx
from tvm.ir import Expr
from tvm.script.ir_builder import tirx as T

from tvm_scan import tir
from tvm_scan.loops.delta import Arrays, Matrix, OfRow, Step
from tvm_scan.loops.delta_lines import AHEAD, lines_of_share
from tvm_scan.loops.reads import value_of
from tvm_scan.loops.writer import Cells, Loop, const
from tvm_scan.reads import LEAST

#: Steps from one state that is kept to the next.
CHECKPOINT = 64
#: Most cells of a vector.
_VECTOR = 16


def register_sums(vector: int, dtype: str) -> int:
    """Return how many vectors of sums stay in registers beside what is added to them.

    With vectors of 64 bytes there are 32 registers, else mostly 16.
    """
    return 16 if vector * tir.byte_size(dtype) >= 64 else 8


class Block:
    """Columns of a state that a task has, in vectors.

    Parameters
    ----------
    loop : Loop
        Is written.
    values, most : int
        Columns of the state, and most of a block.
    dtype : str
        Of the state.
    vector : int
        Most cells of a vector, a power of two.

    Attributes
    ----------
    width, vector : int
        Columns of the block, and of a vector.
    count : int
        Blocks of a state.
    sums : int
        Vectors of sums that stay in registers.
    first : Expr
        The first column of the block; to be set.
    """

    first: Expr

    def __init__(self, loop: Loop, values: int, most: int, dtype: str, vector: int) -> None:
        self.loop = loop
        divisors = [n for n in range(1, min(values, most) + 1) if values % n == 0]
        vectors = {n: gcd(n, vector) for n in divisors}
        self.width = max(divisors, key=lambda n: (vectors[n], n))
        self.vector, self.count = vectors[self.width], values // self.width
        self.sums = register_sums(self.vector, dtype)

    @contextmanager
    def columns(self) -> Iterator[tuple[Any, Any]]:
        """Loop over the columns: where each stands in the block, and which it is."""
        with self.loop.vectors(self.width, self.vector, kind=T.unroll) as (_, j):
            yield j, self.first + j

    def vectors(self) -> AbstractContextManager[tuple[Any, Any]]:
        """Loop over the vectors of a block: where a cell stands in the vector, and in the block."""
        return self.loop.vectors(self.width, self.vector)

    def clear(self, *parts: Cells) -> None:
        """Set the cells of some vectors to 0."""
        for part in parts:
            with self.loop.over(self.vector, "x", T.vectorized) as x:
                part[x] = 0

    def halved(self, part: Cells, least: int = 1) -> Expr:
        """Add up the cells of a vector, which it changes, until there are so many; the first."""
        half = self.vector // 2
        while half >= least:
            with self.loop.over(half, "x", T.vectorized) as x:
                part[x] = part[x] + part[half + x]
            half //= 2
        return part[0]


class Walk:
    """The parameters of a walk over time, and where a task stands in them.

    Parameters
    ----------
    loop : Loop
        To which the parameters of `Arrays` are added, and ``first, [offsets]``.
    batch, heads, length : Expr
        Extents: sequences, heads of the keys, and tokens of a sequence, or of all if `packed`.
    packed : bool
        Whether the sequences lie in one row, each from one of the `offsets` (batch + 1,) to the
        next.
    columns, vector : int
        Most columns of a block, and most cells of a vector.
    **options
        Those of `Arrays`.
    """

    def __init__(
        self,
        loop: Loop,
        batch: Expr,
        heads: Expr,
        length: Expr,
        packed: bool,
        *,
        columns: int,
        vector: int = _VECTOR,
        **options: Any,
    ) -> None:
        self.loop, self.batch, self.length, self.packed = loop, batch, length, packed
        #: Extent of the first axis of the arrays.
        self.count: Any = tirx.IntImm("int64", 1) if packed else batch
        self.arrays = Arrays(loop, self.count, heads, length, **options)
        self.heads, self.dtype = self.arrays.heads, self.arrays.dtype
        self.keys, self.values = self.arrays.keys, self.arrays.values
        self.first = self.states("first")
        self.offsets = loop.array("offsets", (batch + 1,), "int64") if packed else None
        self.block = Block(loop, self.values, columns, self.dtype, vector)
        self.rows = Block(loop, self.keys, self.keys, self.dtype, vector)
        chains = self.arrays.chains.items()
        self._filled_names = [n for n, links in chains if not all(x.is_cheap for x in links)]
        self._filled: dict[str, Cells] = {}

    def states(self, name: str) -> Matrix:
        """Add an array of states, of which the task has one."""
        shape = (self.batch, self.heads, self.keys, self.values)
        cells = self.loop.array(name, shape, self.dtype)
        return Matrix(cells, lambda i, _, v: (self.s, self.h, i, v))

    def checkpoints(self) -> Cells:
        """Add an array of the states that are kept, of every sequence one before another.

        The one before time is not among them.
        """
        # Those of a packed sequence begin where no earlier one reaches.
        count = self.length // CHECKPOINT if self.packed else self.batch * self._checkpoints_of_row
        shape = (count, self.heads, self.keys, self.values)
        return self.loop.array("kept", shape, self.dtype)

    def checkpoint_at(self, cells: Cells, chunk: Expr) -> Matrix:
        """Return the state at the head of a chunk of the task's sequence, not its first one."""
        rows = self.offsets
        first = self.s * self._checkpoints_of_row if rows is None else rows[self.s] // CHECKPOINT
        return Matrix(cells, lambda i, _, v: (first + (chunk - 1), self.h, i, v))

    @property
    def _checkpoints_of_row(self) -> Any:
        return (self.length + (CHECKPOINT - 1)) // CHECKPOINT - 1

    def array(self, name: str, *shape: Any) -> Cells:
        """Add an array of tokens and heads."""
        return self.loop.array(name, (self.count, self.length, self.heads, *shape), self.dtype)

    def at(self, s: Expr, h: Expr, block: Expr) -> None:
        """Set the sequence, the head and the block of columns of the task."""
        self.s, self.h = s, h
        self.block.first = block * self.block.width

    @property
    def steps(self) -> Expr:
        """Return the number of tokens of the sequence."""
        if self.offsets is None:
            return self.length
        return self.offsets[self.s + 1] - self.offsets[self.s]

    def token(self, step: Expr) -> tuple[Expr, Expr]:
        """Return the indices of a token of the sequence."""
        if self.offsets is None:
            return self.s, step
        return tirx.IntImm("int64", 0), self.offsets[self.s] + step

    def part(self, cells: Cells, start: Any = 0) -> Matrix:
        """Return a state of the block alone, from a cell on."""
        return Matrix(cells, lambda i, j, _: start + (i * self.block.width + j))

    def scratch(self, name: str, count: Any = 1) -> Cells:
        """Allocate cells for a task, `count` for each of the block's columns."""
        return self.loop.scratch(name, self.dtype, self.block.width * count)

    def allocate_reads(self) -> None:
        """Allocate what the chains make of a chunk of steps, where that is more than a product."""
        for name in self._filled_names:
            count = CHECKPOINT * (self.keys if self.arrays.has_rows(name) else 1)
            self._filled[name] = self.loop.scratch(f"read_{name}", self.dtype, count)
        self._factor = self.loop.scratch("factor", self.dtype)
        self._squares = self.loop.scratch("squares", self.dtype, self.rows.vector)

    @property
    def read_rows(self) -> dict[str, Cells]:
        """Return the arrays of which a chunk reads rows, or columns, where they lie."""
        return {n: c for n, c in self.rows_of(self.arrays.cells).items() if n not in self._filled}

    def rows_of(self, arrays: Mapping[str, Cells]) -> dict[str, Cells]:
        """Return those of the arrays that have a cell for each row, or for each column."""
        return {n: c for n, c in arrays.items() if n == "v" or self.arrays.has_rows(n)}

    def ask(
        self,
        first: Expr,
        count: int,
        arrays: Mapping[str, Cells],
        *,
        back: bool = False,
        written: bool = False,
        share: tuple[Any, int] = (0, 1),
    ) -> None:
        """Ask for the lines that as many steps some steps later need.

        A head's cells of a token lie far from those of the next one, where no prefetcher looks for
        them (2048 steps of 8 x 64 x 64 on a core of a Zen 4: 5.1 instead of 6.4 ms).

        Parameters
        ----------
        first : Expr
            The first step of these.
        count : int
            Steps.
        arrays : mapping of str to Cells
            Arrays, by the names of those that have the same shape.
        back : bool
            Whether time is walked from its end.
        written : bool
            Whether the arrays are written, not read.
        share : tuple of Expr and int
            Which of how many shares: of the steps, as far as they can be shared out, then of the
            lines of each. By default all lines.
        """
        part, parts = share
        steps = self.steps
        apart = gcd(count, parts)
        count, parts = count // apart, parts // apart
        if apart > 1:
            first, part = first + part // parts * count, part % parts
        for t in range(count):
            later = tirx.max(first + (t - AHEAD), 0) if back else first + (t + AHEAD)
            token = self.token(tirx.min(later, steps - 1))
            for name, array in arrays.items():
                cell = self.arrays.cell(name, token, self.h, array)
                of_block = (self.block.first, self.block.width)
                first_cell, cells = of_block if name == "v" else (0, self.keys)
                lines, start = lines_of_share(cells, self.dtype, part, parts)
                with self.loop.over(lines, "line") as line:
                    self.loop.ask(cell(first_cell + start(line)), written)

    def fill(self, first: Expr, count: Expr) -> None:
        """Write what the chains make of `count` steps, the first one a multiple of `CHECKPOINT`."""
        if self._filled:
            with self.loop.over(count, "n") as n:
                for name in self._filled:
                    self._fill(name, first + n, n)

    def _fill(self, name: str, step: Expr, n: Expr) -> None:
        arrays, cells = self.arrays, self._filled[name]
        chain, raw = arrays.chains[name], arrays.cell(name, self.token(step), self.h)
        if not arrays.has_rows(name):
            cells[n] = value_of(chain, raw(0), arrays.parameter(self.h), self.dtype)
            return
        self.ask(step, 1, {name: arrays.cells[name]})
        is_unit = chain[0].name == "unit"
        if is_unit:
            self._factor[0] = self.over_norm(raw)
        with self.rows.vectors() as (_, i):
            x = raw(i) * self._factor[0] if is_unit else raw(i)
            value = value_of(chain, x, arrays.parameter(self.h, i), self.dtype)
            cells[n * self.keys + i] = value

    def over_norm(self, row: OfRow) -> Expr:
        """Return 1 over the root of `LEAST` and the sum of the squares of a row."""
        part = self._squares
        self.rows.clear(part)
        with self.rows.vectors() as (x, i):
            part[x] = part[x] + row(i) * row(i)
        return tirx.rsqrt(self.rows.halved(part) + const(LEAST, self.dtype))

    def reader(self, step: Expr) -> Callable[[str], OfRow]:
        """Return what is read of each array at a step of the chunk that was filled."""

        def read(name: str) -> OfRow:
            cells, n = self._filled.get(name), step % CHECKPOINT
            if cells is not None:
                if self.arrays.has_rows(name):
                    return lambda i: cells[n * self.keys + i]
                return lambda _: cells[n]
            raw = self.arrays.cell(name, self.token(step), self.h)
            chain = self.arrays.chains.get(name, ())
            return lambda i: value_of(chain, raw(i), self.arrays.parameter(self.h, i), self.dtype)

        return read

    def terms(self, step: Expr) -> Step:
        """Return the terms of a step."""
        return self.arrays.step(self.reader(step))

    def copy(self, target: Matrix, source: Matrix) -> None:
        """Write a state of the block to another array."""
        with self.loop.over(self.keys, "i") as i, self.block.columns() as (j, v):
            target[i, j, v] = source[i, j, v]
