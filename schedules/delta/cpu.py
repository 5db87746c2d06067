"""CPU builder of the delta rule: chunks of steps as matrix products, states from chunk to chunk.

A task is one matrix, or some of its columns. For a chunk of C steps, with e, p, r and u of
``DeltaRule`` and running products of the gates (never their quotients, so that gates may be small
or zero), it computes

    D[:, s]  = p[s] times the gates after s        built up step by step, K x C
    M[t, s]  = e[t] . D[:, s] before step t        strictly lower triangular
    N[t, s]  = r[t] . D[:, s]                      lower triangular, one for each read
    u[t]     = drive[t] + rate[t] (e'[t] S + sum_{s<t} M[t, s] u[s])   by forward substitution
    y[t]     = r'[t] S + sum_s N[t, s] u[s]
    S        = (all gates) S + D u

where e' and r' carry the gates since the head of the chunk. Forward substitution is the sequential
loop in other words: it divides by nothing and is as stable as the loop.

Work, for V columns and K rows: 3 K V + C (2 K + 1.5 V) multiply-adds a step, against 3 K V of the
loop; the span is L / C chunks.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from tvm import tirx
from tvm.ir import Var
from tvm.target import Target
from tvm.tirx import ForKind

from tvm_scan import tir
from tvm_scan.algebra.literal import one, zero
from tvm_scan.delta_rule import DeltaRule
from tvm_scan.schedules.common.ir import Kernel, as_dtype, int_const, local, loop
from tvm_scan.schedules.common.lanes import clear
from tvm_scan.schedules.common.result import Built
from tvm_scan.schedules.cpu.vector_math import Pool, with_vector_math
from tvm_scan.schedules.delta.places import Places
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


class _Task:
    """One block of columns of one matrix."""

    def __init__(self, rule: DeltaRule, first: int, width: int, blocks: int, ldexp: bool) -> None:
        self.rule, self.width, self.blocks, self.first = rule, width, blocks, first
        self.ldexp = ldexp
        self.rows = tir.as_int(rule.rows.extent) or 0
        self.padded = -(-width // 16) * 16
        self.dtype = rule.dtype
        self.index = tir.dtype_of(rule.time.var)
        self.buffers: list[Var] = []
        self.pool = Pool(16)
        self.products = Products(self.padded, 32 if ldexp and self.padded % 32 == 0 else 16,
                                 self._buffer, self.index)  # fmt: skip
        k, c = self.rows, CHUNK
        self.state = self._buffer("matrix", [k, self.padded])
        self.gates, self.into = self._buffer("gates", [c, k]), self._buffer("into", [c, k])
        self.source = self._buffer("source", [c, k])
        self.weights = [self._buffer(f"weight{n}", [c, k]) for n, _ in enumerate(rule.reads)]
        self.decayed, self.passed = self._buffer("decayed", [k, c]), self._buffer("passed", [k])
        self.lower = self._buffer("lower", [c, c])
        self.readers = [self._buffer(f"lower{n}", [c, c]) for n, _ in enumerate(rule.reads)]
        self.update = self._buffer("update", [c, self.padded])
        self.rate = self._buffer("rates", [c, self.padded])
        self.drive = self._buffer("drives", [c, self.padded])
        self.outs = [self._buffer(f"out{n}", [c, self.padded]) for n, _ in enumerate(rule.reads)]

    def _buffer(self, name: str, shape: list[int]) -> Var:
        made = local(name, [prod(shape)], self.dtype)
        self.buffers.append(made)
        return made

    def nest(self) -> Any:
        """The loop over tasks."""
        rule = self.rule
        total: Any = int_const(self.blocks, self.index)
        for lane in rule.lanes:
            total = total * as_dtype(lane.extent, self.index)
        total = tir.simplify(total)
        task = tirx.Var("v_task", self.index)
        first = (task % self.blocks) * self.width + self.first
        self.places = Places(rule, task // self.blocks, first)
        body = self._body()
        kernel = Kernel("delta_chunks", rule.inputs, rule.outputs, body,
                        [*self.buffers, *self.pool.buffers])  # fmt: skip
        kernel = kernel.on_stack([b for b in self.buffers if _cells(b) > 32])
        return loop(
            "task", total, lambda n: kernel.block([(task, total, n)]), ForKind.PARALLEL, self.index
        )

    # ---- the walk -----------------------------------------------------------------------------

    def _body(self) -> Any:
        extent = self.rule.time.extent
        chunks = tir.simplify((extent + (CHUNK - 1)) // CHUNK)
        walk = loop("chunk", chunks, lambda n: self._chunk(n * CHUNK), dtype=self.index)
        # Columns beyond the width stay zero.
        ends = [self.state, self.rate, self.drive, self.update]
        return tir.seq(
            [
                # Without a use outside the vector loops TVM would shrink these to one lane.
                clear(self.pool.buffers),
                self._clear(ends),
                self._begin(),
                walk,
                self._finish(),
            ]
        )

    def _chunk(self, head: Any) -> Any:
        """The last chunk may be shorter: then its loops are, and nothing beyond is read."""
        extent = self.rule.time.extent
        steps = tir.simplify(tirx.Min(int_const(CHUNK, extent), extent - head))
        ends = [int(read.after) for read in self.rule.reads]
        read = list(zip(self.weights, self.readers, self.outs, ends, strict=True))
        p = self.products

        def each(make: Callable[[Any], Any]) -> Any:
            return loop("t", steps, make, dtype=self.index)

        def solve(t: Any) -> Any:
            return p.solve(t, self.update, self.lower, CHUNK, self.rate, self.drive)

        return tir.seq(
            [
                each(lambda t: self._fill(t, head + t)),
                self._clear([self.decayed]),
                self._clear([self.passed], one(self.dtype)),
                each(self._decay),
                p.times(self.update, self.source, self.state, steps, self.rows),
                *(p.times(o, weight, self.state, steps, self.rows) for weight, _, o, _ in read),
                each(solve),
                *(p.times(o, lower, self.update, steps, CHUNK, plus=o, beyond=end)
                  for _, lower, o, end in read),
                p.times(self.state, self.decayed, self.update, self.rows, CHUNK, steps,
                        self.state, self.passed),
                each(lambda t: self._emit(t, head + t)),
            ]
        )  # fmt: skip

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
                made = make(n * 16 + u)
                return with_vector_math(made, self.pool, u, ldexp=self.ldexp) if math else made

            return loop("u", 16, lane, ForKind.VECTORIZED, self.index)

        return loop("n", count // 16, part, dtype=self.index)

    def _begin(self) -> Any:
        def cell(i: Any, v: Any) -> Any:
            return tirx.BufferStore(self.state, self.places.first(i, v), [i * self.padded + v])

        return self._cells(cell)

    def _cells(self, make: Any) -> Any:
        return loop(
            "i",
            self.rows,
            lambda i: loop("v", self.width, lambda v: make(i, v), dtype=self.index),
            dtype=self.index,
        )

    def _finish(self) -> Any:
        def cell(i: Any, v: Any) -> Any:
            value = tirx.BufferLoad(self.state, [i * self.padded + v])
            return self.places.last(i, v, value)

        return self._cells(cell) if self.rule.is_kept or self.rule.finish else None

    # ---- one step of a chunk ------------------------------------------------------------------

    def _fill(self, t: Any, time: Any) -> Any:
        """Vectors and amounts of one step; calls that are the same for all rows come first."""
        rule, k, at = self.rule, self.rows, self.places.at
        vectors = [self.gates, self.into, self.source, *self.weights]
        exprs = [rule.gate, rule.into, rule.source, *(read.weight for read in rule.reads)]
        wanted = [(e, rule.rows.var) for e in exprs]
        wanted += [(e, rule.columns.var) for e in (rule.rate, rule.drive)]
        values, held = self.places.held_calls(wanted, lambda n: self._buffer(f"held{n}", [1]))
        rows, amounts = values[: len(vectors)], values[len(vectors) :]
        before = [tirx.BufferStore(b, at(e, t=time), [int_const(0, self.index)]) for e, b in held]

        def row(i: Any) -> Any:
            return tir.seq(
                tirx.BufferStore(b, at(e, t=time, row=i), [t * k + i])
                for b, e in zip(vectors, rows, strict=True)
            )

        def column(v: Any) -> Any:
            return tir.seq(
                tirx.BufferStore(b, at(e, t=time, column=v), [t * self.padded + v])
                for b, e in zip((self.rate, self.drive), amounts, strict=True)
            )

        return tir.seq(
            [*before, self._vector(k, row, True), self._vector(self.width, column, True)]
        )

    def _decay(self, t: Any) -> Any:
        """Row ``t`` of the triangles, and the gates since the head of the chunk."""
        befores = [n for n, read in enumerate(self.rule.reads) if not read.after]
        afters = [n for n, read in enumerate(self.rule.reads) if read.after]
        rows, p = self.rows, self.products

        def pass_on(i: Any) -> Any:
            at, passed = [t * rows + i], tirx.BufferLoad(self.passed, [i])

            def scale(buffer: Var) -> Any:
                return tirx.BufferStore(buffer, tirx.BufferLoad(buffer, at) * passed, at)

            return tir.seq(
                [
                    scale(self.source),
                    *(scale(self.weights[n]) for n in befores),
                    tirx.BufferStore(self.passed, passed * tirx.BufferLoad(self.gates, at), [i]),
                    *(scale(self.weights[n]) for n in afters),
                ]
            )

        dots = [(self.source, self.lower, False)]
        dots += [
            (self.weights[n], self.readers[n], read.after) for n, read in enumerate(self.rule.reads)
        ]
        return tir.seq(
            [
                p.triangle_row(t, self.decayed, self.gates, self.into, dots, rows, CHUNK),
                self._vector(rows, pass_on),
            ]
        )

    def _emit(self, t: Any, time: Any) -> Any:
        def column(v: Any) -> Any:
            at = [t * self.padded + v]
            return self.places.emit(time, v, [tirx.BufferLoad(out, at) for out in self.outs])

        return self._vector(self.width, column, True)


def _cells(buffer: Var) -> int:
    return prod(int(extent) for extent in tir.shape_of(buffer))
