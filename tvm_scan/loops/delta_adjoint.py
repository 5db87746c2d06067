"""The way back of delta rules: the gradients of everything that `delta_walk` reads.

`delta_walk` has kept the states that every `CHECKPOINT`-th step but the first begins with, and what
each step has read of the one before it. Last of these stretches first, one is passed forward once
more, a few steps at once as there, which leaves the states that the chunks of steps begin with in
the second cache; then chunk after chunk is passed back. With the names of `delta_chunk`, S the
state before a chunk, G the adjoint of that after it, and a line for the gradient of what has one::

    |u[s]     = D[s] . G + sum_{t>=s} N[t, s] |y[t] + sum_{t>s} M[t, s] |known[t]
    |S        = (all gates) G + sum_t r'[t] |y[t] + sum_t e'[t] |known[t]
    |r'[t]    = S |y[t]       |e'[t] = S |known[t]       |D[s] = G u[s]
    |N[t, s]  = |y[t] . u[s]  |M[t, s] = |known[t] . u[s]

by substitution from the last step of the chunk to its first, where ``|known`` follows from ``|u``.
The last three lines are sums over columns, of which a row has one for each step and vector; the
gradients of r, e, p and the gates follow from them in `delta_rows`. A cell of the state takes 7
operations a step, one of them forward once more, and ``3 / C`` for its gate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.ir import Expr
from tvm.script.ir_builder import tirx as T

from tvm_scan.loops.delta import Matrix, Step
from tvm_scan.loops.delta_chunk import STEPS, Chunk
from tvm_scan.loops.delta_reads import ReadsAdjoint
from tvm_scan.loops.delta_rows import RowsAdjoint
from tvm_scan.loops.delta_walk import CHECKPOINT, Walk
from tvm_scan.loops.writer import Loop

#: Most chunks of a stretch: of `STEPS` steps, and the steps that are left, one by one.
_CHUNKS = CHECKPOINT // STEPS + STEPS - 1


def delta_adjoint(
    batch: Expr,
    heads: Expr,
    length: Expr,
    *,
    packed: bool = False,
    threads: bool = True,
    columns: int = 128,
    strip: int = 32,
    **options: Any,
) -> tirx.PrimFunc:
    """Build ``delta_adjoint(q, .., first, [offsets,] kept, known, g_y, g_q, .., g_states)``.

    The first parameters are those of `delta_walk`, with the gradient of its outputs; then come
    the gradients of the arrays that it reads, in its order, those of their parameters for each
    sequence, (batch, heads of values) or with an axis of keys, and ``g_states``: that of the states
    after time, which that of ``first`` overwrites. That of `w` is that of its logarithm, or of what
    the chain makes that of. The options are those of `delta_walk`.
    """
    with Loop() as loop:
        walk = Walk(loop, batch, heads, length, packed, columns=columns, **options)
        adjoint = _Adjoint(walk)
        with loop.parallel(batch * heads, "adjoint", T.parallel if threads else T.serial) as r:
            adjoint.write(r // heads, r % heads, strip)
    return loop.func


class _Adjoint:
    """The parameters, and what a task does: the heads of a key, block after block."""

    def __init__(self, walk: Walk) -> None:
        self.loop, self.walk, self.block, self.arrays = walk.loop, walk, walk.block, walk.arrays
        self.keys, self.width = walk.keys, walk.block.width
        self.checkpoints = walk.checkpoints()
        self.known = walk.array("known", walk.values)
        self.g_y = walk.array("g_y", walk.values)
        self.g = {name: self.arrays.like(self.loop, name) for name in self.arrays.timed}
        self.reads = ReadsAdjoint(walk, self.g)
        self.g_states = walk.states("g_states")

    def write(self, s: Expr, head: Expr, strip: int) -> None:
        """Write the passes over all blocks of all heads that share a key."""
        walk, group, count = self.walk, self.arrays.group, self.block.count
        walk.allocate_reads()
        # A pass forward has two sums of a step and column, where one back has one for each term.
        terms = 1 if self.arrays.rule == "delta" else 2
        columns = self.block.sums * self.block.vector // (STEPS * terms)
        self.chunk = Chunk(walk, max(strip, columns))
        self.rows = RowsAdjoint(self.chunk, self.g)
        self.history = walk.scratch("history", _CHUNKS * self.keys)
        names = self.chunk.names
        # In one array, so that what a row reads of the vectors is no constant of the loop that
        # writes rows of the adjoint: LLVM would take all of it to the stack, where it aligns
        # nothing (a chunk of 128 x 128 on an Emerald Rapids: 12.2 instead of 10.7 us).
        rows = [self.keys, STEPS, STEPS, *(STEPS for _ in names)]
        state, *vectors = walk.sections("adjoint", rows)
        self.state = walk.part(state)
        #: For each step and column: gradients of outputs, of what is known, and what is written.
        self.to_output, self.to_known, *self.update = vectors
        self.to_update = walk.scratch("to_update", STEPS)
        #: Likewise what the drive has beyond what is known.
        self.error = walk.scratch("error", STEPS)
        self.sums = [self.chunk.strip_cells(f"back_{name}") for name in names]
        with self.loop.over(group * count, "block") as n:
            walk.at(s, head * group + n // count, n % count)
            #: Whether another block was before, of the head or of another.
            self.rows.is_later = {True: n % count > 0, False: n > 0}
            stretches = (walk.steps + (CHECKPOINT - 1)) // CHECKPOINT
            walk.copy(self.state, self.g_states)
            with self.loop.over(stretches, "c") as c:
                self.stretch(stretches - 1 - c)
            walk.copy(self.g_states, self.state)
        self.reads.write(head)

    def stretch(self, c: Expr) -> None:
        """Pass a stretch forward once more, and back."""
        walk, over, value = self.walk, self.loop.over, self.loop.value
        start = value("start", c * CHECKPOINT)
        here = value("here", tirx.min(CHECKPOINT, walk.steps - start))
        chunks, left = here // STEPS, here % STEPS
        walk.fill(start, here)
        with T.If(c > 0):
            with T.Then():
                walk.copy(self.before(0), walk.checkpoint_at(self.checkpoints, c))
            with T.Else():
                walk.copy(self.before(0), walk.first)
        # The state after the last one is of no use.
        with over(tirx.Select(left > 0, chunks, chunks - 1), "n") as n:
            self.forward(start + n * STEPS, STEPS, n)
        with over(tirx.max(left - 1, 0), "n") as n:
            self.forward(start + (here - left) + n, 1, chunks + n)
        with over(left, "m") as m:
            n = left - 1 - m
            self.back(start + (here - left) + n, 1, chunks + n)
        with over(chunks, "m") as m:
            n = chunks - 1 - m
            self.back(start + n * STEPS, STEPS, n)

    def before(self, n: Any) -> Matrix:
        """Return the state before a chunk of the stretch."""
        return self.walk.part(self.history, n * (self.keys * self.width))

    def forward(self, first: Expr, count: int, n: Expr) -> None:
        """Write the state after a chunk."""
        chunk, first = self.chunk, self.loop.value("first", first)
        before, terms = self.before(n), chunk.prepare(first, count)
        if count == STEPS:
            self.walk.ask(first, count, self.walk.read_rows)
            self.walk.ask(first, count, {"v": self.known})
        with chunk.over_strips() as strip:
            for t, step in enumerate(terms):
                token = self.walk.token(first + t)
                with chunk.columns(strip) as (j, _, v):
                    chunk.write_update(t, step, (j, v), self.known[token, self.walk.h, v])
            chunk.advance(count, before, self.before(n + 1), strip)

    def back(self, first: Expr, count: int, n: Expr) -> None:
        """Pass a chunk back."""
        chunk, rows = self.chunk, self.rows
        first = self.loop.value("first", first)
        terms = chunk.prepare(first, count)
        if count == STEPS:
            self.walk.ask(first, count, {"v": self.g_y}, back=True)
            self.walk.ask(first, count, self.walk.rows_of(self.g), back=True, written=True)
        with chunk.over_strips() as strip:
            pairs = list(zip(self.sums, chunk.writes, strict=True))
            chunk.read(count, pairs, self.state, strip)
            for t in range(count):
                token = self.walk.token(first + t)
                with chunk.columns(strip) as (_, column, v):
                    self.to_output[t * self.width + column] = self.g_y[token, self.walk.h, v]
            for t in reversed(range(count)):
                self._substitute(first, t, count, terms[t], strip)
        rows.write(count, self.before(n), self.state, (self.to_output, self.to_known), self.update)
        # After the rows: before them LLVM reads all vectors, and keeps them on the stack.
        for number, _ in enumerate(chunk.names):
            self._pairs(count, number)
        if self.arrays.rule == "delta":
            self._rates(first, count)
        rows.pull(first, terms)

    def _substitute(self, first: Expr, t: int, count: int, step: Step, strip: Any) -> None:
        """Write the gradients of what a step writes, and from them that of what it has known."""
        chunk, row, width = self.chunk, t * self.chunk.strip, self.width
        for number, sums in enumerate(self.sums):
            pairs = [(chunk.reader[number], n, self.to_output) for n in range(t, count)]
            pairs += [(chunk.lower[number], n, self.to_known) for n in range(t + 1, count)]
            for factor, n, asked in pairs:
                with chunk.columns(strip) as (j, column, _):
                    value = factor[n * STEPS + t] * asked[n * width + column]
                    sums[row + j] = sums[row + j] + value
        token, drive, known = self.walk.token(first + t), self.sums[0], self.sums[-1]
        with chunk.columns(strip) as (j, column, v):
            at = t * width + column
            before = self.known[token, self.walk.h, v]
            if step.rate is None:
                self.g["v"][token, self.walk.h, v] = drive[row + j]
                self.to_known[at] = known[row + j]
                self.update[0][at], self.update[1][at] = step.drive(v), before
            else:
                self.error[at] = step.drive(v) - before
                self.to_update[at] = drive[row + j]
                self.g["v"][token, self.walk.h, v] = step.rate * drive[row + j]
                self.to_known[at] = -step.rate * drive[row + j]
                self.update[0][at] = step.rate * self.error[at]

    def _pairs(self, count: int, number: int) -> None:
        """Write the gradients of what steps read of each other."""
        width, update, rows = self.width, self.update[number], self.rows
        pairs = [(t, s) for t in range(count) for s in range(t + 1)]
        asked = [(self.to_output, rows.to_reader[number], t, s) for t, s in pairs]
        asked += [(self.to_known, rows.to_lower[number], t, s) for t, s in pairs if s < t]

        def term(to: Any, t: int, s: int) -> Callable[[Any], Expr]:
            return lambda column: to[t * width + column] * update[s * width + column]

        totals = rows.sums([term(to, t, s) for to, _, t, s in asked])
        for (_, cells, t, s), total in zip(asked, totals, strict=True):
            cells[t * STEPS + s] = total

    def _rates(self, first: Expr, count: int) -> None:
        """Write the gradients of the rates."""
        width, to, error = self.width, self.to_update, self.error

        def term(t: int) -> Callable[[Any], Expr]:
            return lambda column: to[t * width + column] * error[t * width + column]

        for t, total in enumerate(self.rows.sums([term(t) for t in range(count)])):
            self.rows.put("beta", (self.walk.token(first + t), self.walk.h), total)
