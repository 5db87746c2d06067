"""Delta rules on a CPU: a few steps of a block of columns at once.

With e the vectors that read the state before a step, p those that are written with, r the queries,
and the gates between two steps multiplied up (never divided: a gate may be 0), a pass over the
state before a chunk of steps yields all that they read of it. What they read of each other follows
from two numbers for each pair of them, by forward substitution, and another pass leaves the state
after the chunk::

    known[t] = e'[t] . S + sum_{s<t} M[t, s] u[s]      M[t, s] = e[t] . (p[s], gates after s)
    y[t]     = r'[t] . S + sum_{s<=t} N[t, s] u[s]     N[t, s] = r[t] . (p[s], gates after s)
    S'       = (all gates) S + sum_s (p[s], gates after s) u[s]

A cell of the state takes ``3 + 1 / C`` operations a step for chunks of C steps, where step after
step it takes 4, and is read twice and written once for all of them. Source: the form of Yang et
al. 2024 (arXiv 2406.06484), whose chunks here are so short that all sums are in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from tvm.ir import Expr
from tvm.script.ir_builder import tirx as T

from tvm_scan.loops.delta import Matrix, OfRow, Step
from tvm_scan.loops.delta_lines import cell_in_strips
from tvm_scan.loops.delta_walk import Walk
from tvm_scan.loops.writer import Cells

#: What a step reads of a term of one before it, after it or before it: its sum by both.
Sums = dict[tuple[bool, int, int, int], Cells]
#: Steps at once. With more, what they read of each other takes more than is saved.
STEPS = 4


class Chunk:
    """Arrays of a task for a few steps, and the statements of these steps.

    Parameters
    ----------
    walk : Walk
        The task.
    strip : int
        Most columns whose sums are in registers.

    Attributes
    ----------
    source, query : Cells
        Vectors of the steps that read the state before all of them, the gates in them.
    writes : list of Cells
        For each term the vectors that the steps write with, and the gates after them.
    passed : Cells
        The gates since the head of the chunk: of each row, or of each step.
    lower, reader : list of Cells
        For each term what a step reads of what one before it writes, before it and after it.
    known : Cells
        For the columns of a strip what the steps have before them.
    update : list of Cells
        For each term what they write, likewise.
    """

    def __init__(self, walk: Walk, strip: int) -> None:
        self.walk, self.loop = walk, walk.loop
        self.keys, self.gate, self.block = walk.keys, walk.arrays.gate, walk.block
        self.vector = self.block.vector
        # Of a single step, whose state may be in memory, one pass yields all that is read.
        single = min(strip * STEPS, self.block.sums * self.vector // 2)
        #: Columns whose sums are in registers: more of them for fewer steps.
        self.strips = {1: self._columns_for(single), STEPS: self._columns_for(strip)}
        self.source, self.query = (self.cells(n, STEPS * self.keys) for n in ("source", "query"))
        #: One for each term.
        self.names = ["into"] if walk.arrays.rule == "delta" else ["into", "added"]
        self.writes = [self.cells(name, STEPS * self.keys) for name in self.names]
        self.passed = self.cells("passed", self.keys if self.gate == "key" else STEPS)
        self.lower = [self.cells(f"lower_{name}", STEPS * STEPS) for name in self.names]
        self.reader = [self.cells(f"reader_{name}", STEPS * STEPS) for name in self.names]
        #: Of steps that are prepared together: of the last one alone, or as stay in registers.
        count = max(len(self.names) * (2 * STEPS - 1), self.block.sums)
        self.sums = [self.cells(f"sum_{n}", walk.rows.vector) for n in range(count)]
        self.known = self.strip_cells("known")
        self.update = [self.strip_cells(f"update_{name}") for name in self.names]

    def cells(self, name: str, count: int) -> Cells:
        """Allocate cells for a task."""
        return self.loop.scratch(name, self.walk.dtype, count)

    def strips_of(self, cells: Cells) -> Matrix:
        """Return a state of the block alone, a strip of columns after another."""
        strip = self.strips[STEPS]
        return Matrix(cells, lambda i, j, _: cell_in_strips(i, j, self.keys, strip))

    def strip_cells(self, name: str) -> Cells:
        """Allocate cells for the columns of a strip, for each step."""
        return self.cells(name, max(count * strip for count, strip in self.strips.items()))

    def _columns_for(self, most: int) -> int:
        """Return the widest divisor of the block that is at most so many columns, or a vector."""
        strips = range(self.vector, self.block.width + 1, self.vector)
        most = max(most, self.vector)
        return max(n for n in strips if n <= most and self.block.width % n == 0)

    # ---- what all columns share ----------------------------------------------------------------

    def prepare(self, first: Expr, count: int, reads: bool = True) -> list[Step]:
        """Write what all columns share of `count` steps; return their terms.

        Without `reads` that is what they write with, and the gates.
        """
        self.strip = self.strips[count]
        terms = [self.walk.terms(first + t) for t in range(count)]
        queries = [self.walk.reader(first + t)("q") for t in range(count)]
        if self.gate == "head":
            for t, step in enumerate(terms):
                assert step.gate is not None, "a head's gate"
                self.passed[t] = step.gate(0) * self.passed[t - 1] if t else step.gate(0)
        for steps in self._together(count) if reads else [range(count)]:
            self._prepare(steps, terms, queries, reads)
        return terms

    def _together(self, count: int) -> Iterator[range]:
        """Yield steps whose sums are in registers together, or one that has more."""
        start, sums = 0, 0
        for t in range(count):
            more = len(self.names) * (2 * t + 1)
            if t > start and sums + more > self.block.sums:
                yield range(start, t)
                start, sums = t, 0
            sums += more
        yield range(start, count)

    def _prepare(self, steps: range, terms: list[Step], queries: list[OfRow], reads: bool) -> None:
        """Write the vectors of some steps, and their products with those of the steps before.

        A pass over the rows takes all of them: one for each has LLVM unroll them into each other,
        and spill (a chunk of 128 rows: 300 stores to the stack of 1100 instructions).
        """
        keys = [
            (is_read, t, n, s)
            for t in (steps if reads else ())
            for is_read in (True, False)
            for n in range(len(self.names))
            for s in range(t + is_read)
        ]
        sums, rows = dict(zip(keys, self.sums, strict=False)), self.walk.rows
        rows.clear(*sums.values())
        with rows.vectors() as (x, i):
            for t in steps:
                self._row(t, terms[t], queries[t], sums, (x, i))
        for (is_read, t, n, s), part in sums.items():
            cells = self.reader[n] if is_read else self.lower[n]
            cells[t * STEPS + s] = rows.halved(part)

    def _row(self, t: int, step: Step, query: OfRow, sums: Sums, at: tuple[Any, Any]) -> None:
        """Write the cells of a row of a step, and add its products to sums.

        Its gate has passed what is written before it; the query reads after it, and so does the
        source of a rate, whose step has the gate in it.
        """
        (x, i), erase = at, step.erase
        into = [step.into] if erase is None else [step.into, erase[1]]
        source = step.into if erase is None else erase[0]

        def add(which: tuple[bool, int, int, int], value: Expr) -> None:
            part = sums.get(which)
            if part is not None:
                part[x] = part[x] + value

        for n, written in enumerate(self.writes):
            for s in range(t + 1):
                cell = s * self.keys + i
                if s == t:
                    written[cell] = into[n](i)
                else:
                    if erase is not None:
                        add((False, t, n, s), source(i) * written[cell])
                    if step.gate is not None:
                        written[cell] = step.gate(i) * written[cell]
                    if erase is None:
                        add((False, t, n, s), source(i) * written[cell])
                add((True, t, n, s), query(i) * written[cell])
        before, after = self._since_head(t, step, i)
        if sums:
            self.source[t * self.keys + i] = product(after if erase is None else before, source(i))
            self.query[t * self.keys + i] = product(after, query(i))
        if self.gate == "key":
            self.passed[i] = after

    def _since_head(self, t: int, step: Step, i: Any) -> tuple[Any, Any]:
        """Return the gates since the head of the chunk before a step and after it; None for 1."""
        if step.gate is None:
            return None, None
        if self.gate == "head":
            return (self.passed[t - 1] if t else None), self.passed[t]
        before = self.passed[i] if t else None
        return before, product(before, step.gate(i))

    # ---- the columns of a strip ----------------------------------------------------------------

    def over_strips(self) -> AbstractContextManager[Expr]:
        """Loop over the strips of a block."""
        return self.loop.over(self.block.width // self.strip, "strip")

    @contextmanager
    def columns(self, strip: Any) -> Iterator[tuple[Any, Any, Any]]:
        """Loop over columns: where each stands in the strip and in the block, and which it is."""
        with self.loop.vectors(self.strip, self.vector, kind=T.unroll) as (_, j):
            column = strip * self.strip + j
            yield j, column, self.block.first + column

    @contextmanager
    def over_rows(self, before: Callable[[Any], None] | None = None) -> Iterator[Expr]:
        """Loop over the rows of a state; with `before` in halves, before each of which it writes.

        It is given 0 and 1, also where the rows have no halves.
        """
        if before is None or self.keys % 2:
            if before is not None:
                before(0)
                before(1)
            with self.loop.over(self.keys, "i") as i:
                yield i
            return
        with self.loop.over(2, "half") as half:
            before(half)
            with self.loop.over(self.keys // 2, "i") as i:
                yield half * (self.keys // 2) + i

    def read(
        self,
        count: int,
        pairs: list[tuple[Cells, Cells]],
        state: Matrix,
        strip: Any,
        before: Callable[[Any], None] | None = None,
    ) -> None:
        """Write the products of the steps' vectors and a state: pairs of those, and of vectors.

        As many pairs share a pass over the state as have their sums in registers. With one sum too
        many in memory every row waits for its store (64 steps of 32 x 128 x 128 on a Zen 3: 6.1 ms
        in one pass, 2.8 ms in two with twice the columns). What is written `before` stands
        before halves of the rows, of several passes before the first two: where registers are few,
        LLVM keeps no sums in them from half to half.
        """
        each = max(1, self.block.sums * self.vector // (count * self.strip))
        passes = [pairs[first : first + each] for first in range(0, len(pairs), each)]
        for n, some in enumerate(passes):
            if before is not None and len(passes) > 1 and n < 2:
                before(n)
            self._pass(count, some, state, strip, before if len(passes) == 1 else None)

    def _pass(
        self,
        count: int,
        pairs: list[tuple[Cells, Cells]],
        state: Matrix,
        strip: Any,
        before: Callable[[Any], None] | None,
    ) -> None:
        for t in range(count):
            for sums, _ in pairs:
                with self.columns(strip) as (j, _, _):
                    sums[t * self.strip + j] = 0
        with self.over_rows(before) as i:
            for t in range(count):
                for sums, vectors in pairs:
                    with self.columns(strip) as (j, column, v):
                        where = t * self.strip + j
                        cell = state[i, column, v]
                        sums[where] = sums[where] + vectors[t * self.keys + i] * cell

    def substitute(self, t: int, step: Step, strip: Any) -> None:
        """Add to what a step has what it reads of those before; then write what it writes."""
        row = t * self.strip
        self.add(self.known, t, range(t), self.lower, strip)
        with self.columns(strip) as (j, _, v):
            self.write_update(t, step, (j, v), self.known[row + j])

    def write_update(self, t: int, step: Step, column: tuple[Any, Any], known: Expr) -> None:
        """Write what a step writes to a column, given what it has before it."""
        at, amount = t * self.strip + column[0], step.drive(column[1])
        if step.rate is not None:
            amount = step.rate * (amount - known)
        self.update[0][at] = amount
        if step.erase is not None:
            self.update[1][at] = known

    def add(self, sums: Cells, t: int, steps: range, factors: list[Cells], strip: Any) -> None:
        """Add to the sums of a step what it reads of what some steps write."""
        for factor, update in zip(factors, self.update, strict=True):
            for s in steps:
                with self.columns(strip) as (j, _, _):
                    value = factor[t * STEPS + s] * update[s * self.strip + j]
                    sums[t * self.strip + j] = sums[t * self.strip + j] + value

    def advance(
        self,
        count: int,
        state: Matrix,
        after: Matrix,
        strip: Any,
        before: Callable[[Any], None] | None = None,
    ) -> None:
        """Write the state after the steps, which may be where that before them is.

        What is written `before` is as for `over_rows`.
        """
        with self.over_rows(before) as i, self.columns(strip) as (j, column, v):
            cell = self.passing(count, i, state[i, column, v])
            for writes, update in zip(self.writes, self.update, strict=True):
                for t in range(count):
                    cell = cell + writes[t * self.keys + i] * update[t * self.strip + j]
            after[i, column, v] = cell

    def passing(self, count: int, i: Any, cell: Expr) -> Expr:
        """Return what all gates of so many steps leave of a cell in a row."""
        if self.gate == "none":
            return cell
        return self.passed[i if self.gate == "key" else count - 1] * cell


def product(factor: Any, value: Any) -> Any:
    """Multiply an expression by a factor, of which None is 1."""
    return value if factor is None else factor * value
