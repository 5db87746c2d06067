"""GPU executor of the delta rule's chunks: a block takes them for some columns of a matrix.

Everything of a chunk is in shared memory: the vectors of its steps, the state of the block's
columns, and the triangles. A thread makes entries of the triangles from whole
vectors; a column's system is solved by one thread; products are one cell of the result at a time,
the columns of a warp side by side, so that reads of the state meet no bank conflicts.

Barriers: six a chunk, and a few for each of its steps. Shared memory:
``shared_bytes``. Read ``chunk`` first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any

from tvm import tirx
from tvm.ir import Var
from tvm.target import Target

from tvm_scan import tir
from tvm_scan.algebra.literal import one, zero
from tvm_scan.delta_rule import DeltaRule
from tvm_scan.schedules.common.ir import (
    Kernel,
    at_least_one,
    bound_loop,
    int_const,
    local,
    loop,
    when,
)
from tvm_scan.schedules.common.result import Built
from tvm_scan.schedules.delta.chunk import Chunk, Product, scale
from tvm_scan.schedules.gpu.thread.barriers import all_wait
from tvm_scan.schedules.machine.machine import Machine

__all__ = ["build_delta_blocks", "fits_block", "shared_bytes", "why_unfit"]

#: Threads of a block, and its columns: a warp.
_THREADS, _COLUMNS = 128, 32
#: Steps of a chunk, largest first.
_CHUNKS = (16, 8, 4)


def shared_bytes(rule: DeltaRule, chunk: int) -> int:
    """Shared memory of a block."""
    rows, terms = tir.as_int(rule.rows.extent) or 0, len(rule.terms)
    reading = sum(term.source is not None for term in rule.terms)
    readers = reading + len(rule.reads)
    vectors = (1 + terms + readers) * chunk * rows + rows
    triangles = terms * readers * chunk * chunk
    by_step = terms + 2 * reading + (rule.column_gate is not None)
    columns = (rows + 3 + by_step * chunk) * _COLUMNS
    return (vectors + triangles + columns) * tir.byte_size(rule.dtype)


def fits_block(rule: DeltaRule, target: Target) -> int:
    """Return the steps of the largest chunk that a block can take; 0 where it can take none."""
    machine = Machine.of(target)
    if _expected(rule, machine) is not None:
        return 0
    return next(c for c in _CHUNKS if shared_bytes(rule, c) <= machine.shared_bytes)


def why_unfit(rule: DeltaRule, target: Target) -> str:
    """Return what a target would need that cannot run a delta rule in chunks."""
    expected, found = _expected(rule, Machine.of(target)) or ("nothing more", "all")
    return f"expected {expected}, found {found}; run its loop as it was written"


def _expected(rule: DeltaRule, machine: Machine) -> tuple[str, str] | None:
    """A need that a device does not meet, and what it has instead; None where it meets all."""
    device, least = machine.device, _CHUNKS[-1]
    if machine.threads < _THREADS:
        return f"a device with blocks of {_THREADS} threads", f"{machine.threads} threads"
    arrays = tir.VarMap((array, True) for array in (*rule.inputs, *rule.outputs))
    if len(arrays) > device.buffers:
        return f"at most {device.buffers} buffers in a kernel of {device.name}", f"{len(arrays)}"
    for array in arrays.keys():
        if (dtype := tir.dtype_of(array)) in device.lacks:
            return f"dtypes that {device.name} has", f"{dtype} for {array.name}"
    if (size := shared_bytes(rule, least)) > machine.shared_bytes:
        return (
            f"a chunk of {least} steps to fit into the {machine.shared_bytes} bytes of shared "
            "memory of a block",
            f"that it takes {size}",
        )
    return None


def build_delta_blocks(rule: DeltaRule, target: Target) -> Built:
    """One block for every matrix and 32 of its columns.

    Parameters
    ----------
    rule : DeltaRule
        One that ``fits_block``.
    target : tvm.target.Target
        Of a GPU.

    Returns
    -------
    Built
    """
    return Built([_Block(rule, fits_block(rule, target)).nest()], [])


class _Block(Chunk):
    """One block; ``thread`` is the number of a thread in it."""

    def __init__(self, rule: DeltaRule, chunk: int) -> None:
        super().__init__(rule, chunk, _COLUMNS, "shared")
        self.thread = tirx.Var("v_thread", self.index)
        self.across = -(-self.columns // _COLUMNS)
        self.task, self.total = self.assign_task(self.across, _COLUMNS)
        # Rows that fill the threads: none of them asks whether its cell is there.
        self.padded = -(-self.rows * _COLUMNS // _THREADS) * _THREADS
        cells = chunk * _COLUMNS
        self.state = local("matrix", [self.padded], self.dtype, "shared")
        self.known = [local(f"known{n}", [cells], self.dtype, "shared") for n in self.reading]
        self.drive = [self.update[n] for n in self.reading]
        self.outs = [
            local(f"out{n}", [-(-cells // _THREADS)], self.dtype) for n, _ in enumerate(rule.reads)
        ]
        self.sum, self.factor = local("total", [1], self.dtype), local("factor", [1], self.dtype)
        self.gone = local("gone", [-(-self.rows // _THREADS)], self.dtype)
        self.buffers += [self.state, self.gates, *self.into, *self.source, self.passed]
        self.buffers += [*self.weights, *chain(*self.lower, *self.readers)]
        self.buffers += [*self.update, *self.rate, *self.known]
        self.buffers += [] if self.fade is None else [self.fade]
        self.buffers += [*self.outs, self.sum, self.factor, self.gone]

    def nest(self) -> Any:
        """The grid."""
        rule, task, blocks = self.rule, self.task, at_least_one(self.total)
        kernel = Kernel("delta_block", rule.inputs, rule.outputs, self._body(), self.buffers)
        threads = int_const(_THREADS, self.index)

        def thread(bx: Any, tx: Any) -> Any:
            return kernel.block([(task, blocks, bx), (self.thread, threads, tx)])

        return bound_loop(
            "bx",
            "blockIdx.x",
            blocks,
            lambda bx: bound_loop("tx", "threadIdx.x", threads, lambda tx: thread(bx, tx)),
        )

    # ---- parts --------------------------------------------------------------------------------

    def _share(self, count: int, make: Callable[[Any, Any], Any]) -> Any:
        """``make(number, slot)`` for ``count`` numbers, the thread's own counted by ``slot``."""

        def of_thread(n: Any) -> Any:
            number = n * _THREADS + self.thread
            code = make(number, n)
            return code if count % _THREADS == 0 else when(number < count, code)

        return loop("n", -(-count // _THREADS), of_thread, dtype=self.index)

    def _present(self, inside: Any) -> Any:
        """``inside``, where the block has a matrix: a grid has one block at least.

        The barriers stand under no condition, so that all accesses to memory do.
        """
        return inside if tir.as_int(self.total) else tirx.And(self.task < self.total, inside)

    def _exists(self, column: Any) -> Any:
        return self._present(self.memory.origin + column < self.columns)

    def _load(self, buffer: Var, at: Any) -> Any:
        return tirx.BufferLoad(buffer, [at])

    def _cell(self, product: Product, row: Any, column: Any, at: Any) -> Any:
        """Statements that leave in ``sum`` the cell of a product that its result has at ``at``."""

        def add(left: Var, right: Var, j: Any) -> Any:
            value = product.factor(left, row, j) * self._load(right, j * _COLUMNS + column)
            return tirx.BufferStore(self.sum, self._load(self.sum, 0) + value, [0])

        def through(j: Any) -> Any:
            assert product.fade is not None, "only gates of the columns are passed in order"
            gate = self._load(product.fade, j * _COLUMNS + column)
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

    def _body(self) -> Any:
        def begin(number: Any, _: Any) -> Any:
            i, v = number // _COLUMNS, number % _COLUMNS
            value = tirx.op.if_then_else(self._exists(v), self.memory.first(i, v), zero(self.dtype))
            return tirx.BufferStore(self.state, value, [number])

        def end(number: Any, _: Any) -> Any:
            i, v = number // _COLUMNS, number % _COLUMNS
            return when(self._exists(v), self.memory.last(i, v, self._load(self.state, number)))

        cells = self.rows * _COLUMNS
        return tir.seq(
            [
                self._share(cells, begin),
                self.each_chunk(self._chunk),
                self._share(cells, end) if self.is_stored else None,
            ]
        )

    def _chunk(self, head: Any) -> Any:
        c, k, w = self.steps, self.rows, _COLUMNS
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
                self._share(c * w, lambda n, slot: self._emit(n, slot, head)),
                self._share(self.padded, self._advance),
                all_wait(),
            ]
        )

    def _vectors(self, number: Any, head: Any) -> Any:
        time, i = head + number // self.rows, number % self.rows
        inside = self._present(time < self.rule.time.extent)
        values = [(b, self.memory.at(e, t=time, row=i), other) for b, e, other in self.vectors]
        return self._fill(values, number, inside)

    def _amounts(self, number: Any, head: Any) -> Any:
        time, v = head + number // _COLUMNS, number % _COLUMNS
        inside = tirx.And(time < self.rule.time.extent, self._exists(v))
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

        def forward(at: Any, slot: Any) -> Any:
            return self.pass_on(at, self.gone, slot)

        def backward(at: Any, slot: Any) -> Any:
            vectors = [scale(into, at, self.gone, slot) for into in self.into]
            return tir.seq([*vectors, self.pass_gate(at, self.gone, slot)])

        def begin(_: Any, slot: Any) -> Any:
            return tirx.BufferStore(self.gone, one(self.dtype), [slot])

        def keep(i: Any, slot: Any) -> Any:
            return tirx.BufferStore(self.passed, self._load(self.gone, slot), [i])

        # A barrier may not stand under a condition: the loops over steps go outside.
        def over_steps(step: Callable[[Any, Any], Any], at: Callable[[Any], Any]) -> Any:
            return loop(
                "t",
                c,
                lambda t: self._share(k, lambda i, slot: step(at(t) * k + i, slot)),
                dtype=self.index,
            )

        return tir.seq(
            [
                self._share(k, begin),
                over_steps(forward, lambda t: t),
                self._share(k, keep),
                self._share(k, begin),
                over_steps(backward, lambda t: (c - 1) - t),
            ]
        )

    def _project(self, number: Any, slot: Any) -> Any:
        """Compute what the steps read of the state at the head of the chunk."""
        t, v = number // _COLUMNS, number % _COLUMNS
        products, count = self.of_head, len(self.known)
        return tir.seq(
            self._times(p, t, v, number if n < count else slot) for n, p in enumerate(products)
        )

    def _solve(self, t: Any) -> Any:
        """Forward substitution: step ``t``, a thread for each column."""
        v = self.thread % _COLUMNS
        at = t * _COLUMNS + v

        def row(number: int) -> list[Any]:
            system = self.system(number)
            value = self._load(self.rate[number], at) * self._load(self.sum, 0)
            value = self._load(self.drive[number], at) + value
            # TVM puts no barrier under a condition: every warp sums, one of them stores.
            one_warp = when(self.thread < _COLUMNS, tirx.BufferStore(system.result, value, [at]))
            return [self._cell(system, t, v, at), all_wait(), one_warp, all_wait()]

        return tir.seq(stmt for number, _ in enumerate(self.reading) for stmt in row(number))

    def _emit(self, number: Any, slot: Any, head: Any) -> Any:
        t, v = number // _COLUMNS, number % _COLUMNS
        inside = tirx.And(head + t < self.rule.time.extent, self._exists(v))
        emit = self.memory.emit(head + t, v, [self._load(out, slot) for out in self.outs])
        return tir.seq([*(self._times(p, t, v, slot) for p in self.outputs), when(inside, emit)])

    def _advance(self, number: Any, _: Any) -> Any:
        """A cell of the state after the chunk; ``into`` has the gates until its end."""
        i = tirx.Min(number // _COLUMNS, int_const(self.rows - 1, self.index))
        product = self.advance(self.into, self.steps, True)
        return self._times(product, i, number % _COLUMNS, number)
