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

from math import prod
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Var
from tvm.target import Target
from tvm.tirx import ForKind

from tvm_scan import tir
from tvm_scan.algebra.literal import one, zero
from tvm_scan.delta_rule import DeltaRule
from tvm_scan.schedules.ir import Kernel, as_dtype, int_const, local, loop, when
from tvm_scan.schedules.lanes import clear
from tvm_scan.schedules.limits import limits_of
from tvm_scan.schedules.result import Built
from tvm_scan.schedules.small_products import Products
from tvm_scan.schedules.vector_math import Pool, with_vector_math

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
    limits = limits_of(target)
    columns = tir.as_int(rule.columns.extent) or 0
    known = [tir.as_int(axis.extent) for axis in rule.lanes]
    matrices = prod(n for n in known if n is not None)
    # A block of columns repeats the products of a chunk's vectors: the fewer blocks, the better.
    width = next((w for w in _WIDTHS if matrices * (columns // w) >= limits.cores), 16)
    nests = []
    if columns // width:
        nests.append(_Task(rule, 0, width, columns // width, limits.ldexp).nest())
    if columns % width:
        done = columns - columns % width
        nests.append(_Task(rule, done, columns % width, 1, limits.ldexp).nest())
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
        self.held: list[tuple[Any, Var]] = []

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
        number, values = task // self.blocks, []
        for lane in reversed(rule.lanes):
            extent = as_dtype(lane.extent, self.index)
            values.append(as_dtype(number % extent, tir.dtype_of(lane.var)))
            number = number // extent
        self.table = tir.VarMap(
            (lane.var, value) for lane, value in zip(rule.lanes, values[::-1], strict=True)
        )
        self.origin = (task % self.blocks) * self.width + self.first
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
        ends = [self.state, self.rate, self.drive]
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
        extent = self.rule.time.extent
        steps = tir.simplify(tirx.Min(int_const(CHUNK, extent), extent - head))
        vectors = [self.into, self.source, *self.weights]
        missing = tir.simplify(steps < CHUNK)
        p, read = self.products, list(zip(self.weights, self.readers, self.outs, strict=True))
        return tir.seq(
            [
                when(missing, self._clear([*vectors, self.drive, self.rate])),
                when(missing, self._clear([self.gates], one(self.dtype))),
                loop("t", steps, lambda t: self._fill(t, head + t), dtype=self.index),
                self._clear([self.decayed]),
                self._clear([self.passed], one(self.dtype)),
                loop("t", CHUNK, self._decay, dtype=self.index),
                p.times(self.update, self.source, self.state, CHUNK, self.rows),
                *(p.times(out, weight, self.state, CHUNK, self.rows) for weight, _, out in read),
                loop("t", CHUNK, lambda t: p.solve(t, self.update, self.lower, CHUNK,
                                                   self.rate, self.drive), dtype=self.index),
                *(p.times(out, lower, self.update, CHUNK, CHUNK, out) for _, lower, out in read),
                p.times(self.state, self.decayed, self.update, self.rows, CHUNK, self.state,
                        self.passed),
                loop("t", steps, lambda t: self._emit(t, head + t), dtype=self.index),
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

    def _placed(self, expr: Any, t: Any = None, row: Any = None, column: Any = None) -> Any:
        rule, table = self.rule, self.table.copy()
        if t is not None:
            table[rule.time.var] = t
        if row is not None:
            table[rule.rows.var] = as_dtype(row, tir.dtype_of(rule.rows.var))
        if column is not None:
            place = as_dtype(self.origin + column, tir.dtype_of(rule.columns.var))
            table[rule.columns.var] = place
        return tir.substitute(expr, table)

    def _begin(self) -> Any:
        rule = self.rule

        def cell(i: Any, v: Any) -> Any:
            value = rule.initial
            if value is None:
                value = tirx.BufferLoad(rule.state, list(rule.place))
            value = self._placed(value, row=i, column=v)
            return tirx.BufferStore(self.state, value, [i * self.padded + v])

        return self._cells(cell)

    def _cells(self, make: Any) -> Any:
        return loop(
            "i",
            self.rows,
            lambda i: loop("v", self.width, lambda v: make(i, v), dtype=self.index),
            dtype=self.index,
        )

    def _finish(self) -> Any:
        rule = self.rule

        def cell(i: Any, v: Any) -> Any:
            value = tirx.BufferLoad(self.state, [i * self.padded + v])
            stmts = []
            if rule.is_kept:
                place = [self._placed(index, row=i, column=v) for index in rule.place]
                stmts.append(tirx.BufferStore(rule.state, value, place))
            for store in rule.finish:
                stored = tir.substitute(store.value, tir.VarMap([(rule.final, value)]))
                place = [self._placed(index, row=i, column=v) for index in store.index]
                stored = self._placed(stored, row=i, column=v)
                stmts.append(tirx.BufferStore(store.buffer, stored, place))
            return tir.seq(stmts)

        return self._cells(cell) if rule.is_kept or rule.finish else None

    # ---- one step of a chunk ------------------------------------------------------------------

    def _fill(self, t: Any, time: Any) -> Any:
        """Vectors and amounts of one step; calls that are the same for all rows come first."""
        rule, k = self.rule, self.rows
        vectors = [
            (self.gates, rule.gate),
            (self.into, rule.into),
            (self.source, rule.source),
            *((w, read.weight) for w, read in zip(self.weights, rule.reads, strict=True)),
        ]
        held: list[Any] = []
        shared = [(b, self._hoisted(e, rule.rows.var, held)) for b, e in vectors]
        amounts = [
            (b, self._hoisted(e, rule.columns.var, held))
            for b, e in ((self.rate, rule.rate), (self.drive, rule.drive))
        ]
        before = [
            tirx.BufferStore(b, self._placed(e, t=time), [int_const(0, self.index)])
            for e, b in held
        ]

        def row(i: Any) -> Any:
            return tir.seq(
                tirx.BufferStore(b, self._placed(e, t=time, row=i), [t * k + i]) for b, e in shared
            )

        def column(v: Any) -> Any:
            return tir.seq(
                tirx.BufferStore(b, self._placed(e, t=time, column=v), [t * self.padded + v])
                for b, e in amounts
            )

        return tir.seq(
            [*before, self._vector(k, row, True), self._vector(self.width, column, True)]
        )

    def _hoisted(self, expr: Any, axis: Var, held: list[tuple[Any, Var]]) -> Any:
        """``expr`` with calls that are free of ``axis`` read from a scalar."""

        def on_call(call: Call) -> Any:
            if tir.dtype_of(call) != self.dtype or tir.contains_var(call, [axis]):
                return call
            for other, buffer in held:
                if tir.structurally_equal(other, call):
                    return tirx.BufferLoad(buffer, [int_const(0, self.index)])
            if len(held) == len(self.held):
                self.held.append((None, self._buffer(f"held{len(held)}", [1])))
            held.append((call, self.held[len(held)][1]))
            return tirx.BufferLoad(held[-1][1], [int_const(0, self.index)])

        return tvm_ffi.structural_map(expr, (Call, on_call))

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
            (self.weights[n], self.readers[n], read.after)
            for n, read in enumerate(self.rule.reads)
        ]
        return tir.seq(
            [
                p.triangle_row(t, self.decayed, self.gates, self.into, dots, rows, CHUNK),
                self._vector(rows, pass_on),
            ]
        )

    def _emit(self, t: Any, time: Any) -> Any:
        reads = self.rule.reads

        def column(v: Any) -> Any:
            at = [t * self.padded + v]
            table = tir.VarMap(
                (read.value, tirx.BufferLoad(out, at))
                for read, out in zip(reads, self.outs, strict=True)
            )
            return tir.seq(
                tirx.BufferStore(
                    store.buffer,
                    tir.substitute(self._placed(store.value, t=time, column=v), table),
                    [self._placed(index, t=time, column=v) for index in store.index],
                )
                for store in self.rule.stores
            )

        return self._vector(self.width, column, True)


def _cells(buffer: Var) -> int:
    return prod(int(extent) for extent in tir.shape_of(buffer))
