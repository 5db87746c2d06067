"""GPU executor of the delta rule's chunks: a block takes them for some columns of a matrix.

Everything of a chunk is in shared memory: the vectors of its steps, the state of the block's
columns, and the triangles. A thread makes entries of the triangles from whole vectors; a column's
system is solved by one thread; products are one cell of the result at a time, the columns of a warp
side by side, so that reads of the state meet no bank conflicts.

Barriers: five a chunk, and one for each vector of a step that reads the state; TVM is not to see
between them, and would put two around each cell. Read ``chunk`` first; ``gpu_plan`` decides.
"""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.algebra.literal import one, zero
from tvm_scan.delta_rule import DeltaRule
from tvm_scan.schedules.common.ir import int_const, local, loop, when
from tvm_scan.schedules.delta.chunk import Chunk, Product, scale
from tvm_scan.schedules.delta.gpu_block import COLUMNS, BlockOfColumns
from tvm_scan.schedules.gpu.thread.barriers import all_wait, hidden


def shared_bytes(rule: DeltaRule, chunk: int) -> int:
    """Shared memory of a block."""
    rows, terms = tir.as_int(rule.rows.extent) or 0, len(rule.terms)
    reading = len(rule.reading)
    readers = reading + len(rule.reads)
    vectors = (1 + terms + readers) * chunk * rows + rows
    triangles = terms * readers * chunk * chunk
    by_step = terms + 2 * reading + (rule.column_gate is not None)
    columns = (rows + 3 + by_step * chunk) * COLUMNS
    return (vectors + triangles + columns) * tir.byte_size(rule.dtype)


def build_delta_blocks(rule: DeltaRule, steps: int, threads: int) -> Any:
    """One block for every matrix and 32 of its columns, as a loop nest.

    Parameters
    ----------
    rule : DeltaRule
        What to build.
    steps, threads : int
        Of a chunk, and of a block: whole warps.
    """
    block = DeltaBlock(rule, steps, threads)
    return block.grid("delta_block", block.body(), rule.outputs)


class DeltaBlock(BlockOfColumns, Chunk):
    """A block that multiplies by multiply-adds.

    Parameters
    ----------
    rule, chunk, threads, stride
        As of ``build_delta_blocks``, and of ``Chunk``.
    """

    def __init__(
        self, rule: DeltaRule, chunk: int, threads: int, stride: int | None = None
    ) -> None:
        super().__init__(rule, chunk, COLUMNS, "shared", stride)
        self.threads = threads
        self.thread = tirx.Var("v_thread", self.index)
        self.across = -(-self.columns // COLUMNS)
        self.task, self.total = self.assign_task(self.across, COLUMNS)
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

    # ---- parts --------------------------------------------------------------------------------

    def _load(self, buffer: Var, at: Any) -> Any:
        return tirx.BufferLoad(buffer, [at])

    def _cell(self, product: Product, row: Any, column: Any, at: Any) -> Any:
        """Statements that leave in ``sum`` the cell of a product that its result has at ``at``."""

        def add(left: Var, right: Var, j: Any) -> Any:
            value = product.factor(left, row, j) * self._load(right, j * COLUMNS + column)
            return tirx.BufferStore(self.sum, self._load(self.sum, 0) + value, [0])

        def through(j: Any) -> Any:
            assert product.fade is not None, "only gates of the columns are passed in order"
            gate = self._load(product.fade, j * COLUMNS + column)
            return tirx.BufferStore(self.sum, gate * self._load(self.sum, 0), [0])

        def all_terms(j: Any) -> Any:
            return tir.seq([through(j), *(add(*pair, j) for pair in product.factors)])

        begin = zero(self.dtype) if product.plus is None else self._load(product.plus, at)
        if product.scale is not None:
            begin = self._load(product.scale, row) * begin
        stmts, within = [tirx.BufferStore(self.sum, begin, [0])], product.within
        terms = product.terms if within is None else row
        if product.fade is not None:
            stmts.append(loop("j", terms, all_terms, dtype=self.index))
            stmts += [through(row)] if product.after else []
            stmts += [add(*pair, row) for pair in product.factors[: within or 0]]
            return tir.seq(stmts)
        for number, pair in enumerate(product.factors):
            count = terms + 1 if within is not None and number < within else terms
            stmts.append(loop("j", count, partial(add, *pair), dtype=self.index))
        return tir.seq(stmts)

    def _keep(self, buffer: Var, at: Any) -> Any:
        return tirx.BufferStore(buffer, self._load(self.sum, 0), [at])

    def _times(self, product: Product, row: Any, column: Any, at: Any) -> Any:
        return tir.seq([self._cell(product, row, column, at), self._keep(product.result, at)])

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
        return hidden(tir.seq(stmts))

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
                        tirx.BufferStore(self.sum, self._load(self.sum, 0) + term(i), [0]),
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
            return tir.seq([*vectors, self.pass_gate(at, self.gone, 0)])

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
        products, count = self.of_head, len(self.known)
        return tir.seq(
            self._times(p, t, v, number if n < count else slot) for n, p in enumerate(products)
        )

    def _solve(self, t: Any) -> Any:
        """Forward substitution: step ``t``, a thread for each column."""
        v = self.thread % COLUMNS
        at = t * COLUMNS + v

        def row(number: int) -> list[Any]:
            system = self.system(number)
            value = self._load(self.rate[number], at) * self._load(self.sum, 0)
            value = self._load(self.drive[number], at) + value
            # Every warp sums what earlier steps wrote, one of them stores what later ones read.
            one_warp = when(self.thread < COLUMNS, tirx.BufferStore(system.result, value, [at]))
            return [self._cell(system, t, v, at), one_warp, all_wait()]

        return tir.seq(stmt for number, _ in enumerate(self.reading) for stmt in row(number))

    def _emit(self, number: Any, slot: Any, head: Any) -> Any:
        t, v = number // COLUMNS, number % COLUMNS
        inside = tirx.And(head + t < self.length, self.exists(v))
        emit = self.memory.emit(head + t, v, [self._load(out, slot) for out in self.outs])
        return tir.seq([*(self._times(p, t, v, slot) for p in self.outputs), when(inside, emit)])

    def _advance(self, number: Any, _: Any) -> Any:
        """A cell of the state after the chunk; ``into`` has the gates until its end."""
        i = tirx.Min(number // COLUMNS, int_const(self.rows - 1, self.index))
        product = self.advance(self.into, self.steps, True)
        return self._times(product, i, number % COLUMNS, number)
