"""CPU executor of the delta rule's chunks: a walk over time with some columns of a matrix.

A task is one matrix, or some of its columns, which stay in a core's first cache while it takes a
few steps at once (``few_steps``), and those that are left one by one, as a token that is decoded.
Read ``chunk`` first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from tvm import tirx
from tvm.ir import Var
from tvm.tirx import ForKind

from tvm_scan import tir
from tvm_scan.algebra.literal import one, zero
from tvm_scan.delta_rule import DeltaRule
from tvm_scan.schedules.common.ir import Kernel, cell_count, int_const, local, loop
from tvm_scan.schedules.common.lanes import clear
from tvm_scan.schedules.common.polynomials import Pool
from tvm_scan.schedules.common.stack import on_lines, on_stack
from tvm_scan.schedules.cpu.vector_math import with_vector_math
from tvm_scan.schedules.delta.chunk import Chunk
from tvm_scan.schedules.delta.few_steps import FewSteps
from tvm_scan.schedules.delta.lines_ahead import LinesAhead
from tvm_scan.schedules.delta.memory_map import blocks_of

if TYPE_CHECKING:
    from tvm_scan.schedules.delta.cpu_plan import DeltaWalk


def build_delta(rule: DeltaRule, plan: DeltaWalk) -> list[Any]:
    """Tasks over matrices and blocks of their columns, each walking chunks of time.

    Parameters
    ----------
    rule : DeltaRule
        What to build.
    plan : DeltaWalk
        One that fits.
    """
    return [_Task(rule, plan, *block).nest() for block in blocks_of(rule, plan.columns)]


def over_tasks(kernel: Kernel, task: Var, total: Any, plan: DeltaWalk) -> Any:
    """Return the loop over tasks, on the threads of a plan."""
    kind = ForKind.PARALLEL if plan.threads else ForKind.SERIAL
    index = tir.dtype_of(task)
    return loop("task", total, lambda n: kernel.block([(task, total, n)]), kind, index)


def pairs_of(rule: DeltaRule) -> int:
    """Return the products of what a step reads with with what another one writes with."""
    return (len(rule.reading) + len(rule.reads)) * len(rule.terms)


class _Task(Chunk):
    """One block of columns of one matrix."""

    def __init__(
        self, rule: DeltaRule, plan: DeltaWalk, first: int, width: int, blocks: int
    ) -> None:
        super().__init__(rule, plan.steps, -(-width // 16) * 16, "local")
        self.columns_each, self.plan, self.pool = width, plan, Pool(16)
        #: Buffers that lie on the stack, or in registers.
        self.registers: list[Var] = []
        self.assign_task(blocks, width, first)
        self.ahead = LinesAhead(rule, self.memory, width)
        register = partial(self._buffer, buffers=self.registers)
        several = FewSteps(self, self.steps, plan, register)
        self.few = {self.steps: several}
        if self.steps > 1:
            self.few[1] = FewSteps(self, 1, plan, register, several.strip)
        self.cell_of = several.cell_of

        def rows(name: str, count: int = self.steps) -> Var:
            return self._buffer(name, count * self.width)

        self.state = rows("matrix", self.rows)
        self.drive = [rows(f"drives{n}") for n in self.reading]
        self.outs = [rows(f"out{n}") for n, _ in enumerate(rule.reads)]
        #: Of the terms that read nothing, whose drive is what they write.
        plain = [b for n, b in enumerate(self.update) if n not in self.reading]
        self.ends = [self.state, *self.rate, *self.drive, *plain]
        self.ends += [] if self.fade is None else [self.fade]
        self.buffers += [self.gates, *self.into, *self.source, *self.weights, self.passed]
        self.buffers += [*chain(*self.lower, *self.readers), *plain, *self.rate]
        self.buffers += [] if self.fade is None else [self.fade]

    def _buffer(self, name: str, cells: int, buffers: list[Var] | None = None) -> Var:
        buffer = local(name, [cells], self.dtype)
        (self.buffers if buffers is None else buffers).append(buffer)
        return buffer

    def nest(self) -> Any:
        """The loop over tasks."""
        rule, body = self.rule, self._body()
        kernel = Kernel("delta_chunks", rule.inputs, rule.outputs, body,
                        [*self.buffers, *self.registers, *self.pool.buffers])  # fmt: skip
        kernel = on_stack(kernel, [b for b in self.buffers if cell_count(b) > 32])
        if self.plan.threads:
            kernel = on_lines(kernel, self.total)
        return over_tasks(kernel, self.task, self.total, self.plan)

    # ---- the chunks ---------------------------------------------------------------------------

    def _body(self) -> Any:
        extent, steps, few = self.length, self.steps, self._few_steps
        whole = tir.simplify(extent // steps)
        left = tir.simplify(extent - whole * steps)
        # First of all, since these fill the pool.
        stmts = [
            self._cells(self._begin),
            loop("chunk", whole, lambda n: few(steps, n * steps), dtype=self.index),
            loop("step", left, lambda n: few(1, whole * steps + n), dtype=self.index),
            self._cells(self._finish) if self.is_stored else None,
        ]
        # Without a use outside the vector loops TVM would shrink these to one cell.
        registers = clear([*self.pool.buffers, *self.registers])
        # Columns beyond the width stay zero.
        return tir.seq([registers, self._clear(self.ends), *stmts])

    def _few_steps(self, count: int, head: Any) -> Any:
        """Statements of ``count`` steps, from step ``head`` on."""

        def each(make: Callable[[Any], Any]) -> Any:
            return loop("t", count, make, dtype=self.index)

        def ask(t: int, part: Any, parts: int) -> Any:
            return self.ahead.ask(head + t, part, parts)

        return tir.seq(
            [
                each(lambda t: self._fill(t, head + t)),
                self._clear([self.passed], one(self.dtype)),
                self.few[count].steps(ask if count > 1 else None),
                each(lambda t: self._emit(t, head + t)),
            ]
        )

    def _clear(self, buffers: list[Var], value: Any = None) -> Any:
        value = zero(self.dtype) if value is None else value
        return tir.seq(
            [
                self._vector(cell_count(b), lambda i, b=b: tirx.BufferStore(b, value, [i]))
                for b in buffers
            ]
        )

    def _vector(self, count: int, make: Any, math: bool = False) -> Any:
        """``make(i)`` for ``count`` neighbours, in vectors where they fill them."""
        if count % 16:
            return loop("i", count, make, dtype=self.index)

        def part(n: Any) -> Any:
            def cell_of_vector(u: Any) -> Any:
                stmt = make(n * 16 + u)
                return with_vector_math(stmt, self.pool, u, ldexp=self.plan.ldexp) if math else stmt

            return loop("u", 16, cell_of_vector, ForKind.VECTORIZED, self.index)

        return loop("n", count // 16, part, dtype=self.index)

    def _cells(self, make: Callable[[Any, Any, Any], Any]) -> Any:
        """``make(row, column, index)`` for the cells of the state."""

        def row(i: Any) -> Any:
            return self._vector(
                self.columns_each, lambda v: make(i, v, self.cell_of(i, v)), math=True
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
        wanted += [(e, rule.columns.var) for _, e, _ in amounts]
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
                for (b, *_), e in zip(amounts, of_columns, strict=True)
            )

        return tir.seq(
            [*before, self._vector(k, row, True), self._vector(self.columns_each, column, True)]
        )

    def _emit(self, t: Any, time: Any) -> Any:
        def column(v: Any) -> Any:
            at = [t * self.width + v]
            return self.memory.emit(time, v, [tirx.BufferLoad(out, at) for out in self.outs])

        return self._vector(self.columns_each, column, True)
