"""GPU executor of the delta rule's chunks on tensor cores: the large products, in three of tf32.

Those are: every pair of vectors (the triangles), what the steps read of the state at the head of a
chunk, and what they add to it. The state is in registers (``tensor_tiles``). Forward substitution
and what an output reads of its own chunk stay multiply-adds: one thread for a column, and rows that
end where later steps begin, since zero times an infinity is none.

Gates. Where all rows have one, its products between any two steps are a table, with which results
are multiplied. Else the triangles are made in levels: of two neighbouring runs of 1, 2, 4 .. steps
the vectors of the later one have the gates since its first step, those of the earlier one the gates
until its last, so that their products have all gates between, and none is divided by. After each
level the vectors get the gates of the other run, and after the last one have those since the head
of the chunk, and until its end. A vector that is read after the gate of its step has that from the
beginning, but where it meets the vectors of its own step.

Barriers of a chunk: 4, or 5 with a table; where rows have their own gates, 4 and two for each
level, and two more where a vector is read after the gate of its step.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

from tvm import tirx
from tvm.ir import Var
from tvm.tirx import ForKind

from tvm_scan import tir
from tvm_scan.algebra.literal import one, zero
from tvm_scan.delta_rule import DeltaRule
from tvm_scan.schedules.common.ir import int_const, loop, when
from tvm_scan.schedules.delta.chunk import scale
from tvm_scan.schedules.delta.gpu_block import COLUMNS
from tvm_scan.schedules.delta.tensor_products import TensorProducts
from tvm_scan.schedules.gpu.thread.barriers import all_wait, hidden


class TensorBlock(TensorProducts):
    """A block that multiplies on tensor cores.

    Parameters
    ----------
    rule : DeltaRule
        What to build, in float32.
    chunk, threads : int
        Steps of a chunk: 8 or 16, and threads: 2, 4 or 8 warps.
    """

    def __init__(self, rule: DeltaRule, chunk: int, threads: int) -> None:
        super().__init__(rule, chunk, threads)
        gates = [self.gates] if self.gated else []
        gates += [self.table] if self.gated and self.uniform else []
        self.buffers = [self.state, *gates, *self.into, *self.source, *self.weights]
        self.buffers += [*chain(*self.lower, *self.readers), *self.update, *self.rate]
        self.buffers += [*self.known, *self.seen_heads, *self.outs, *self.solved.values()]
        self.buffers += [] if self.fade is None else [self.fade]
        self.buffers += [self.sums, self.parts, self.pair, self.pairs, self.sum, self.factor]

    # ---- parts --------------------------------------------------------------------------------

    def body(self) -> Any:
        """Return what a thread does: begin, the chunks, and the end."""

        def begin(row: Any, column: Any, at: Any) -> Any:
            inside = tirx.And(row < self.rows, self.exists(column))
            first = self.memory.first(tirx.Min(row, int_const(self.rows - 1, self.index)), column)
            value = tirx.op.if_then_else(inside, first, zero(self.dtype))
            return tirx.BufferStore(self.state, value, [at])

        def end(row: Any, column: Any, at: Any) -> Any:
            inside = tirx.And(row < self.rows, self.exists(column))
            return when(inside, self.memory.last(row, column, self._load(self.state, at)))

        return tir.seq(
            [
                self._each_cell(begin),
                self.each_chunk(lambda head: hidden(self._chunk(head))),
                self._each_cell(end) if self.is_stored else None,
            ]
        )

    def _chunk(self, head: Any) -> Any:
        c, w = self.steps, COLUMNS
        return tir.seq(
            [
                self.share(c * self.tiles.depth, lambda n, _: self._vectors(n, head)),
                self.share(c, lambda n, _: self._gate(n, head)) if self._has_table else None,
                self.share(c * w, lambda n, _: self._amounts(n, head)),
                all_wait(),
                *self._with_gates(),
                self._project_tiles(),
                all_wait(),
                when(self.thread < w, self._solve_column()),
                all_wait(),
                self.share(c * w, lambda n, _: self._emit_cell(n, head)),
                self._advance_tiles(),
                all_wait(),
            ]
        )

    @property
    def vectors(self) -> list[tuple[Var, Any, Any]]:
        """Arrays over steps and rows; a gate that all rows share is none."""
        gates, *others = super().vectors
        return [gates, *others] if self.gated and not self.uniform else others

    def _vectors(self, number: Any, head: Any) -> Any:
        step, i = number // self.tiles.depth, number % self.tiles.depth
        inside = self.present(tirx.And(head + step < self.length, i < self.rows))
        row = tirx.Min(i, int_const(self.rows - 1, self.index))
        values = [(b, self.memory.at(e, t=head + step, row=row), o) for b, e, o in self.vectors]
        return self._fill(values, step * self.stride + i, inside)

    def _gate(self, number: Any, head: Any) -> Any:
        gate = self.memory.at(self.rule.gate, t=head + number)
        inside = self.present(head + number < self.length)
        return self._fill([(self.gates, gate, one(self.dtype))], number, inside)

    def _with_gates(self) -> list[Any]:
        """Make the triangles, and vectors or a table that have the gates."""
        if self.gated and not self.uniform:
            return self._levels()
        table = [self.share(self.steps + 1, self._between), all_wait()] if self.gated else []
        return [*table, self._triangle_tiles(None)]

    def _between(self, first: Any, _: Any) -> Any:
        """A row of the table: products of the gates from a step on, before every later one."""
        c = self.steps

        def step(t: Any) -> Any:
            factor = self._load(self.factor, 0)
            store = tirx.BufferStore(self.table, factor, [first * (c + 1) + t])
            gate = self._load(self.gates, tirx.Min(t, int_const(c - 1, self.index)))
            return when(
                t >= first, tir.seq([store, tirx.BufferStore(self.factor, factor * gate, [0])])
            )

        begin = tirx.BufferStore(self.factor, one(self.dtype), [0])
        return tir.seq([begin, loop("t", c + 1, step, ForKind.UNROLLED, self.index)])

    def _levels(self) -> list[Any]:
        stmts: list[Any] = []
        after = [
            v for v, seen in zip([*self.source, *self.weights], self.seen, strict=True) if seen
        ]
        if after:

            def own_gate(number: Any, _: Any) -> Any:
                at = number // self.tiles.depth * self.stride + number % self.tiles.depth
                return tir.seq(scale(vectors, at, self.gates, at) for vectors in after)

            stmts = [self._triangle_tiles(0), all_wait()]
            stmts += [self.share(self.steps * self.tiles.depth, own_gate), all_wait()]
        run = 1
        while run < self.steps:
            stmts += [self._triangle_tiles(run), all_wait()]
            stmts += [self.share(self.tiles.depth, self._join(run)), all_wait()]
            run *= 2
        return stmts

    def _join(self, run: int) -> Callable[[Any, Any], Any]:
        """Vectors and gates of runs of steps become those of runs of twice as many."""

        def of_row(i: Any, _: Any) -> Any:
            stmts = []
            for t in range(self.steps):
                number = t // run
                later = number % 2 == 1
                gate = (number - 1 if later else number + 1) * run * self.stride + i
                vectors = [*self.source, *self.weights] if later else self.into
                stmts += [scale(v, t * self.stride + i, self.gates, gate) for v in vectors]
            for first in range(0, self.steps, 2 * run):
                at = first * self.stride + i
                stmts.append(scale(self.gates, at, self.gates, at + run * self.stride))
            return tir.seq(stmts)

        return of_row

    # ---- multiply-adds ------------------------------------------------------------------------

    def _from_groups(self, heads: Var, at: Any) -> Any:
        cells = self.steps * COLUMNS
        value = self._load(heads, at)
        for group in range(1, self.tiles.groups):
            value = value + self._load(heads, group * cells + at)
        return value

    def _solve_column(self) -> Any:
        """Forward substitution of a column, by one thread in its registers."""
        v, stmts = self.thread, []

        def amount(term: int, step: int) -> Any:
            if term in self.solved:
                return self._load(self.solved[term], step)
            return self._load(self.update[term], step * COLUMNS + v)

        def term(number: int, n: int, t: int, j: int) -> Any:
            entry = self._load(self.lower[number][n], t * self.steps + j)
            return self._add_to_sum(entry * amount(n, j))

        for t in range(self.steps):
            for number, n in enumerate(self.reading):
                at, seen = t * COLUMNS + v, self.seen[number]
                begin = self._from_groups(self.known[number], at)
                stmts.append(tirx.BufferStore(self.sum, begin, [0]))
                for j in range(t):
                    stmts += [] if self.fade is None else [self._fade_sum(j, v)]
                    stmts += [term(number, m, t, j) for m, _ in enumerate(self.into)]
                stmts += [self._fade_sum(t, v)] if self.fade is not None and seen else []
                stmts += [term(number, m, t, t) for m in range(seen)]
                value = self._load(self.rate[number], at) * self._load(self.sum, 0)
                value = self._load(self.update[n], at) + value
                stmts.append(tirx.BufferStore(self.solved[n], value, [t]))
                stmts.append(tirx.BufferStore(self.update[n], self._load(self.solved[n], t), [at]))
        return tir.seq(stmts)

    def _emit_cell(self, number: Any, head: Any) -> Any:
        """Outputs of a step and column."""
        t, v = number // COLUMNS, number % COLUMNS
        stmts = []
        for n, out in enumerate(self.outs):
            seen = self.seen[len(self.reading) + n]

            def step(j: Any, n: int = n, seen: int = seen) -> Any:
                faded = self.fade is not None
                code = [when(j < t + min(seen, 1), self._fade_sum(j, v))] if faded else []
                pairs = zip(self.readers[n], self.update, strict=True)
                for m, (triangle, update) in enumerate(pairs):
                    entry = self._load(triangle, t * self.steps + j)
                    added = self._add_to_sum(entry * self._load(update, j * COLUMNS + v))
                    code.append(when(j < t + int(m < seen), added))
                return tir.seq(code)

            begin = self._from_groups(self.seen_heads[n], number)
            stmts.append(tirx.BufferStore(self.sum, begin, [0]))
            stmts.append(loop("j", self.steps, step, ForKind.UNROLLED, self.index))
            stmts.append(tirx.BufferStore(out, self._load(self.sum, 0), [0]))
        inside = tirx.And(head + t < self.length, self.exists(v))
        emit = self.memory.emit(head + t, v, [self._load(out, 0) for out in self.outs])
        return tir.seq([*stmts, when(inside, emit)])
