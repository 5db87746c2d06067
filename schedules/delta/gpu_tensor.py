"""GPU executor of the delta rule's chunks on tensor cores: the large products, in three of tf32.

Those are: every pair of vectors (the triangles), what the steps read of the state at the head of a
chunk, and what they add to it. The state is in registers (``tensor_tiles``). Forward substitution
and what an output reads of its own chunk stay multiply-adds: one thread for a column, and rows that
end where later steps begin, since zero times an infinity is none.

Gates. Where all rows have one, its products between any two steps are a table, with which results
are multiplied. Else the triangles are made in levels: of two neighbouring runs of 1, 2, 4 .. steps
the vectors of the later one have the gates since its first step, those of the earlier one the gates
until its last, so that their products have all gates between, and none is divided by. After each
level the vectors get the gates of the other run, and after the last one have those since the head of
the chunk, and until its end. A vector that is read after the gate of its step has that from the
beginning, but where it meets the vectors of its own step.

Barriers of a chunk: 4, or 5 with a table; 3 and two for each level, where rows have their own gates.
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
from tvm_scan.schedules.common.ir import int_const, local, loop, when
from tvm_scan.schedules.delta.chunk import scale
from tvm_scan.schedules.delta.gpu import DeltaBlock
from tvm_scan.schedules.delta.gpu_block import COLUMNS
from tvm_scan.schedules.delta.tensor_tiles import (
    ACROSS,
    OCTET,
    Octet,
    Tiles,
    is_gated,
    is_uniform,
    octets_of,
    pairs_of,
)
from tvm_scan.schedules.gpu.thread.barriers import all_wait, hidden
from tvm_scan.schedules.machine.tensor_cores import FRAGMENT, multiply, split

__all__ = ["build_tensor_blocks"]

#: Tiles whose sums a warp has at once.
_AT_ONCE = 4
#: Cells of a lane in a tile of sums.
_CELLS = 4


def build_tensor_blocks(rule: DeltaRule, steps: int, threads: int) -> Any:
    """One block for every matrix and 32 of its columns, as a loop nest.

    Parameters
    ----------
    rule : DeltaRule
        What to build, in float32.
    steps, threads : int
        Of a chunk: 8 or 16, and of a block: 2, 4 or 8 warps.
    """
    block = _TensorBlock(rule, steps, threads)
    return block.grid("delta_block", block.body(), rule.outputs)


class _TensorBlock(DeltaBlock):
    def __init__(self, rule: DeltaRule, chunk: int, threads: int) -> None:
        self.tiles = tiles = Tiles.of(int(rule.rows.extent), threads)
        super().__init__(rule, chunk, threads, tiles.stride)
        c, cells = self.steps, self.steps * COLUMNS
        self.uniform = is_uniform(rule)
        self.gated = is_gated(rule)
        lane = self.thread % 32
        self.g, self.f, self.warp = lane // 4, lane % 4, self.thread // 32
        self.column = self.warp % 2 * ACROSS + self.g
        self.group = self.warp // 2

        def shared(name: str, count: int) -> Var:
            return local(name, [count], self.dtype, "shared")

        def own(name: str, count: int) -> Var:
            return local(name, [count], self.dtype)

        self.state = own("matrix", tiles.own * _CELLS)
        self.table = shared("between", (c + 1) ** 2)
        if self.uniform:
            self.gates = shared("gates", c)
        # What the groups of a block have of it each.
        self.known = [shared(f"known{n}", tiles.groups * cells) for n in self.reading]
        self.seen_heads = [
            shared(f"seen{n}", tiles.groups * cells) for n, _ in enumerate(rule.reads)
        ]
        self.outs = [own(f"out{n}", 1) for n, _ in enumerate(rule.reads)]
        self.sums, self.parts = own("sums", FRAGMENT * _AT_ONCE), own("parts", 2 * FRAGMENT)
        self.pair, self.pairs = own("pair", 2), own("pairs", 4)
        self.solved = {n: own(f"solved{n}", c) for n in self.reading}
        self.readers_of = octets_of([*self.source, *self.weights], c)
        self.terms_of = octets_of(self.into, c)
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

    def _each_tile(self, make: Callable[[Any], Any]) -> Any:
        return loop("tile", self.tiles.own, make, ForKind.UNROLLED, self.index)

    def _row(self, tile: Any) -> Any:
        """First row of one of the warp's tiles."""
        return (self.group * self.tiles.own + tile) * OCTET

    def _each_cell(self, make: Callable[[Any, Any, Any], Any]) -> Any:
        """``make(row, column, register)`` for all cells of the state that a thread has."""

        def of_tile(tile: Any) -> Any:
            row = self._row(tile) + 2 * self.f
            return tir.seq(
                make(row + n % 2, self.column + n // 2 * 8, tile * _CELLS + n)
                for n in range(_CELLS)
            )

        return self._each_tile(of_tile)

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
    def _has_table(self) -> bool:
        return self.gated and self.uniform

    @property
    def vectors(self) -> list[tuple[Var, Any, Any]]:
        """Those that rows have their own cells of."""
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

    def _gates_between(self, first: Any, last: Any) -> Any:
        """Product of the gates from step ``first`` on, before ``last``; None for 1."""
        return self._load(self.table, first * (self.steps + 1) + last) if self._has_table else None

    def _levels(self) -> list[Any]:
        stmts: list[Any] = []
        after = [v for v, seen in zip([*self.source, *self.weights], self.seen, strict=True) if seen]
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

    # ---- products -----------------------------------------------------------------------------

    def _clear(self, tiles: int) -> Any:
        return tir.seq(
            tirx.BufferStore(self.sums, zero(self.dtype), [int_const(n, "int32")])
            for n in range(tiles * FRAGMENT)
        )

    def _total(self, tile: int, cell: int) -> Any:
        at = tile * FRAGMENT + cell
        return self._load(self.sums, at) + self._load(self.sums, at + _CELLS)

    def _neighbours(self, to: Var, at: int, vectors: Var, step: Any, row: Any) -> Any:
        """Load rows ``row + 2 f`` and the one after it of the vector of a step."""
        first = step * self.stride + row + 2 * self.f
        value = tirx.BufferLoad(vectors, [tirx.Ramp(first, int_const(1, self.index), 2)])
        one_apart = int_const(1, "int32")
        return tirx.BufferStore(to, value, [tirx.Ramp(int_const(at, "int32"), one_apart, 2)])

    def _multiply(self, tile: int, octet: Octet, row: Any, parts: Any = 0) -> list[Any]:
        """Add to a tile's sums the product with the vectors of an octet, at 8 rows."""
        cells = [self._load(self.pair, 0), self._load(self.pair, 1)]
        return [
            self._neighbours(self.pair, 0, octet.vectors, octet.first + self.g, row),
            multiply(self.sums, tile * FRAGMENT, self.parts, parts, cells),
        ]

    def _triangle_tiles(self, run: int | None) -> Any:
        """All entries of the triangles; those between runs of steps, or of step with itself (0)."""
        tiles = [
            (pair, octet)
            for pair in pairs_of(self.readers_of)
            for octet in self.terms_of
            if any(_meet(reader.first, octet.first, run) for reader in pair)
        ]
        each = -(-len(tiles) // self.tiles.warps)
        stmts = []
        for warp in range(self.tiles.warps):
            mine = tiles[warp * each : (warp + 1) * each]
            batches = [mine[at : at + _AT_ONCE] for at in range(0, len(mine), _AT_ONCE)]
            code = tir.seq(self._entries(batch, run) for batch in batches)
            stmts.append(when(tirx.EQ(self.warp, int_const(warp, self.index)), code))
        return tir.seq(stmts)

    def _entries(self, tiles: list[tuple[tuple[Octet, ...], Octet]], run: int | None) -> Any:
        pairs = list(dict.fromkeys(pair for pair, _ in tiles))

        def of_rows(k: Any) -> Any:
            row, stmts = k * OCTET, []
            for pair in pairs:
                stmts += [
                    self._neighbours(self.pairs, 2 * n, one.vectors, one.first + self.g, row)
                    for n, one in enumerate(pair)
                ]
                both = [0, 2, 1, 3] if len(pair) == 2 else [0, None, 1, None]
                none = zero(self.dtype)
                cells = [none if n is None else self._load(self.pairs, n) for n in both]
                stmts.append(split(self.parts, 0, cells))
                for n, (other, octet) in enumerate(tiles):
                    stmts += self._multiply(n, octet, row) if other is pair else []
            return tir.seq(stmts)

        stored = [
            self._entry(pair[cell // 2], octet, cell, self._total(n, cell), run)
            for n, (pair, octet) in enumerate(tiles)
            for cell in range(2 * len(pair))
        ]
        products = loop("k", self.tiles.depth // OCTET, of_rows, dtype=self.index)
        return tir.seq([self._clear(len(tiles)), products, *stored])

    def _entry(self, reader: Octet, term: Octet, cell: int, value: Any, run: int | None) -> Any:
        """Store an entry of a triangle, where it is one of those that are made."""
        triangle = [*self.lower, *self.readers][reader.number][term.number]
        after = bool(self.seen[reader.number])
        t, s = reader.first + self.g, term.first + 2 * self.f + cell % 2
        if run is None:
            last = t + int(after)
            gates = self._gates_between(s + 1, last)
            holds, value = s < last, value if gates is None else value * gates
        elif run == 0:
            holds = tirx.And(tirx.EQ(t, s), tirx.const(after, "bool"))
        else:
            holds = tirx.And((t // run % 2).equal(1), (s // run).equal(t // run - 1))
        return when(tir.simplify(holds), tirx.BufferStore(triangle, value, [t * self.steps + s]))

    def _project_tiles(self) -> Any:
        """What the steps read of the state at the head of the chunk, of the warp's rows."""
        batches = [
            self.readers_of[at : at + _AT_ONCE] for at in range(0, len(self.readers_of), _AT_ONCE)
        ]
        return tir.seq(self._project_octets(batch) for batch in batches)

    def _project_octets(self, octets: list[Octet]) -> Any:
        def of_tile(tile: Any) -> Any:
            cells = [self._load(self.state, tile * _CELLS + n) for n in (0, 2, 1, 3)]
            stmts = [split(self.parts, 0, cells)]
            for n, octet in enumerate(octets):
                stmts += self._multiply(n, octet, self._row(tile))
            return tir.seq(stmts)

        def keep(n: int, octet: Octet, cell: int) -> Any:
            heads = [*self.known, *self.seen_heads][octet.number]
            t = octet.first + 2 * self.f + cell % 2
            gates = self._gates_between(0, t + int(bool(self.seen[octet.number])))
            value = self._total(n, cell) if gates is None else self._total(n, cell) * gates
            at = (self.group * self.steps + t) * COLUMNS + self.column + cell // 2 * 8
            return tirx.BufferStore(heads, value, [at])

        kept = [keep(n, octet, cell) for n, octet in enumerate(octets) for cell in range(_CELLS)]
        return tir.seq([self._clear(len(octets)), self._each_tile(of_tile), *kept])

    def _advance_tiles(self) -> Any:
        """The state after the chunk."""
        passed = self._each_cell(self._through_gates) if self.gated else None
        if self.fade is not None:
            return tir.seq([passed, loop("j", self.steps, self._add_step, dtype=self.index)])
        return tir.seq([passed, *(self._add_term(n) for n, _ in enumerate(self.into))])

    def _through_gates(self, row: Any, _: Any, at: Any) -> Any:
        gates = self._gates_between(0, self.steps)
        gates = self._load(self.gates, row) if gates is None else gates
        return tirx.BufferStore(self.state, self._load(self.state, at) * gates, [at])

    def _amount(self, term: int, step: Any, column: Any) -> Any:
        """What a step adds to a column, with the gates after it if all rows have one."""
        value = self._load(self.update[term], step * COLUMNS + column)
        gates = self._gates_between(step + 1, self.steps)
        return value if gates is None else value * gates

    def _add_term(self, term: int) -> Any:
        octets = [octet for octet in self.terms_of if octet.number == term]
        stmts = []
        for n, octet in enumerate(octets):
            steps = [octet.first + self.f, octet.first + self.f + 4]
            cells = [self._amount(term, t, self.column + v) for t in steps for v in (0, 8)]
            stmts.append(split(self.parts, n * FRAGMENT, cells))

        def of_tile(tile: Any) -> Any:
            row, code = self._row(tile) + self.g, [self._clear(1)]
            for n, octet in enumerate(octets):
                steps = [octet.first + self.f, octet.first + self.f + 4]
                cells = [self._load(octet.vectors, t * self.stride + row) for t in steps]
                code.append(multiply(self.sums, 0, self.parts, n * FRAGMENT, cells))
            for cell in range(_CELLS):
                at = tile * _CELLS + cell
                value = self._load(self.state, at) + self._total(0, cell)
                code.append(tirx.BufferStore(self.state, value, [at]))
            return tir.seq(code)

        return tir.seq([*stmts, self._each_tile(of_tile)])

    def _add_step(self, step: Any) -> Any:
        """One step after another, where gates of the columns stand between them."""
        assert self.fade is not None, "without gates of the columns it is a product"

        def cell(row: Any, column: Any, at: Any) -> Any:
            value = self._load(self.fade, step * COLUMNS + column) * self._load(self.state, at)
            for n, into in enumerate(self.into):
                value = value + self._load(into, step * self.stride + row) * self._amount(
                    n, step, column
                )
            return tirx.BufferStore(self.state, value, [at])

        return self._each_cell(cell)

    # ---- multiply-adds ------------------------------------------------------------------------

    def _from_groups(self, heads: Var, at: Any) -> Any:
        cells = self.steps * COLUMNS
        value = self._load(heads, at)
        for group in range(1, self.tiles.groups):
            value = value + self._load(heads, group * cells + at)
        return value

    def _add_to_sum(self, value: Any) -> Any:
        return tirx.BufferStore(self.sum, self._load(self.sum, 0) + value, [0])

    def _fade_sum(self, step: Any, column: Any) -> Any:
        assert self.fade is not None
        gate = self._load(self.fade, step * COLUMNS + column)
        return tirx.BufferStore(self.sum, gate * self._load(self.sum, 0), [0])

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
                code = [] if self.fade is None else [when(j < t + min(seen, 1), self._fade_sum(j, v))]
                terms = [
                    self._add_to_sum(
                        self._load(triangle, t * self.steps + j)
                        * self._load(update, j * COLUMNS + v)
                    )
                    for triangle, update in zip(self.readers[n], self.update, strict=True)
                ]
                limits = [j < t + int(m < seen) for m, _ in enumerate(terms)]
                return tir.seq(
                    [*code, *(when(limit, add) for limit, add in zip(limits, terms, strict=True))]
                )

            begin = self._from_groups(self.seen_heads[n], number)
            stmts.append(tirx.BufferStore(self.sum, begin, [0]))
            stmts.append(loop("j", self.steps, step, ForKind.UNROLLED, self.index))
            stmts.append(tirx.BufferStore(out, self._load(self.sum, 0), [0]))
        inside = tirx.And(head + t < self.length, self.exists(v))
        emit = self.memory.emit(head + t, v, [self._load(out, 0) for out in self.outs])
        return tir.seq([*stmts, when(inside, emit)])


def _meet(reader: int, term: int, run: int | None) -> bool:
    """Whether an octet of vectors that read has entries with one of terms."""
    if run is None:
        return term <= reader
    return any(
        (t == s) if run == 0 else (t // run % 2 == 1 and s // run == t // run - 1)
        for t in range(reader, reader + OCTET)
        for s in range(term, term + OCTET)
    )
