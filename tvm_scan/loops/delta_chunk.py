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

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tvm import tirx
from tvm.ir import Expr
from tvm.script.ir_builder import tirx as T

from tvm_scan.loops.delta import Matrix, Step
from tvm_scan.loops.delta_walk import KEPT, Walk
from tvm_scan.loops.writer import Cells, Loop

__all__ = ["delta_walk"]

#: Steps at once. With more, what they read of each other takes more than is saved.
_STEPS = 4


def delta_walk(
    batch: Expr,
    heads: Expr,
    length: Expr,
    *,
    packed: bool = False,
    in_place: bool = False,
    keep: bool = False,
    threads: bool = True,
    columns: int = 64,
    strip: int = 32,
    **options: Any,
) -> tirx.PrimFunc:
    """Build ``delta_walk(q, k, v, [w,] [beta | a, b,] .., first, [offsets,] [kept,] [last,] y)``.

    With `in_place` the states after time are left in `first`, and no task copies its own; with
    `keep` those before every `KEPT`-th step are left in `kept`. Without `threads` the calling one
    does all; a task has at most so many `columns`, and sums of a `strip` of them are in registers.
    The other options are those of `Walk`.
    """
    with Loop() as loop:
        walk = Walk(loop, batch, heads, length, packed, columns=columns, **options)
        block = walk.block
        kept = walk.kept() if keep else None
        last = None if in_place else walk.states("last")
        y = walk.array("y", walk.values)
        kind = T.parallel if threads else T.serial
        with loop.parallel(batch * walk.heads * block.count, "walk", kind) as r:
            walk.at(r // (walk.heads * block.count), r // block.count % walk.heads, r % block.count)
            walk.allocate_reads()
            chunk = _Chunk(walk, y, strip)
            state = walk.first
            if last is not None:
                state = walk.part(walk.scratch("state", walk.keys))
                walk.copy(state, walk.first)
            with loop.over((walk.steps + (KEPT - 1)) // KEPT, "c") as c:
                start = c * KEPT
                here = tirx.min(KEPT, walk.steps - start)
                if kept is not None:
                    walk.copy(walk.kept_at(kept, c), state)
                walk.fill(start, here)
                with loop.over(here // _STEPS, "n") as n:
                    chunk.write(start + n * _STEPS, _STEPS, state)
                with loop.over(here % _STEPS, "n") as n:
                    chunk.write(start + (here - here % _STEPS) + n, 1, state)
            if last is not None:
                walk.copy(last, state)
    return loop.func


class _Chunk:
    """Arrays of a task for a few steps, and the statements of these steps.

    Parameters
    ----------
    walk : Walk
        The task.
    y : Cells
        The outputs.
    strip : int
        Most columns whose sums are in registers.
    """

    def __init__(self, walk: Walk, y: Cells, strip: int) -> None:
        self.walk, self.loop, self.y = walk, walk.loop, y
        self.keys, self.gate, self.block = walk.keys, walk.arrays.gate, walk.block
        self.vector = self.block.vector
        #: Columns whose sums are in registers: more of them for fewer steps.
        self.strips = {n: self._columns_for(strip * (_STEPS // n)) for n in (1, _STEPS)}

        def cells(name: str, count: int) -> Cells:
            return self.loop.cell(name, walk.dtype, count)

        self.source, self.query = (cells(n, _STEPS * self.keys) for n in ("source", "query"))
        #: One for each term.
        names = ["into"] if walk.arrays.rule == "delta" else ["into", "added"]
        self.writes = [cells(name, _STEPS * self.keys) for name in names]
        #: Of the gates since the head of the chunk: of each row, or of each step.
        self.passed = cells("passed", self.keys if self.gate == "key" else _STEPS)
        self.lower = [cells(f"lower_{name}", _STEPS * _STEPS) for name in names]
        self.reader = [cells(f"reader_{name}", _STEPS * _STEPS) for name in names]
        count = 2 * _STEPS * len(names)
        self.sums = [cells(f"sum_{n}", walk.rows.vector) for n in range(count)]
        sums = max(count * strip for count, strip in self.strips.items())
        self.known, self.total = (cells(name, sums) for name in ("known", "total"))
        self.update = [cells(f"update_{name}", sums) for name in names]

    def _columns_for(self, most: int) -> int:
        """Return the widest divisor of the block that is at most so many columns, or a vector."""
        strips = range(self.vector, self.block.width + 1, self.vector)
        most = max(most, self.vector)
        return max(n for n in strips if n <= most and self.block.width % n == 0)

    def write(self, first: Expr, count: int, state: Matrix) -> None:
        """Write the outputs of `count` steps, and the state after them."""
        self.strip = self.strips[count]
        terms = [self.walk.terms(first + t) for t in range(count)]
        for t, step in enumerate(terms):
            self._prepare(t, step, self.walk.reader(first + t)("q"))
        with self.loop.over(self.block.width // self.strip, "strip") as strip:
            self._read(count, state, strip)
            for t, step in enumerate(terms):
                self._substitute(t, step, self.walk.token(first + t), strip)
            self._advance(count, state, strip)

    # ---- what all columns share ----------------------------------------------------------------

    def _prepare(self, t: int, step: Step, query: Any) -> None:
        """Write the vectors of a step, and its products with those of the steps before.

        Its gate has passed what is written before it; the query reads after it, and so does the
        source of a rate, whose step has the gate in it.
        """
        erase, at = step.erase, t * self.keys
        into = [step.into] if erase is None else [step.into, erase[1]]
        source = step.into if erase is None else erase[0]
        pairs = [(n, s) for n in range(len(into)) for s in range(t + 1)]
        lower = {pair: self.sums[number] for number, pair in enumerate(pairs)}
        reader = {pair: self.sums[len(pairs) + number] for number, pair in enumerate(pairs)}
        if self.gate == "head" and step.gate is not None:
            self.passed[t] = step.gate(0) * self.passed[t - 1] if t else step.gate(0)
        rows = self.walk.rows
        for part in (*lower.values(), *reader.values()):
            with self.loop.over(rows.vector, "x", T.vectorized) as x:
                part[x] = 0

        def add(part: Cells, x: Any, value: Expr) -> None:
            part[x] = part[x] + value

        with rows.vectors() as (x, i):
            for term, s in pairs:
                written, cell = self.writes[term], s * self.keys + i
                if s == t:
                    written[cell] = into[term](i)
                else:
                    if erase is not None:
                        add(lower[term, s], x, source(i) * written[cell])
                    if step.gate is not None:
                        written[cell] = step.gate(i) * written[cell]
                    if erase is None:
                        add(lower[term, s], x, source(i) * written[cell])
                add(reader[term, s], x, query(i) * written[cell])
            before, after = self._since_head(t, step, i)
            self.source[at + i] = _product(after if erase is None else before, source(i))
            self.query[at + i] = _product(after, query(i))
            if self.gate == "key":
                self.passed[i] = after
        halved = rows.halved
        for term, s in pairs:
            if s < t:
                self.lower[term][t * _STEPS + s] = halved(lower[term, s])
            self.reader[term][t * _STEPS + s] = halved(reader[term, s])

    def _since_head(self, t: int, step: Step, i: Any) -> tuple[Any, Any]:
        """Return the gates since the head of the chunk before a step and after it; None for 1."""
        if step.gate is None:
            return None, None
        if self.gate == "head":
            return (self.passed[t - 1] if t else None), self.passed[t]
        before = self.passed[i] if t else None
        return before, _product(before, step.gate(i))

    # ---- the columns of a strip ----------------------------------------------------------------

    @contextmanager
    def _columns(self, strip: Any) -> Iterator[tuple[Any, Any, Any]]:
        """Loop over columns: where each stands in the strip and in the block, and which it is."""
        over, vector = self.loop.over, self.vector
        with (
            over(self.strip // vector, "m", T.unroll) as m,
            over(vector, "x", T.vectorized) as x,
        ):
            j = m * vector + x
            place = strip * self.strip + j
            yield j, place, self.block.first + place

    def _read(self, count: int, state: Matrix, strip: Any) -> None:
        """Write what the steps read of the state before them."""
        pairs = [(self.known, self.source), (self.total, self.query)]
        for t in range(count):
            for sums, _ in pairs:
                with self._columns(strip) as (j, _, _):
                    sums[t * self.strip + j] = 0
        with self.loop.over(self.keys, "i") as i:
            for t in range(count):
                for sums, vectors in pairs:
                    with self._columns(strip) as (j, place, v):
                        where = t * self.strip + j
                        cell = state[i, place, v]
                        sums[where] = sums[where] + vectors[t * self.keys + i] * cell

    def _substitute(self, t: int, step: Step, token: Any, strip: Any) -> None:
        """Add what a step reads of those before; then what it writes, and its output."""
        row = t * self.strip
        self._add(self.known, t, range(t), self.lower, strip)
        with self._columns(strip) as (j, _, v):
            amount = step.drive(v)
            if step.rate is not None:
                amount = step.rate * (amount - self.known[row + j])
            self.update[0][row + j] = amount
            if step.erase is not None:
                self.update[1][row + j] = self.known[row + j]
        self._add(self.total, t, range(t + 1), self.reader, strip)
        with self._columns(strip) as (j, _, v):
            self.y[token, self.walk.h, v] = self.total[row + j]

    def _add(self, sums: Cells, t: int, steps: range, factors: list[Cells], strip: Any) -> None:
        for factor, update in zip(factors, self.update, strict=True):
            for s in steps:
                with self._columns(strip) as (j, _, _):
                    value = factor[t * _STEPS + s] * update[s * self.strip + j]
                    sums[t * self.strip + j] = sums[t * self.strip + j] + value

    def _advance(self, count: int, state: Matrix, strip: Any) -> None:
        """Write the state after the steps."""
        with self.loop.over(self.keys, "i") as i, self._columns(strip) as (j, place, v):
            cell = state[i, place, v]
            if self.gate != "none":
                cell = self.passed[i if self.gate == "key" else count - 1] * cell
            for writes, update in zip(self.writes, self.update, strict=True):
                for t in range(count):
                    cell = cell + writes[t * self.keys + i] * update[t * self.strip + j]
            state[i, place, v] = cell


def _product(factor: Any, value: Any) -> Any:
    return value if factor is None else factor * value
