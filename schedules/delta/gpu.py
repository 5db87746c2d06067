"""GPU executor of the delta rule's chunks: a block takes them for some columns of a matrix.

Everything of a chunk is in shared memory: the vectors of its steps, the state of the block's
columns, and the triangles. A thread makes entries of the triangles from whole vectors; a column's
system is solved by one thread; products are one cell of the result at a time, the columns of a warp
side by side, so that reads of the state meet no bank conflicts.

Barriers: five a chunk, and one for each vector of a step that reads the state; TVM is not to see
between them, and would put two around each cell. Read ``chunk`` first; ``gpu_plan`` decides.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.algebra.literal import one, zero
from tvm_scan.delta_rule import DeltaRule
from tvm_scan.schedules.common.ir import cell_count, for_one_block, int_const, local, loop, when
from tvm_scan.schedules.delta.chunk import Chunk, scale
from tvm_scan.schedules.delta.gpu_block import COLUMNS, BlockOfColumns
from tvm_scan.schedules.gpu.thread.barriers import all_wait, hidden


class DeltaBlock(BlockOfColumns, Chunk):
    """A block for every matrix and 32 of its columns, which multiplies by multiply-adds.

    Parameters
    ----------
    rule : DeltaRule
        What to build.
    chunk, threads : int
        Steps of a chunk, and threads: whole warps.
    stride : int, optional
        As of ``Chunk``.
    """

    def __init__(
        self, rule: DeltaRule, chunk: int, threads: int, stride: int | None = None
    ) -> None:
        super().__init__(rule, chunk, COLUMNS, "shared", stride)
        self.threads = threads
        self.thread = tirx.Var("v_thread", self.index)
        self.assign_task(-(-self.columns // COLUMNS), COLUMNS)
        # Rows that fill the threads: none of them asks whether its cell is there.
        self.padded = -(-self.rows * COLUMNS // self.threads) * self.threads
        cells = chunk * COLUMNS
        self.state = local("matrix", [self.padded], self.dtype, "shared")
        self.known = [local(f"known{n}", [cells], self.dtype, "shared") for n in self.reading]
        self.drive = [self.update[n] for n in self.reading]
        self.outs = [
            local(f"out{n}", [-(-cells // self.threads)], self.dtype)
            for n, _ in enumerate(rule.reads)
        ]
        self.sum, self.factor = local("total", [1], self.dtype), local("factor", [1], self.dtype)
        self.gone = local("gone", [1], self.dtype)
        self.buffers += [self.state, self.gates, *self.into, *self.source, self.passed]
        self.buffers += [*self.weights, *chain(*self.lower, *self.readers)]
        self.buffers += [*self.update, *self.rate, *self.known]
        self.buffers += [] if self.fade is None else [self.fade]
        self.buffers += [*self.outs, self.sum, self.factor, self.gone]

    def nest(self) -> Any:
        """Return the loops over blocks and threads."""
        return self.grid("delta_block", self.body(), self.rule.outputs)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        shared = [b for b in self.buffers if str(b.scope()) == "shared"]
        return sum(map(cell_count, shared)) * tir.byte_size(self.dtype)

    # ---- parts --------------------------------------------------------------------------------

    def _load(self, buffer: Var, at: Any) -> Any:
        return tirx.BufferLoad(buffer, [at])

    def _add_to_sum(self, value: Any) -> Any:
        return tirx.BufferStore(self.sum, self._load(self.sum, 0) + value, [0])

    def _fade_sum(self, step: Any, column: Any) -> Any:
        assert self.fade is not None, "only gates of the columns are passed in order"
        gate = self._load(self.fade, step * COLUMNS + column)
        return tirx.BufferStore(self.sum, gate * self._load(self.sum, 0), [0])

    def _keep(self, buffer: Var, at: Any) -> Any:
        return tirx.BufferStore(buffer, self._load(self.sum, 0), [at])

    def _sum_updates(
        self,
        begin: Any,
        factors: list[Var],
        at: Callable[[Any], Any],
        column: Any,
        steps: Any,
        seen: int = 0,
    ) -> list[Any]:
        """Statements that leave in ``sum`` what the first steps write, each times a factor.

        Parameters
        ----------
        begin : Expr
            What is added; with the terms before a step it goes through the gate of the column.
        factors : list of Var
            For each term an array.
        at : callable
            The factor's index in it, of a step.
        column : Expr
            In the block.
        steps : Expr or int
            How many; the others are not read, since zero times an infinity is none.
        seen : int
            Of so many terms, the first ones, the next step is added too, through its gate.
        """

        def add(factor: Var, update: Var, step: Any) -> Any:
            value = self._load(factor, at(step)) * self._load(update, step * COLUMNS + column)
            return self._add_to_sum(value)

        def all_terms(step: Any) -> Any:
            return tir.seq([self._fade_sum(step, column), *(add(*pair, step) for pair in pairs)])

        pairs = list(zip(factors, self.update, strict=True))
        stmts = [tirx.BufferStore(self.sum, begin, [0])]
        if self.fade is not None:
            stmts.append(loop("j", steps, all_terms, dtype=self.index))
            stmts += [self._fade_sum(steps, column)] if seen else []
            return [*stmts, *(add(*pair, steps) for pair in pairs[:seen])]
        for number, pair in enumerate(pairs):
            count = steps + 1 if number < seen else steps
            stmts.append(loop("j", count, partial(add, *pair), dtype=self.index))
        return stmts

    def _sum_read(self, begin: Any, triangles: list[Var], t: Any, v: Any, seen: int) -> list[Any]:
        """Statements that add to what step t reads of the head what it reads of the chunk."""
        return self._sum_updates(begin, triangles, lambda j: t * self.steps + j, v, t, seen)

    def body(self) -> Any:
        """Return what a thread does: begin, the chunks, and the end."""

        def begin(number: Any, _: Any) -> Any:
            i, v = number // COLUMNS, number % COLUMNS
            value = tirx.op.if_then_else(self.exists(v), self.memory.first(i, v), zero(self.dtype))
            return tirx.BufferStore(self.state, value, [number])

        def end(number: Any, _: Any) -> Any:
            i, v = number // COLUMNS, number % COLUMNS
            return when(self.exists(v), self.memory.last(i, v, self._load(self.state, number)))

        cells = self.rows * COLUMNS
        # A thread begins and ends with its own cells of the state.
        stmts = [
            self.share(cells, begin),
            self.each_chunk(self._chunk),
            self.share(cells, end) if self.is_stored else None,
        ]
        return for_one_block(hidden(tir.seq(stmts)))

    def _chunk(self, head: Any) -> Any:
        c, k, w = self.steps, self.rows, COLUMNS
        return tir.seq(
            [
                self.share(c * k, lambda n, _: self._vectors(n, head)),
                self.share(c * w, lambda n, _: self._amounts(n, head)),
                all_wait(),
                self.share(c * c, self._triangles),
                all_wait(),
                self._pass_on(),
                all_wait(),
                self.share(c * w, self._project),
                all_wait(),
                loop("t", c, self._solve, dtype=self.index),  # which ends with a barrier
                self.share(c * w, lambda n, slot: self._emit(n, slot, head)),
                self.share(self.padded, self._advance),
                all_wait(),
            ]
        )

    def _vectors(self, number: Any, head: Any) -> Any:
        time, i = head + number // self.rows, number % self.rows
        inside = self.present(time < self.length)
        values = [(b, self.memory.at(e, t=time, row=i), other) for b, e, other in self.vectors]
        return self._fill(values, number, inside)

    def _amounts(self, number: Any, head: Any) -> Any:
        time, v = head + number // COLUMNS, number % COLUMNS
        inside = tirx.And(time < self.length, self.exists(v))
        values = [(b, self.memory.at(e, t=time, column=v), other) for b, e, other in self.amounts]
        return self._fill(values, number, inside)

    def _fill(self, values: list[tuple[Var, Any, Any]], number: Any, inside: Any) -> Any:
        return tir.seq(
            tirx.BufferStore(b, tirx.op.if_then_else(inside, value, other), [number])
            for b, value, other in values
        )

    def _triangles(self, number: Any, _: Any) -> Any:
        """An entry of every triangle: vectors of step t and s, with the gates between them."""
        t, s, k = number // self.steps, number % self.steps, self.rows

        def entry(into: Var, vectors: Var, triangle: Var, seen: int) -> Any:
            last = t + 1 if seen else t

            def term(i: Any) -> Any:
                return self._load(vectors, t * k + i) * self._load(self.factor, 0)

            def dot(i: Any) -> Any:
                def gate(r: Any) -> Any:
                    value = self._load(self.factor, 0) * self._load(self.gates, (s + 1 + r) * k + i)
                    return tirx.BufferStore(self.factor, value, [0])

                return tir.seq(
                    [
                        tirx.BufferStore(self.factor, self._load(into, s * k + i), [0]),
                        loop("r", last - s - 1, gate, dtype=self.index),
                        self._add_to_sum(term(i)),
                    ]
                )

            return tir.seq(
                [
                    tirx.BufferStore(self.sum, zero(self.dtype), [0]),
                    when(s < last, loop("i", k, dot, dtype=self.index)),
                    self._keep(triangle, number),
                ]
            )

        return tir.seq(
            entry(into, *dot) for n, into in enumerate(self.into) for dot in self.triangles(n)
        )

    def _pass_on(self) -> Any:
        """Gates since the head of the chunk into the vectors, and those until its end."""
        k, c = self.rows, self.steps

        def forward(at: Any) -> Any:
            return self.pass_on(at, self.gone, 0)

        def backward(at: Any) -> Any:
            vectors = [scale(into, at, self.gone, 0) for into in self.into]
            return tir.seq([*vectors, scale(self.gone, 0, self.gates, at)])

        def of_row(i: Any, _: Any) -> Any:
            restart = tirx.BufferStore(self.gone, one(self.dtype), [0])
            whole = tirx.BufferStore(self.passed, self._load(self.gone, 0), [i])
            return tir.seq(
                [
                    restart,
                    loop("t", c, lambda t: forward(t * k + i), dtype=self.index),
                    whole,
                    restart,
                    loop("t", c, lambda t: backward((c - 1 - t) * k + i), dtype=self.index),
                ]
            )

        return self.share(k, of_row)

    def _project(self, number: Any, slot: Any) -> Any:
        """Compute what the steps read of the state at the head of the chunk."""
        t, v = number // COLUMNS, number % COLUMNS

        def read(vectors: Var, to: Var, at: Any) -> Any:
            def add(i: Any) -> Any:
                cell = self._load(self.state, i * COLUMNS + v)
                return self._add_to_sum(self._load(vectors, t * self.stride + i) * cell)

            begin = tirx.BufferStore(self.sum, zero(self.dtype), [0])
            total = loop("j", self.rows, add, dtype=self.index)
            return tir.seq([begin, total, self._keep(to, at)])

        known = [read(*pair, number) for pair in zip(self.source, self.known, strict=True)]
        return tir.seq(
            [*known, *(read(*pair, slot) for pair in zip(self.weights, self.outs, strict=True))]
        )

    def _solve(self, t: Any) -> Any:
        """Forward substitution: step ``t``, a thread for each column."""
        v = self.thread % COLUMNS
        at = t * COLUMNS + v

        def row(number: int) -> list[Any]:
            known = self._load(self.known[number], at)
            system = self._sum_read(known, self.lower[number], t, v, self.seen[number])
            value = self._load(self.rate[number], at) * self._load(self.sum, 0)
            value = self._load(self.drive[number], at) + value
            # Every warp sums what earlier steps wrote, one of them stores what later ones read.
            store = tirx.BufferStore(self.drive[number], value, [at])
            return [*system, when(self.thread < COLUMNS, store), all_wait()]

        return tir.seq(stmt for number, _ in enumerate(self.reading) for stmt in row(number))

    def _emit(self, number: Any, slot: Any, head: Any) -> Any:
        t, v = number // COLUMNS, number % COLUMNS
        inside = tirx.And(head + t < self.length, self.exists(v))
        emit = self.memory.emit(head + t, v, [self._load(out, slot) for out in self.outs])
        stmts, seen = [], self.seen[len(self.reading) :]
        for out, triangles, terms in zip(self.outs, self.readers, seen, strict=True):
            begin = self._load(out, slot)
            stmts += [*self._sum_read(begin, triangles, t, v, terms), self._keep(out, slot)]
        return tir.seq([*stmts, when(inside, emit)])

    def _advance(self, number: Any, _: Any) -> Any:
        """A cell of the state after the chunk; ``into`` has the gates until its end."""
        i = tirx.Min(number // COLUMNS, int_const(self.rows - 1, self.index))
        begin = self._load(self.passed, i) * self._load(self.state, number)
        column, steps = number % COLUMNS, self.steps
        stmts = self._sum_updates(begin, self.into, lambda t: t * self.stride + i, column, steps)
        return tir.seq([*stmts, self._keep(self.state, number)])
