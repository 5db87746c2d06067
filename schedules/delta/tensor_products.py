"""Products of a chunk on tensor cores: the triangles, what steps read, and what they add.

``gpu_tensor`` has the phases around them and what becomes of gates; ``tensor_tiles`` says where a
warp's cells are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.ir import Var
from tvm.tirx import ForKind

from tvm_scan import tir
from tvm_scan.algebra.literal import zero
from tvm_scan.delta_rule import DeltaRule
from tvm_scan.schedules.common.ir import int_const, local, loop, when
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
from tvm_scan.schedules.machine.tensor_cores import FRAGMENT, multiply, split

#: Tiles whose sums a warp has at once.
_AT_ONCE = 4
#: Cells of a thread in a tile of sums.
_CELLS = 4


class TensorProducts(DeltaBlock):
    """A block whose warps have the state in registers.

    Parameters
    ----------
    rule : DeltaRule
        What to build, in float32.
    chunk, threads : int
        Steps of a chunk, and threads.
    """

    def __init__(self, rule: DeltaRule, chunk: int, threads: int) -> None:
        self.tiles = tiles = Tiles.of(int(rule.rows.extent), threads)
        super().__init__(rule, chunk, threads, tiles.stride)
        c, cells = self.steps, self.steps * COLUMNS
        self.uniform = is_uniform(rule)
        self.gated = is_gated(rule)
        lane_in_warp = self.thread % 32
        self.g, self.f, self.warp = lane_in_warp // 4, lane_in_warp % 4, self.thread // 32
        self.column = self.warp % 2 * ACROSS + self.g
        self.group = self.warp // 2

        def shared(name: str, count: int) -> Var:
            return local(name, [count], self.dtype, "shared")

        def registers(name: str, count: int) -> Var:
            return local(name, [count], self.dtype)

        self.state = registers("matrix", tiles.per_group * _CELLS)
        self.table = shared("between", (c + 1) ** 2)
        if self.uniform:
            self.gates = shared("gates", c)
        # What the groups of a block have of it each.
        self.known = [shared(f"known{n}", tiles.groups * cells) for n in self.reading]
        self.seen_heads = [
            shared(f"seen{n}", tiles.groups * cells) for n, _ in enumerate(rule.reads)
        ]
        self.outs = [registers(f"out{n}", 1) for n, _ in enumerate(rule.reads)]
        self.sums, self.parts = (
            registers("sums", FRAGMENT * _AT_ONCE),
            registers("parts", 2 * FRAGMENT),
        )
        self.pair, self.pairs = registers("pair", 2), registers("pairs", 4)
        self.solved = {n: registers(f"solved{n}", c) for n in self.reading}
        self.readers_of = octets_of([*self.source, *self.weights], c)
        self.terms_of = octets_of(self.into, c)

    # ---- tiles --------------------------------------------------------------------------------

    def _each_tile(self, make: Callable[[Any], Any]) -> Any:
        return loop("tile", self.tiles.per_group, make, ForKind.UNROLLED, self.index)

    def _row(self, tile: Any) -> Any:
        """First row of one of the warp's tiles."""
        return (self.group * self.tiles.per_group + tile) * OCTET

    def _each_cell(self, make: Callable[[Any, Any, Any], Any]) -> Any:
        """``make(row, column, register)`` for all cells of the state that a thread has."""

        def of_tile(tile: Any) -> Any:
            row = self._row(tile) + 2 * self.f
            return tir.seq(
                make(row + n % 2, self.column + n // 2 * 8, tile * _CELLS + n)
                for n in range(_CELLS)
            )

        return self._each_tile(of_tile)

    @property
    def _has_table(self) -> bool:
        return self.gated and self.uniform

    def _gates_between(self, first: Any, last: Any) -> Any:
        """Product of the gates from step ``first`` on, before ``last``; None for 1."""
        return self._load(self.table, first * (self.steps + 1) + last) if self._has_table else None

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

    def _multiply(self, tile: int, octet: Octet, row: Any) -> list[Any]:
        """Add to a tile's sums the product with the vectors of an octet, at 8 rows."""
        cells = [self._load(self.pair, 0), self._load(self.pair, 1)]
        return [
            self._neighbours(self.pair, 0, octet.vectors, octet.first + self.g, row),
            multiply(self.sums, tile * FRAGMENT, self.parts, 0, cells),
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
                    self._neighbours(self.pairs, 2 * n, octet.vectors, octet.first + self.g, row)
                    for n, octet in enumerate(pair)
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
        """Products of the steps with the state at the head of the chunk, of the warp's rows."""
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

        stores = [keep(n, octet, cell) for n, octet in enumerate(octets) for cell in range(_CELLS)]
        return tir.seq([self._clear(len(octets)), self._each_tile(of_tile), *stores])

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
        """Amount that a step adds to a column, with the gates after it if all rows have one."""
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


def _meet(reader: int, term: int, run: int | None) -> bool:
    """Return whether an octet of vectors that read has entries with one of terms."""
    if run is None:
        return term <= reader
    return any(
        (t == s) if run == 0 else (t // run % 2 == 1 and s // run == t // run - 1)
        for t in range(reader, reader + OCTET)
        for s in range(term, term + OCTET)
    )
