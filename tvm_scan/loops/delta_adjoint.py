"""The way back of delta rules: the gradients of everything that `delta_walk` reads.

With the adjoint ``G`` of the state after a step, the gradient of the output at it and the state
before it, each gradient of the step is a product of vectors with one of the two states, and
``G`` goes on to the step before. `delta_walk` has kept the states that chunks begin with. Last
chunk first, a chunk is passed forward once more, which leaves its states in the second cache, and
back.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Expr
from tvm.script.ir_builder import tirx as T

from tvm_scan.loops.delta import Matrix, key_head
from tvm_scan.loops.delta_reads import ReadsAdjoint
from tvm_scan.loops.delta_walk import KEPT, Walk
from tvm_scan.loops.writer import Cells, Loop

__all__ = ["delta_adjoint"]

#: Most columns of a block: 128 rows of them in float32 at every step of a chunk are 1 MiB.
_COLUMNS = 32


def delta_adjoint(
    batch: Expr, heads: Expr, length: Expr, *, packed: bool = False, **options: Any
) -> tirx.PrimFunc:
    """Build ``delta_adjoint(q, .., first, [offsets,] kept, g_y, g_last, g_q, .., g_first)``.

    The first parameters are those of `delta_walk`, with the gradients of its results; then come
    the gradients of the arrays that it reads, in its order, those of their parameters for each
    sequence, (batch, heads of values) or with an axis of keys, and that of ``first``. That of `w`
    is that of its logarithm, or of what the chain makes that of.
    """
    with Loop() as loop:
        walk = Walk(loop, batch, heads, length, packed, columns=_COLUMNS, **options)
        adjoint = _Adjoint(loop, walk)
        with loop.parallel(batch * heads, "adjoint") as r:
            adjoint.write(r // heads, r % heads)
    return loop.func


class _Adjoint:
    """The parameters, and what a task does: the heads of a key, block after block."""

    def __init__(self, loop: Loop, walk: Walk) -> None:
        self.loop, self.walk, self.block, self.arrays = loop, walk, walk.block, walk.arrays
        self.keys, arrays = walk.keys, walk.arrays
        self.is_delta = arrays.rule == "delta"
        self.kept = walk.kept()
        self.g_y, self.g_last = walk.array("g_y", walk.values), walk.states("g_last")
        self.g = {name: arrays.like(loop, name) for name in arrays.timed}
        self.reads = ReadsAdjoint(loop, walk, self.g)
        self.g_first = walk.states("g_first")

    def write(self, s: Expr, head: Expr) -> None:
        """Write the passes over all blocks of all heads that share a key."""
        loop, walk, group = self.loop, self.walk, self.arrays.group
        walk.allocate()
        walk.allocate_reads()
        self.asked, self.drive = walk.scratch("asked"), walk.scratch("drive")
        self.to_drive, self.to_known = walk.scratch("to_drive"), walk.scratch("to_known")
        self.gated, self.read = walk.scratch("gated"), walk.scratch("read")
        self.parts = [loop.cell(name, walk.dtype, self.block.vector) for name in ("part", "other")]
        self.state = walk.part(walk.scratch("state", self.keys))
        self.history = walk.scratch("history", (KEPT + 1) * self.keys)
        self.knowns = walk.scratch("knowns", KEPT)
        count = self.block.count
        with loop.over(group * count, "block") as n:
            walk.at(s, head * group + n // count, n % count)
            #: Whether another block was before, of the head or of another.
            self.is_later = {True: n % count > 0, False: n > 0}
            chunks = (walk.steps + (KEPT - 1)) // KEPT
            walk.copy(self.state, self.g_last)
            with loop.over(chunks, "c") as c:
                self.chunk(chunks - 1 - c)
            walk.copy(self.g_first, self.state)
        self.reads.write(head)

    def chunk(self, c: Expr) -> None:
        """Pass a chunk forward once more, and back."""
        loop, walk = self.loop, self.walk
        here = tirx.min(KEPT, walk.steps - c * KEPT)
        walk.fill(c * KEPT, here)
        walk.copy(self.before(0), walk.kept_at(self.kept, c))
        walk.begin(c * KEPT, self.before(0))
        with loop.over(here, "n") as n:
            token, after = walk.token(c * KEPT + n), self.before(n + 1)
            with self.block.columns() as (j, v):
                self.asked[j] = self.g_y[token, walk.h, v]
                self.knowns[n * self.block.width + j] = walk.known[j]

            def read(i: Any) -> None:
                self.add("q", (token, walk.h, i), lambda j, v: after[i, j, v] * self.asked[j])

            walk.advance(c * KEPT + n, self.before(n), after, read)
        self.start(c * KEPT + (here - 1), here - 1)
        with loop.over(self.keys, "i") as i:
            self.enter(c * KEPT + (here - 1), i)
        with loop.over(here, "m") as m:
            n = here - 1 - m
            t = c * KEPT + n
            self.end(t, n)
            with T.If(n > 0):
                with T.Then():
                    # A row goes on to the step before while it is in registers.
                    self.start(t - 1, n - 1)
                    with loop.over(self.keys, "i") as i:
                        self.leave(t, n, i)
                        self.enter(t - 1, i)
                with T.Else(), loop.over(self.keys, "i") as i:
                    self.leave(t, n, i)
            if self.arrays.gate == "head":
                at = (walk.token(t), walk.h)
                self.add("w", at, lambda j, _: self.gated[j])

    def before(self, n: Any) -> Matrix:
        """Return the state before a step of the chunk."""
        return self.walk.part(self.history, n * (self.keys * self.block.width))

    def start(self, t: Expr, n: Expr) -> None:
        """Write what the rows of a step need before they are entered."""
        token, h = self.walk.token(t), self.walk.h
        with self.block.columns() as (j, v):
            self.asked[j] = self.g_y[token, h, v]
            self.to_drive[j] = 0
            if not self.is_delta:
                self.to_known[j] = 0
                self.walk.known[j] = self.knowns[n * self.block.width + j]
                self.drive[j] = self.walk.reader(t)("v")(v)

    def enter(self, t: Expr, i: Expr) -> None:
        """Add what the output of a step asks of a row of the state, and gather by rows."""
        token, h, state, columns = self.walk.token(t), self.walk.h, self.state, self.block.columns
        step, query = self.walk.terms(t), self.walk.reader(t)("q")
        with columns() as (j, v):
            state[i, j, v] = state[i, j, v] + query(i) * self.asked[j]
        with columns() as (j, v):
            self.to_drive[j] = self.to_drive[j] + step.into(i) * state[i, j, v]
            if step.erase is not None:
                self.to_known[j] = self.to_known[j] + step.erase[1](i) * state[i, j, v]
        if step.erase is not None:
            self.add("k", (token, h, i), lambda j, v: state[i, j, v] * self.drive[j])
            self.add("b", (token, h, i), lambda j, v: state[i, j, v] * self.walk.known[j])

    def end(self, t: Expr, n: Expr) -> None:
        """Write what the rows of a step need before they are left, once all are entered."""
        token, h, columns = self.walk.token(t), self.walk.h, self.block.columns
        step = self.walk.terms(t)
        rate = step.rate
        if rate is not None:
            # The update is `rate` times an error, and what was known enters it with a minus.
            with columns() as (j, v):
                self.walk.update[j] = step.drive(v) - self.knowns[n * self.block.width + j]
            self.add("beta", (token, h), lambda j, _: self.to_drive[j] * self.walk.update[j])
        with columns() as (j, v):
            if rate is not None:
                self.walk.update[j] = rate * self.walk.update[j]
                self.to_drive[j] = rate * self.to_drive[j]
            self.g["v"][token, h, v] = self.to_drive[j]
            self.read[j] = self.to_drive[j] if rate is not None else self.to_known[j]
            if self.arrays.gate == "head":
                self.gated[j] = 0

    def leave(self, t: Expr, n: Expr, i: Expr) -> None:
        """Pass a row of the adjoint back through the gate and what read the state."""
        token, h, state, columns = self.walk.token(t), self.walk.h, self.state, self.block.columns
        step, before, read = self.walk.terms(t), self.before(n), self.read
        part, other = self.parts
        if step.erase is None:
            self.block.gather(part, lambda j, v: state[i, j, v] * self.walk.update[j])
            self.block.gather(other, lambda j, v: before[i, j, v] * read[j])
            with self.loop.over(self.block.vector, "x", T.vectorized) as x:
                part[x] = part[x] - step.passed(i, other[x])
            self.put("k", (token, h, i), self.block.halved(part))
            with columns() as (j, v):
                state[i, j, v] = step.passed(i, state[i, j, v] - step.into(i) * read[j])
            self.to_gate((token, h, i), before, i)
            return
        self.add("a", (token, h, i), lambda j, v: before[i, j, v] * read[j])
        with columns() as (j, v):
            state[i, j, v] = step.passed(i, state[i, j, v])
        self.to_gate((token, h, i), before, i)
        with columns() as (j, v):
            state[i, j, v] = state[i, j, v] + step.erase[0](i) * read[j]

    def to_gate(self, at: Any, before: Matrix, i: Expr) -> None:
        """Add what a row asks of the logarithm of its gate, once the adjoint has passed it."""
        state = self.state
        if self.arrays.gate == "key":
            self.add("w", at, lambda j, v: state[i, j, v] * before[i, j, v])
        elif self.arrays.gate == "head":
            with self.block.columns() as (j, v):
                self.gated[j] = self.gated[j] + state[i, j, v] * before[i, j, v]

    def add(self, name: str, at: Any, term: Any) -> None:
        """Write the sum of a term over the columns of the block to a gradient."""
        self.put(name, at, self.block.sum(self.parts[0], term))

    def put(self, name: str, at: Any, total: Expr) -> None:
        """Write the sum over a block to a gradient, or add it to that of the blocks before."""
        of_value = name in ("w", "beta")
        cells: Cells = self.g[name]
        token, h, *i = at
        group = 1 if of_value else self.arrays.group
        where = (token, key_head(h, group), i)
        if self.block.count * group > 1:
            zero = tirx.const(0, self.walk.dtype)
            total = total + tirx.Select(self.is_later[of_value], cells[where], zero)
        cells[where] = total
