"""CPU executor of the delta rule's chunks: tasks over matrices, products of small matrices.

A task is one matrix, or some of its columns. D is built step by step, K x C, and every product
runs over blocks of rows in registers (``small_products``). Steps after the last whole chunk are
taken one by one (``single_steps``), as is a token that is decoded. Read ``chunk`` first.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from math import prod
from typing import Any

from tvm import tirx
from tvm.ir import Var
from tvm.target import Target
from tvm.tirx import ForKind

from tvm_scan import tir
from tvm_scan.algebra.literal import one, zero
from tvm_scan.delta_rule import DeltaRule
from tvm_scan.schedules.common.ir import Kernel, int_const, local, loop
from tvm_scan.schedules.common.lanes import clear
from tvm_scan.schedules.common.result import Built
from tvm_scan.schedules.common.stack import on_stack
from tvm_scan.schedules.cpu.vector_math import Pool, with_vector_math
from tvm_scan.schedules.delta.chunk import Chunk, Product
from tvm_scan.schedules.delta.single_steps import SingleSteps
from tvm_scan.schedules.delta.small_products import Products
from tvm_scan.schedules.machine.machine import Machine

__all__ = ["CHUNK", "build_delta"]

#: Steps in a chunk: a vector of float32.
CHUNK = 16
#: Columns of a task, widest first.
_WIDTHS = (64, 32, 16)


def build_delta(rule: DeltaRule, target: Target) -> Built:
    """Tasks over matrices and blocks of their columns, each walking chunks of time.

    Parameters
    ----------
    rule : DeltaRule
        What to build.
    target : tvm.target.Target
        A CPU.

    Returns
    -------
    Built
    """
    machine = Machine.of(target)
    columns = tir.as_int(rule.columns.extent) or 0
    known = [tir.as_int(axis.extent) for axis in rule.lanes]
    matrices = prod(n for n in known if n is not None)
    # A block of columns repeats the products of a chunk's vectors: the fewer blocks, the better.
    width = next((w for w in _WIDTHS if matrices * (columns // w) >= machine.cores), 16)
    nests = []
    if columns // width:
        nests.append(_Task(rule, 0, width, columns // width, machine.ldexp).nest())
    if columns % width:
        done = columns - columns % width
        nests.append(_Task(rule, done, columns % width, 1, machine.ldexp).nest())
    return Built(nests, [])


class _Task(Chunk):
    """One block of columns of one matrix."""

    def __init__(self, rule: DeltaRule, first: int, width: int, blocks: int, ldexp: bool) -> None:
        super().__init__(rule, CHUNK, -(-width // 16) * 16, "local")
        self.columns_each, self.ldexp, self.pool = width, ldexp, Pool(16)
        self.registers: list[Var] = []
        self.task, self.total = self.assign_task(blocks, width, first)
        strip = 32 if ldexp and self.width % 32 == 0 else 16
        self.products = Products(self, strip, self._buffer)
        self.single = SingleSteps(self, self._register)
        self.state = local("matrix", [self.rows * self.width], self.dtype)
        self.decayed = [
            local(f"decayed{n}", [self.rows * CHUNK], self.dtype) for n, _ in enumerate(rule.terms)
        ]
        self.drive = [local(f"drives{n}", [CHUNK * self.width], self.dtype) for n in self.reading]
        self.known = [self.update[n] for n in self.reading]
        self.outs = [
            local(f"out{n}", [CHUNK * self.width], self.dtype) for n, _ in enumerate(rule.reads)
        ]
        self.buffers += [self.state, self.gates, *self.into, *self.source, *self.weights]
        self.buffers += [*self.decayed, self.passed, *chain(*self.lower, *self.readers)]
        self.buffers += [*self.update, *self.rate, *self.drive, *self.outs]

    def _buffer(self, name: str, cells: int) -> Var:
        buffer = local(name, [cells], self.dtype)
        self.buffers.append(buffer)
        return buffer

    def _register(self, name: str, cells: int) -> Var:
        """Make a buffer that lies on the stack, or in registers."""
        buffer = local(name, [cells], self.dtype)
        self.registers.append(buffer)
        return buffer

    def nest(self) -> Any:
        """The loop over tasks."""
        rule, task, total = self.rule, self.task, self.total
        body = self._body()
        kernel = Kernel("delta_chunks", rule.inputs, rule.outputs, body,
                        [*self.buffers, *self.registers, *self.pool.buffers])  # fmt: skip
        kernel = on_stack(kernel, [b for b in self.buffers if _cells(b) > 32])
        return loop(
            "task", total, lambda n: kernel.block([(task, total, n)]), ForKind.PARALLEL, self.index
        )

    # ---- the chunks ---------------------------------------------------------------------------

    def _body(self) -> Any:
        extent, steps = self.rule.time.extent, self.steps
        whole = tir.simplify(extent // steps)
        left = tir.simplify(extent - whole * steps)
        # First of all, since these fill the pool.
        stmts = [
            self._cells(self._begin),
            loop("chunk", whole, lambda n: self._chunk(n * steps), dtype=self.index),
            loop("step", left, lambda n: self._step(whole * steps + n), dtype=self.index),
            self._cells(self._finish) if self.is_stored else None,
        ]
        # Columns beyond the width stay zero.
        ends = [self.state, *self.rate, *self.drive, *self.update]
        # Without a use outside the vector loops TVM would shrink these to one lane.
        return tir.seq([clear([*self.pool.buffers, *self.registers]), self._clear(ends), *stmts])

    def _chunk(self, head: Any) -> Any:
        steps, products = self.steps, self.products
        advance = self.advance(self.decayed, steps, False)

        def each(make: Callable[[Any], Any]) -> Any:
            return loop("t", steps, make, dtype=self.index)

        def times(of_step: list[Product]) -> list[Any]:
            return [products.times(product, steps) for product in of_step]

        return tir.seq(
            [
                each(lambda t: self._fill(t, head + t)),
                self._clear(self.decayed),
                self._clear([self.passed], one(self.dtype)),
                each(self._decay),
                *times(self.of_head),
                each(products.solve),
                *times(self.outputs),
                products.times(advance, self.rows),
                each(lambda t: self._emit(t, head + t)),
            ]
        )

    def _step(self, time: Any) -> Any:
        """One step, in the first row of the arrays of a chunk."""
        row = int_const(0, self.index)
        return tir.seq([self._fill(row, time), self.single.step(), self._emit(row, time)])

    def _clear(self, buffers: list[Var], value: Any = None) -> Any:
        value = zero(self.dtype) if value is None else value
        return tir.seq(
            [
                self._vector(_cells(b), lambda i, b=b: tirx.BufferStore(b, value, [i]))
                for b in buffers
            ]
        )

    def _vector(self, count: int, make: Any, math: bool = False) -> Any:
        """``make(i)`` for ``count`` neighbours, in vectors where they fill them."""
        if count % 16:
            return loop("i", count, make, dtype=self.index)

        def part(n: Any) -> Any:
            def lane(u: Any) -> Any:
                stmt = make(n * 16 + u)
                return with_vector_math(stmt, self.pool, u, ldexp=self.ldexp) if math else stmt

            return loop("u", 16, lane, ForKind.VECTORIZED, self.index)

        return loop("n", count // 16, part, dtype=self.index)

    def _cells(self, make: Callable[[Any, Any, Any], Any]) -> Any:
        """``make(row, column, index)`` for the cells of the state."""

        def row(i: Any) -> Any:
            return self._vector(
                self.columns_each, lambda v: make(i, v, i * self.width + v), math=True
            )

        return loop("i", self.rows, row, dtype=self.index)

    def _begin(self, i: Any, v: Any, at: Any) -> Any:
        return tirx.BufferStore(self.state, self.memory.first(i, v), [at])

    def _finish(self, i: Any, v: Any, at: Any) -> Any:
        return self.memory.last(i, v, tirx.BufferLoad(self.state, [at]))

    # ---- one step of a chunk ------------------------------------------------------------------

    def _fill(self, t: Any, time: Any) -> Any:
        """Vectors and amounts of one step; calls that are the same for all rows come first."""
        rule, k, at = self.rule, self.rows, self.memory.at
        vectors, amounts = self.vectors, self.amounts
        wanted = [(e, rule.rows.var) for _, e, _ in vectors]
        wanted += [(e, rule.columns.var) for _, e in amounts]
        values, held = self.memory.held_calls(wanted, lambda n: self._buffer(f"held{n}", 1))
        of_rows, of_columns = values[: len(vectors)], values[len(vectors) :]
        before = [tirx.BufferStore(b, at(e, t=time), [int_const(0, self.index)]) for e, b in held]

        def row(i: Any) -> Any:
            return tir.seq(
                tirx.BufferStore(b, at(e, t=time, row=i), [t * k + i])
                for (b, *_), e in zip(vectors, of_rows, strict=True)
            )

        def column(v: Any) -> Any:
            return tir.seq(
                tirx.BufferStore(b, at(e, t=time, column=v), [t * self.width + v])
                for (b, _), e in zip(amounts, of_columns, strict=True)
            )

        return tir.seq(
            [*before, self._vector(k, row, True), self._vector(self.columns_each, column, True)]
        )

    def _decay(self, t: Any) -> Any:
        """Row ``t`` of the triangles, and the gates since the head of the chunk."""
        rows = [self.products.triangle_row(t, n, b) for n, b in enumerate(self.decayed)]
        at = t * self.rows
        passed = self._vector(self.rows, lambda i: self.pass_on(at + i, self.passed, i))
        return tir.seq([*rows, passed])

    def _emit(self, t: Any, time: Any) -> Any:
        def column(v: Any) -> Any:
            at = [t * self.width + v]
            return self.memory.emit(time, v, [tirx.BufferLoad(out, at) for out in self.outs])

        return self._vector(self.columns_each, column, True)


def _cells(buffer: Var) -> int:
    return prod(int(extent) for extent in tir.shape_of(buffer))
