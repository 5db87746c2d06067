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
The third line are sums over columns, of which a row has one for each step and vector: states stand
in `delta_panels`, whose vectors are rows, and only the first product with G is a sum over the cells
of vectors. The gradients of r, e, p and the gates follow in `delta_rows`. A cell of the state takes
7 operations a step, one of them forward once more, and ``3 / C`` for its gate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tvm import tirx
from tvm.ir import Expr
from tvm.script.ir_builder import tirx as T

from tvm_scan.loops.delta import Step
from tvm_scan.loops.delta_chunk import STEPS, Chunk
from tvm_scan.loops.delta_panels import Ask, PanelPasses, Panels
from tvm_scan.loops.delta_reads import ReadsAdjoint
from tvm_scan.loops.delta_rows import RowsAdjoint
from tvm_scan.loops.delta_walk import CHECKPOINT, Walk
from tvm_scan.loops.writer import Cells, Loop

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
        self.chunk = Chunk(walk, strip)
        self.rows = RowsAdjoint(self.chunk, self.g)
        self.panels = PanelPasses(self.chunk)
        self.history = walk.scratch("history", _CHUNKS * self.keys)
        names = self.chunk.names
        self.state = self.panels.part(walk.scratch("adjoint", self.keys))
        #: For each step and column: gradients of outputs, of what is known, what is written, and
        #: the gradients of that.
        self.to_output, self.to_known = (walk.scratch(n, STEPS) for n in ("to_output", "to_known"))
        self.update = [walk.scratch(f"update_{name}", STEPS) for name in names]
        self.written = [walk.scratch(f"written_{name}", STEPS) for name in names]
        self.to_update = walk.scratch("to_update", STEPS)
        #: Likewise what the drive has beyond what is known.
        self.error = walk.scratch("error", STEPS)
        with self.loop.over(group * count, "block") as n:
            walk.at(s, head * group + n // count, n % count)
            #: Whether another block was before, of the head or of another.
            self.rows.is_later = {True: n % count > 0, False: n > 0}
            stretches = (walk.steps + (CHECKPOINT - 1)) // CHECKPOINT
            self.panels.gather(self.state, self.g_states)
            with self.loop.over(stretches, "c") as c:
                self.stretch(stretches - 1 - c)
            self.panels.scatter(self.g_states, self.state)
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
                self.panels.gather(self.before(0), walk.checkpoint_at(self.checkpoints, c))
            with T.Else():
                self.panels.gather(self.before(0), walk.first)
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

    def before(self, n: Any) -> Panels:
        """Return the state before a chunk of the stretch."""
        return self.panels.part(self.history, n * (self.keys * self.width))

    def forward(self, first: Expr, count: int, n: Expr) -> None:
        """Write the state after a chunk."""
        chunk, first = self.chunk, self.loop.value("first", first)
        terms = chunk.prepare(first, count, reads=False)
        with self.columns() as (column, v):
            for t, step in enumerate(terms):
                self._write_update(first, t, step, column, v)
        needed = [(self.walk.read_rows, False), ({"v": self.known}, False)]
        ask = self._asks(first, count, needed, back=False)
        self.panels.advance(count, self.before(n), self.before(n + 1), self.update, ask)

    def back(self, first: Expr, count: int, n: Expr) -> None:
        """Pass a chunk back."""
        chunk, rows = self.chunk, self.rows
        first = self.loop.value("first", first)
        terms = chunk.prepare(first, count)
        needed = [({"v": self.g_y}, False), (self.walk.rows_of(self.g), True)]
        ask: Ask | None = self._asks(first, count, needed, back=True)
        for writes, target in zip(chunk.writes, self.written, strict=True):
            self.panels.read(count, writes, self.state, target, ask)
            ask = None  # the first pass has asked for all
        with self.columns() as (column, v):
            for t in range(count):
                token = self.walk.token(first + t)
                self.to_output[t * self.width + column] = self.g_y[token, self.walk.h, v]
            for t in reversed(range(count)):
                self._substitute(first, t, count, terms[t], column, v)
        asked = self.to_output, self.to_known
        self.panels.write(count, self.before(n), self.state, asked, self.update, rows.totals)
        for number, _ in enumerate(chunk.names):
            self._pairs(count, number)
        if self.arrays.rule == "delta":
            self._rates(first, count)
        rows.pull(first, terms)

    def _asks(
        self,
        first: Expr,
        count: int,
        arrays: Sequence[tuple[Mapping[str, Cells], bool]],
        *,
        back: bool,
    ) -> Ask:
        """Return what asks for a share of the lines of later steps: of arrays, some written.

        A core waits for a dozen lines or a few at a time: those of a chunk, asked for at once, took
        an eighth of the time of 512 steps of 32 x 128 x 128 on a Cascade Lake.
        """

        def ask(part: Any, parts: int) -> None:
            for cells, written in arrays if count == STEPS else []:
                share = (part, parts)
                self.walk.ask(first, count, cells, back=back, written=written, share=share)

        return ask

    @contextmanager
    def columns(self) -> Iterator[tuple[Any, Any]]:
        """Loop over the columns of the block in vectors: where each stands, and which it is."""
        with self.block.vectors() as (_, column):
            yield column, self.block.first + column

    def _write_update(self, first: Expr, t: int, step: Step, column: Any, v: Any) -> None:
        """Write what a step writes to a column."""
        at, known = t * self.width + column, self.known[self.walk.token(first + t), self.walk.h, v]
        if step.rate is None:
            self.update[0][at], self.update[1][at] = step.drive(v), known
        else:
            self.error[at] = step.drive(v) - known
            self.update[0][at] = step.rate * self.error[at]

    def _substitute(self, first: Expr, t: int, count: int, step: Step, column: Any, v: Any) -> None:
        """Write the gradients of what a step writes, and from them that of what it has known."""
        chunk, at, totals = self.chunk, t * self.width + column, []
        for number, written in enumerate(self.written):
            pairs = [(chunk.reader[number], n, self.to_output) for n in range(t, count)]
            pairs += [(chunk.lower[number], n, self.to_known) for n in range(t + 1, count)]
            for factor, n, asked in pairs:
                value = factor[n * STEPS + t] * asked[n * self.width + column]
                written[at] = written[at] + value
            totals.append(written[at])
        of_drive = self.g["v"], (self.walk.token(first + t), self.walk.h, v)
        if step.rate is None:
            of_drive[0][of_drive[1]] = totals[0]
            self.to_known[at] = totals[1]
        else:
            self.to_update[at] = totals[0]
            of_drive[0][of_drive[1]] = step.rate * totals[0]
            self.to_known[at] = -step.rate * totals[0]
        self._write_update(first, t, step, column, v)

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
