"""The gradient of the gates of matrix states; see `tvm_scan.torch.ops.outer_gates`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tvm import tirx
from tvm.ir import Expr
from tvm.script.ir_builder import tirx as T

from tvm_scan.loops.writer import Cells, Loop, unless

#: Steps between states that are kept, and lanes that are scanned together.
STEPS = LANES = 16


def outer_gates(
    batch: Expr, heads: Expr, lanes: Expr, length: Expr, **options: Any
) -> tirx.PrimFunc:
    """Build ``outer_gates(w, a, x, c, dy, [reset,] first, last, starts, gradient)``.

    Arrays and options are those of `outer_products`, with the gradients `dy` of its output and
    `last` of its last state. A pass forward leaves the states that chunks begin with in `starts`
    (chunks, batch, heads, lanes, states); then each chunk is passed forward once more, which leaves
    the states before the gates, and back with the adjoint of the state. `gradient` (blocks, batch,
    length, heads, states), or without the last axis for a gate of the head, has the gradients by
    blocks of lanes.
    """
    with Loop() as loop:
        gates = _Gates(loop, (batch, heads, lanes, length), **options)
        with loop.parallel(batch * heads * gates.blocks, "gates") as r:
            gates.write(r)
    return loop.func


class _Gates:
    """The parameters, and what is done for a block of lanes of a head."""

    def __init__(
        self,
        loop: Loop,
        extents: tuple[Expr, Expr, Expr, Expr],
        *,
        states: int,
        dtype: str,
        gate: str,
        emit: str,
        reverse: bool,
        has_reset: bool,
    ) -> None:
        self.emit, self.reverse = emit, reverse
        batch, self.heads, self.lanes, self.length = extents
        self.loop, self.states, self.dtype, self.by_head = loop, states, dtype, gate == "head"
        self.blocks = (self.lanes + LANES - 1) // LANES
        self.chunks = (self.length + STEPS - 1) // STEPS
        single, matrices = (batch, self.length, self.heads), (batch, self.heads, self.lanes, states)
        gates = single if self.by_head else (*single, states)

        def array(name: str, *shape: Any) -> Cells:
            return loop.array(name, shape, dtype)

        self.w = array("w", *gates)
        self.a, self.x = array("a", *single, states), array("x", *single, self.lanes)
        self.c, self.dy = array("c", *single, states), array("dy", *single, self.lanes)
        self.reset = loop.array("reset", single[:2], "int8") if has_reset else None
        self.first, self.last = array("first", *matrices), array("last", *matrices)
        self.starts = array("starts", self.chunks, *matrices)
        self.gradient = array("gradient", self.blocks, *gates)

    def write(self, r: Expr) -> None:
        """Write the three passes over one block of lanes."""
        loop, row = self.loop, LANES * self.states
        self.b, self.h = r // (self.heads * self.blocks), r // self.blocks % self.heads
        self.block = r % self.blocks
        self.state = loop.cell("state", self.dtype, row)
        self.history = loop.cell("history", self.dtype, STEPS * row)
        self.total = loop.cell("total", self.dtype, self.states)
        with self.cells() as (i, n, cell):
            self.state[cell] = self.first[self.matrix(i, n)]
        with loop.over(self.chunks, "k") as k:
            with self.cells() as (i, n, cell):
                self.starts[k, self.matrix(i, n)] = self.state[cell]
            self.forward(k)
        with self.cells() as (i, n, cell):
            self.state[cell] = self.last[self.matrix(i, n)]
        with loop.over(self.chunks, "j") as j:
            k = self.chunks - 1 - j
            with self.cells() as (i, n, cell):
                self.history[cell] = self.starts[k, self.matrix(i, n)]
            self.again(k)
            self.back(k)

    def forward(self, k: Expr) -> None:
        """Scan a chunk."""
        state = self.state
        with self.loop.over(self.steps(k), "s") as s:
            here = self.at(k, s)
            with self.vectors() as (i, n, cell):
                added = self.product(self.x, self.a, here, i, n)
                if self.emit == "late":
                    state[cell] = self.gated(here, n, state[cell] + added)
                else:
                    state[cell] = self.gated(here, n, state[cell]) + added

    def again(self, k: Expr) -> None:
        """Scan a chunk and keep the states before the gates."""
        history, row = self.history, LANES * self.states
        with self.loop.over(self.steps(k), "s") as s:
            here = self.at(k, s)
            with self.vectors() as (i, n, _):
                old = s * row + i * self.states + n
                added = self.product(self.x, self.a, here, i, n)
                if self.emit == "late":
                    history[old] = history[old] + added
                with T.If(s + 1 < self.steps(k)), T.Then():
                    after = self.gated(here, n, history[old])
                    history[old + row] = after if self.emit == "late" else after + added

    def back(self, k: Expr) -> None:
        """Scan a chunk back with the adjoint of the state, and leave the gradients."""
        loop, state, total, row = self.loop, self.state, self.total, LANES * self.states
        with loop.over(self.steps(k), "z") as z:
            s = self.steps(k) - 1 - z
            here = self.at(k, s)
            with loop.over(self.states) as n:
                total[n] = 0
            with self.vectors() as (i, n, cell):
                asked = self.product(self.dy, self.c, here, i, n)
                before = state[cell] + asked if self.emit == "inclusive" else state[cell]
                state[cell] = self.gated(here, n, before)
                passed = state[cell] * self.history[s * row + cell]
                total[n] = total[n] + unless(self.reset, here[:2], passed)
                if self.emit != "inclusive":
                    state[cell] = state[cell] + asked
            if self.by_head:
                with loop.over(self.states - 1) as n:
                    total[0] = total[0] + total[n + 1]
                self.gradient[self.block, here] = total[0]
            else:
                with loop.over(self.states) as n:
                    self.gradient[self.block, here, n] = total[n]

    def steps(self, k: Expr) -> Expr:
        """Return the number of steps of a chunk."""
        return tirx.min(STEPS, self.length - k * STEPS)

    def at(self, k: Expr, s: Expr) -> tuple[Expr, ...]:
        """Return the indices of a step of a chunk."""
        step = k * STEPS + s
        return (self.b, self.length - 1 - step if self.reverse else step, self.h)

    def matrix(self, i: Expr, n: Expr) -> tuple[Expr, ...]:
        """Return the indices of a state."""
        return (self.b, self.h, self.block * LANES + i, n)

    def product(self, rows: Cells, columns: Cells, here: Any, i: Expr, n: Expr) -> Expr:
        """Return one element of an outer product."""
        return rows[here, self.block * LANES + i] * columns[here, n]

    def gated(self, here: Any, n: Expr, value: Expr) -> Expr:
        """Return what passes the gate of a step."""
        weight = self.w[here if self.by_head else (*here, n)]
        return unless(self.reset, here[:2], weight * value)

    @contextmanager
    def cells(self) -> Iterator[tuple[Expr, Expr, Expr]]:
        """Loop over the lanes and states of the block; yields them, and their cell."""
        width = tirx.min(LANES, self.lanes - self.block * LANES)
        with self.loop.over(width, "i") as i, self.loop.over(self.states) as n:
            yield i, n, i * self.states + n

    @contextmanager
    def vectors(self) -> Iterator[tuple[Expr, Expr, Expr]]:
        """Loop as `cells` does, over states in vectors."""
        vector = next(n for n in (16, 8, 4, 2, 1) if self.states % n == 0)
        width = tirx.min(LANES, self.lanes - self.block * LANES)
        with (
            self.loop.over(width, "i") as i,
            self.loop.vectors(self.states, vector, "mv") as (_, n),
        ):
            yield i, n, i * self.states + n
