"""The way back of delta rules: the gradients of everything that `delta_walk` reads.

With the adjoint ``G`` of the state after a step, the gradient of the output at it and the state
before it, each gradient of the step is a product of vectors with one of the two states, and
``G`` goes on to the step before. States are not kept: a pass forward leaves those that chunks of
`STEPS` steps begin with, in memory of the task alone; then, last chunk first, a chunk is passed
forward once more, which leaves its states in the second cache, and back.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Expr
from tvm.script.ir_builder import tirx as T

from tvm_scan.loops.delta import Matrix, write_step
from tvm_scan.loops.delta_walk import Walk
from tvm_scan.loops.writer import Cells, Loop

__all__ = ["STEPS", "delta_adjoint"]

#: Steps of a chunk.
STEPS = 16


def delta_adjoint(
    batch: Expr, heads: Expr, length: Expr, *, packed: bool = False, **options: Any
) -> tirx.PrimFunc:
    """Build ``delta_adjoint(q, .., first, [offsets,] g_y, g_last, g_q, g_k, g_v, .., g_first)``.

    The first parameters are those of `Walk`, with the gradients of its results; then come the
    gradients of what it reads, in its order. All are of the heads of `v`, those of `q`, `k`,
    `a` and `b` too, and that of `w` is that of its logarithm.
    """
    with Loop() as loop:
        adjoint = _Adjoint(loop, Walk(loop, batch, heads, length, packed, **options))
        with loop.parallel(batch * adjoint.walk.heads, "adjoint") as r:
            adjoint.write(r)
    return loop.func


class _Adjoint:
    """The parameters, and what a task does: one head of a sequence, block after block."""

    def __init__(self, loop: Loop, walk: Walk) -> None:
        self.loop, self.walk, self.block, self.arrays = loop, walk, walk.block, walk.arrays
        self.keys, arrays = walk.keys, walk.arrays
        self.is_delta = arrays.rule == "delta"
        self.g_y, self.g_last = walk.array("g_y", walk.values), walk.states("g_last")
        shapes: dict[str, tuple[Any, ...]] = {"q": (walk.keys,), "k": (walk.keys,)}
        shapes["v"] = (walk.values,)
        if arrays.gate != "none":
            shapes["w"] = (walk.keys,) if arrays.gate == "key" else ()
        shapes |= {"beta": ()} if self.is_delta else {"a": (walk.keys,), "b": (walk.keys,)}
        self.g = {name: walk.array(f"g_{name}", *shape) for name, shape in shapes.items()}
        self.g_first = walk.states("g_first")

    def write(self, r: Expr) -> None:
        """Write the passes over all blocks of one head of a sequence."""
        loop, walk = self.loop, self.walk
        chunks = (walk.length + (STEPS - 1)) // STEPS
        cells = self.keys * self.block.width
        self.known, self.update = walk.scratch("known"), walk.scratch("update")
        self.asked, self.drive = walk.scratch("asked"), walk.scratch("drive")
        self.to_drive, self.to_known = walk.scratch("to_drive"), walk.scratch("to_known")
        self.gated, self.read = walk.scratch("gated"), walk.scratch("read")
        self.parts = [loop.cell(name, walk.dtype, self.block.vector) for name in ("part", "other")]
        self.state = walk.part(walk.scratch("state", self.keys))
        self.history = walk.scratch("history", (STEPS + 1) * self.keys)
        self.knowns = walk.scratch("knowns", STEPS)
        starts = walk.scratch("starts", chunks * self.keys)
        with loop.over(self.block.count, "block") as self.number:
            walk.at(r // walk.heads, r % walk.heads, self.number)
            steps = walk.steps
            count = (steps + (STEPS - 1)) // STEPS
            walk.copy(self.state, walk.first)
            with loop.over(count, "c") as c:
                walk.copy(walk.part(starts, c * cells), self.state)
                # From the last start on, the second pass alone goes.
                ahead = tirx.Select(c + 1 < count, tirx.IntImm("int64", STEPS), 0 * steps)
                with loop.over(ahead, "n") as n:
                    self.forward(c * STEPS + n, self.state, self.state)
            walk.copy(self.state, self.g_last)
            with loop.over(count, "z") as z:
                self.chunk(count - 1 - z, walk.part(starts, (count - 1 - z) * cells))
            walk.copy(self.g_first, self.state)

    def chunk(self, c: Expr, start: Matrix) -> None:
        """Pass a chunk forward once more, and back."""
        loop, walk = self.loop, self.walk
        here = tirx.min(STEPS, walk.steps - c * STEPS)
        walk.copy(self.before(0), start)
        with loop.over(here, "n") as n:
            token, after = walk.token(c * STEPS + n), self.before(n + 1)
            with self.block.columns() as (j, v):
                self.asked[j] = self.g_y[token, walk.h, v]

            def read(i: Any) -> None:
                self.add("q", (token, walk.h, i), lambda j, v: after[i, j, v] * self.asked[j])

            self.forward(c * STEPS + n, self.before(n), after, read)
            with self.block.columns() as (j, _):
                self.knowns[n * self.block.width + j] = self.known[j]
        self.begin(c * STEPS + (here - 1), here - 1)
        with loop.over(self.keys, "i") as i:
            self.enter(c * STEPS + (here - 1), i)
        with loop.over(here, "m") as m:
            n = here - 1 - m
            t = c * STEPS + n
            self.end(t, n)
            with T.If(n > 0):
                with T.Then():
                    # A row goes on to the step before while it is in registers.
                    self.begin(t - 1, n - 1)
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

    def forward(self, t: Expr, before: Matrix, after: Matrix, row: Any = None) -> None:
        """Pass a step forward."""
        step = self.arrays.step(self.walk.token(t), self.walk.h)
        states, columns = (before, after), self.block.columns
        write_step(self.loop, self.keys, columns, step, states, self.known, self.update, row)

    def begin(self, t: Expr, n: Expr) -> None:
        """Write what the rows of a step need before they are entered."""
        token, h = self.walk.token(t), self.walk.h
        with self.block.columns() as (j, v):
            self.asked[j] = self.g_y[token, h, v]
            self.to_drive[j] = 0
            if not self.is_delta:
                self.to_known[j] = 0
                self.known[j] = self.knowns[n * self.block.width + j]
                self.drive[j] = self.arrays.v[token, h, v]

    def enter(self, t: Expr, i: Expr) -> None:
        """Add what the output of a step asks of a row of the state, and gather by rows."""
        token, h, state, columns = self.walk.token(t), self.walk.h, self.state, self.block.columns
        step, query = self.arrays.step(token, h), self.arrays.row("q", token, h)
        with columns() as (j, v):
            state[i, j, v] = state[i, j, v] + query(i) * self.asked[j]
        with columns() as (j, v):
            self.to_drive[j] = self.to_drive[j] + step.into(i) * state[i, j, v]
            if step.erase is not None:
                self.to_known[j] = self.to_known[j] + step.erase[1](i) * state[i, j, v]
        if step.erase is not None:
            self.add("k", (token, h, i), lambda j, v: state[i, j, v] * self.drive[j])
            self.add("b", (token, h, i), lambda j, v: state[i, j, v] * self.known[j])

    def end(self, t: Expr, n: Expr) -> None:
        """Write what the rows of a step need before they are left, once all are entered."""
        token, h, columns = self.walk.token(t), self.walk.h, self.block.columns
        step = self.arrays.step(token, h)
        rate = step.rate
        if rate is not None:
            # The update is `rate` times an error, and what was known enters it with a minus.
            with columns() as (j, v):
                self.update[j] = step.drive(v) - self.knowns[n * self.block.width + j]
            self.add("beta", (token, h), lambda j, _: self.to_drive[j] * self.update[j])
        with columns() as (j, v):
            if rate is not None:
                self.update[j] = rate * self.update[j]
                self.to_drive[j] = rate * self.to_drive[j]
            self.g["v"][token, h, v] = self.to_drive[j]
            self.read[j] = self.to_drive[j] if rate is not None else self.to_known[j]
            if self.arrays.gate == "head":
                self.gated[j] = 0

    def leave(self, t: Expr, n: Expr, i: Expr) -> None:
        """Pass a row of the adjoint back through the gate and what read the state."""
        token, h, state, columns = self.walk.token(t), self.walk.h, self.state, self.block.columns
        step, before, read = self.arrays.step(token, h), self.before(n), self.read
        part, other = self.parts
        if step.erase is None:
            self.block.gather(part, lambda j, v: state[i, j, v] * self.update[j])
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
        cells: Cells = self.g[name]
        if self.block.count > 1:
            zero = tirx.const(0, self.walk.dtype)
            total = total + tirx.Select(self.number > 0, cells[at], zero)
        cells[at] = total
