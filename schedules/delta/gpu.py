"""CUDA builder of the delta rule: a block walks chunks of time for some columns of a matrix.

As ``cpu``, with everything of a chunk in shared memory: the vectors of its steps, the state
of the block's columns, and the triangles. A thread makes entries of the triangles from whole
vectors; a column's system is solved by one thread; products are one cell of the result at a time,
the columns of a warp side by side, so that reads of the state meet no bank conflicts.

Barriers: six a chunk, and a few for each of its steps. Shared memory: ``shared_bytes``.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from tvm import tirx
from tvm.ir import Var
from tvm.target import Target

from tvm_scan import tir
from tvm_scan.algebra.literal import one, zero
from tvm_scan.delta_rule import DeltaRule
from tvm_scan.schedules.common.ir import (
    Kernel,
    as_dtype,
    at_least_one,
    bound_loop,
    int_const,
    local,
    loop,
    when,
)
from tvm_scan.schedules.common.result import Built
from tvm_scan.schedules.delta.places import Places
from tvm_scan.schedules.gpu.thread.barriers import all_wait
from tvm_scan.schedules.machine.machine import Machine

__all__ = ["build_delta_blocks", "fits_block"]

#: Threads of a block, and its columns: a warp.
_THREADS, _COLUMNS = 128, 32
#: Steps of a chunk, largest first.
_CHUNKS = (16, 8, 4)


def _bytes(rule: DeltaRule, chunk: int) -> int:
    """Shared memory of a block."""
    rows, reads = tir.as_int(rule.rows.extent) or 0, len(rule.reads)
    vectors = (3 + reads) * chunk * rows + rows
    triangles = (1 + reads) * chunk * chunk
    columns = (rows + 3 + 3 * chunk) * _COLUMNS
    return (vectors + triangles + columns) * tir.byte_size(rule.dtype)


def fits_block(rule: DeltaRule, target: Target) -> int:
    """Steps of the largest chunk that fits into a block's shared memory; 0 where none does."""
    machine = Machine.of(target)
    if machine.threads < _THREADS:
        return 0
    return next((c for c in _CHUNKS if _bytes(rule, c) <= machine.shared_bytes), 0)


def build_delta_blocks(rule: DeltaRule, target: Target) -> Built:
    """One block for every matrix and 32 of its columns.

    Parameters
    ----------
    rule : DeltaRule
        One that ``fits_block``.
    target : tvm.target.Target
        Of kind cuda.

    Returns
    -------
    Built
    """
    return Built([_Block(rule, fits_block(rule, target)).nest()], [])


class _Block:
    """One block; ``thread`` is the number of a thread in it."""

    def __init__(self, rule: DeltaRule, chunk: int) -> None:
        self.rule, self.chunk, self.dtype = rule, chunk, rule.dtype
        self.rows = tir.as_int(rule.rows.extent) or 0
        self.columns = tir.as_int(rule.columns.extent) or 0
        self.index = tir.dtype_of(rule.time.var)
        self.buffers: list[Var] = []
        self.thread = tirx.Var("v_thread", self.index)
        c, k, w = chunk, self.rows, _COLUMNS
        # Rows that fill the threads: none of them asks whether its cell is there.
        self.padded = -(-k * w // _THREADS) * _THREADS
        self.state = self._buffer("matrix", [self.padded])
        self.gates, self.into = self._buffer("gates", [c, k]), self._buffer("into", [c, k])
        self.source, self.passed = self._buffer("source", [c, k]), self._buffer("passed", [k])
        self.weights = [self._buffer(f"weight{n}", [c, k]) for n, _ in enumerate(rule.reads)]
        self.lower = self._buffer("lower", [c, c])
        self.readers = [self._buffer(f"lower{n}", [c, c]) for n, _ in enumerate(rule.reads)]
        self.update, self.rate = self._buffer("update", [c, w]), self._buffer("rates", [c, w])
        self.known = self._buffer("known", [c, w])
        own = -(-c * w // _THREADS)
        self.outs = [self._buffer(f"out{n}", [own], "local") for n, _ in enumerate(rule.reads)]
        self.total = self._buffer("total", [1], "local")
        self.factor = self._buffer("factor", [1], "local")
        self.gone = self._buffer("gone", [-(-k // _THREADS)], "local")

    def _buffer(self, name: str, shape: list[int], scope: str = "shared") -> Var:
        made = local(name, [prod(shape)], self.dtype, scope)
        self.buffers.append(made)
        return made

    def nest(self) -> Any:
        """The grid."""
        rule = self.rule
        across = -(-self.columns // _COLUMNS)
        total: Any = int_const(across, self.index)
        for lane in rule.lanes:
            total = total * as_dtype(lane.extent, self.index)
        total = tir.simplify(total)
        task = tirx.Var("v_task", self.index)
        blocks = at_least_one(total)
        self.places = Places(rule, task // across, (task % across) * _COLUMNS)
        body = when(tir.simplify(task < total), self._body())
        kernel = Kernel("delta_block", rule.inputs, rule.outputs, body, self.buffers)
        threads = int_const(_THREADS, self.index)
        return bound_loop(
            "bx",
            "blockIdx.x",
            blocks,
            lambda bx: bound_loop(
                "tx",
                "threadIdx.x",
                threads,
                lambda tx: kernel.block([(task, blocks, bx), (self.thread, threads, tx)]),
            ),
        )

    # ---- parts --------------------------------------------------------------------------------

    def _share(self, count: int, make: Callable[[Any, Any], Any]) -> Any:
        """``make(number, turn)`` for ``count`` numbers, one for each thread in turn."""

        def turn(n: Any) -> Any:
            number = n * _THREADS + self.thread
            code = make(number, n)
            return code if count % _THREADS == 0 else when(number < count, code)

        return loop("n", -(-count // _THREADS), turn, dtype=self.index)

    def _exists(self, column: Any) -> Any:
        return self.places.origin + column < self.columns

    def _load(self, buffer: Var, at: Any) -> Any:
        return tirx.BufferLoad(buffer, [at])

    def _sum(self, count: Any, term: Callable[[Any], Any], first: Any = None) -> list[Any]:
        """Statements that leave a sum in ``total``."""
        begin = zero(self.dtype) if first is None else first

        def add(j: Any) -> Any:
            return tirx.BufferStore(self.total, self._load(self.total, 0) + term(j), [0])

        return [tirx.BufferStore(self.total, begin, [0]), loop("j", count, add, dtype=self.index)]

    def _body(self) -> Any:
        extent = self.rule.time.extent
        chunks = tir.simplify((extent + (self.chunk - 1)) // self.chunk)

        def begin(number: Any, _: Any) -> Any:
            i, v = number // _COLUMNS, number % _COLUMNS
            value = tirx.op.if_then_else(self._exists(v), self.places.first(i, v), zero(self.dtype))
            return tirx.BufferStore(self.state, value, [number])

        def end(number: Any, _: Any) -> Any:
            i, v = number // _COLUMNS, number % _COLUMNS
            return when(self._exists(v), self.places.last(i, v, self._load(self.state, number)))

        cells = self.rows * _COLUMNS
        stores = self.rule.is_kept or self.rule.finish
        return tir.seq(
            [
                self._share(cells, begin),
                loop("chunk", chunks, lambda n: self._chunk(n * self.chunk), dtype=self.index),
                self._share(cells, end) if stores else None,
            ]
        )

    def _chunk(self, head: Any) -> Any:
        c, k, w = self.chunk, self.rows, _COLUMNS
        return tir.seq(
            [
                self._share(c * k, lambda n, _: self._vectors(n, head)),
                self._share(c * w, lambda n, _: self._amounts(n, head)),
                all_wait(),
                self._share(c * c, self._triangles),
                all_wait(),
                self._pass_on(),
                all_wait(),
                self._share(c * w, self._project),
                all_wait(),
                loop("t", c, self._solve, dtype=self.index),
                all_wait(),
                self._share(c * w, lambda n, turn: self._emit(n, turn, head)),
                self._share(self.padded, self._advance),
                all_wait(),
            ]
        )

    def _vectors(self, number: Any, head: Any) -> Any:
        rule, t, i = self.rule, number // self.rows, number % self.rows
        inside = head + t < rule.time.extent
        pairs = [
            (self.gates, rule.gate, one(self.dtype)),
            (self.into, rule.into, zero(self.dtype)),
            (self.source, rule.source, zero(self.dtype)),
            *(
                (b, read.weight, zero(self.dtype))
                for b, read in zip(self.weights, rule.reads, strict=True)
            ),
        ]
        return tir.seq(
            tirx.BufferStore(
                b,
                tirx.op.if_then_else(inside, self.places.at(e, t=head + t, row=i), other),
                [number],
            )
            for b, e, other in pairs
        )

    def _amounts(self, number: Any, head: Any) -> Any:
        rule, t, v = self.rule, number // _COLUMNS, number % _COLUMNS
        inside = tirx.And(head + t < rule.time.extent, self._exists(v))
        return tir.seq(
            tirx.BufferStore(
                b,
                tirx.op.if_then_else(
                    inside, self.places.at(e, t=head + t, column=v), zero(self.dtype)
                ),
                [number],
            )
            for b, e in ((self.rate, rule.rate), (self.update, rule.drive))
        )

    def _triangles(self, number: Any, _: Any) -> Any:
        """An entry of every triangle: vectors of step t and s, with the gates between them."""
        t, s, k = number // self.chunk, number % self.chunk, self.rows

        def entry(buffer: Var, vectors: Var, after: bool) -> Any:
            last = t + 1 if after else t

            def term(i: Any) -> Any:
                return self._load(vectors, t * k + i) * self._load(self.factor, 0)

            def dot(i: Any) -> Any:
                def gate(r: Any) -> Any:
                    value = self._load(self.factor, 0) * self._load(self.gates, (s + 1 + r) * k + i)
                    return tirx.BufferStore(self.factor, value, [0])

                return tir.seq(
                    [
                        tirx.BufferStore(self.factor, self._load(self.into, s * k + i), [0]),
                        loop("r", last - s - 1, gate, dtype=self.index),
                        tirx.BufferStore(self.total, self._load(self.total, 0) + term(i), [0]),
                    ]
                )

            return tir.seq(
                [
                    tirx.BufferStore(self.total, zero(self.dtype), [0]),
                    when(s < last, loop("i", k, dot, dtype=self.index)),
                    tirx.BufferStore(buffer, self._load(self.total, 0), [number]),
                ]
            )

        return tir.seq(
            [
                entry(self.lower, self.source, False),
                *(
                    entry(b, w, read.after)
                    for b, w, read in zip(self.readers, self.weights, self.rule.reads, strict=True)
                ),
            ]
        )

    def _pass_on(self) -> Any:
        """Gates since the head of the chunk into the vectors, and those until its end."""
        k, c = self.rows, self.chunk
        reads = list(zip(self.weights, self.rule.reads, strict=True))

        def scale(buffer: Var, at: Any, turn: Any) -> Any:
            value = self._load(buffer, at) * self._load(self.gone, turn)
            return tirx.BufferStore(buffer, value, [at])

        def gate(at: Any, turn: Any) -> Any:
            value = self._load(self.gone, turn) * self._load(self.gates, at)
            return tirx.BufferStore(self.gone, value, [turn])

        def forward(at: Any, turn: Any) -> Any:
            return tir.seq(
                [
                    scale(self.source, at, turn),
                    *(scale(w, at, turn) for w, read in reads if not read.after),
                    gate(at, turn),
                    *(scale(w, at, turn) for w, read in reads if read.after),
                ]
            )

        def backward(at: Any, turn: Any) -> Any:
            return tir.seq([scale(self.into, at, turn), gate(at, turn)])

        def begin(_: Any, turn: Any) -> Any:
            return tirx.BufferStore(self.gone, one(self.dtype), [turn])

        def keep(i: Any, turn: Any) -> Any:
            return tirx.BufferStore(self.passed, self._load(self.gone, turn), [i])

        # A barrier may not stand under a condition: the loops over steps go outside.
        def walk(step: Callable[[Any, Any], Any], at: Callable[[Any], Any]) -> Any:
            return loop(
                "t",
                c,
                lambda t: self._share(k, lambda i, turn: step(at(t) * k + i, turn)),
                dtype=self.index,
            )

        return tir.seq(
            [
                self._share(k, begin),
                walk(forward, lambda t: t),
                self._share(k, keep),
                self._share(k, begin),
                walk(backward, lambda t: (c - 1) - t),
            ]
        )

    def _project(self, number: Any, turn: Any) -> Any:
        """What the steps read of the state at the head of the chunk."""
        t, v, k = number // _COLUMNS, number % _COLUMNS, self.rows

        def product(vectors: Var) -> list[Any]:
            return self._sum(
                k,
                lambda i: self._load(vectors, t * k + i) * self._load(self.state, i * _COLUMNS + v),
            )

        stmts = [
            *product(self.source),
            tirx.BufferStore(self.known, self._load(self.total, 0), [number]),
        ]
        for weights, out in zip(self.weights, self.outs, strict=True):
            stmts += product(weights)
            stmts.append(tirx.BufferStore(out, self._load(self.total, 0), [turn]))
        return tir.seq(stmts)

    def _solve(self, t: Any) -> Any:
        """Forward substitution: step ``t``, a thread for each column."""
        v, c = self.thread % _COLUMNS, self.chunk
        at = t * _COLUMNS + v
        total = self._sum(
            t,
            lambda s: self._load(self.lower, t * c + s) * self._load(self.update, s * _COLUMNS + v),
            self._load(self.known, at),
        )
        value = self._load(self.update, at)
        value = value + self._load(self.rate, at) * self._load(self.total, 0)
        store = tirx.BufferStore(self.update, value, [at])
        # TVM puts no barrier under a condition: every warp sums, one of them stores.
        return tir.seq([*total, all_wait(), when(self.thread < _COLUMNS, store), all_wait()])

    def _emit(self, number: Any, turn: Any, head: Any) -> Any:
        t, v, c = number // _COLUMNS, number % _COLUMNS, self.chunk
        stmts: list[Any] = []
        for read, lower, out in zip(self.rule.reads, self.readers, self.outs, strict=True):

            def term(s: Any, lower: Var = lower) -> Any:
                return self._load(lower, t * c + s) * self._load(self.update, s * _COLUMNS + v)

            # Zero times a later infinity would be none: what comes later is not read.
            stmts += self._sum(t + int(read.after), term, self._load(out, turn))
            stmts.append(tirx.BufferStore(out, self._load(self.total, 0), [turn]))
        inside = tirx.And(head + t < self.rule.time.extent, self._exists(v))
        emit = self.places.emit(head + t, v, [self._load(out, turn) for out in self.outs])
        return tir.seq([*stmts, when(inside, emit)])

    def _advance(self, number: Any, _: Any) -> Any:
        """A cell of the state after the chunk."""
        v, k = number % _COLUMNS, self.rows
        i = tirx.Min(number // _COLUMNS, int_const(k - 1, self.index))
        total = self._sum(
            self.chunk,
            lambda s: self._load(self.into, s * k + i) * self._load(self.update, s * _COLUMNS + v),
            self._load(self.passed, i) * self._load(self.state, number),
        )
        return tir.seq([*total, tirx.BufferStore(self.state, self._load(self.total, 0), [number])])
