"""CPU builder: three phases over chunks of time whose steps are vectors.

The carry before the first piece of a lane is known: it is scanned at once while the other tasks
reduce the pieces after it, and the last piece need not be reduced at all. A reduction takes about
half the time of a scan, so that the first piece is half as long as the others; with ``C`` tasks
``(2 C - 2) / (2 C + 1)`` of the steps are read twice. Where a lane is longer than the caches, the
phases follow one another over a tile of it before the next tile, so that the replay finds in the
cache what the reduction has read. A task that has replayed its piece of a tile goes on with that of
the next one: the task of the first piece has ended the tile before, and knows its carry; the others
reduce batch by batch between the vectors that they replay, so that memory brings the one while it
takes the other. So cores meet once for each tile. With ``prefetch`` a replay asks for the lines
that lie some pages behind those of the next tile's piece.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import Var
from tvm.tirx import ForKind

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.elements import Elements
from tvm_scan.schedules.common.ends import first_steps
from tvm_scan.schedules.common.ir import Kernel, Registers, as_dtype, int_const, loop, when
from tvm_scan.schedules.common.lanes import (
    carry_scratch,
    decode_lanes,
    guard_of,
    lane_count,
    state_buffers,
)
from tvm_scan.schedules.common.replica import Replica
from tvm_scan.schedules.common.result import Built
from tvm_scan.schedules.common.stack import on_lines, on_stack
from tvm_scan.schedules.cpu.line_stores import with_line_stores
from tvm_scan.schedules.cpu.plans import CpuPlan
from tvm_scan.schedules.cpu.time_vector import TimeVector

#: A kernel over tile, row and chunk, and the dtypes of the outputs that it stores by lines.
_Task = tuple[Kernel, list[str]]


@dataclass(frozen=True)
class _Part:
    """Statements of a task, their registers, and the dtypes of the outputs stored by lines."""

    stmts: list[Any]
    buffers: list[Var]
    dtypes: list[str]


class _Reduction:
    """Phase 1 of a piece: its element, from batches of vectors and what they leave.

    Attributes
    ----------
    batches, batch : Expr, callable
        How many batches, and the statement for the one of a number.
    rest : Stmt
        What the batches leave.
    """

    def __init__(
        self, phases: VectorPhases, plan: CpuPlan, tile: Any, chunk: Any, lanes: list[Any]
    ) -> None:
        vectors = TimeVector(phases.recurrence, lanes, plan)
        self._elements, self._single = phases.elements, vectors.single
        self._held = Elements(phases.recurrence, "held", [1], "local")
        self._at = [int_const(0, "int32")]
        registers = Registers(phases.recurrence.time.extent)
        begin = phases.beyond_first(registers.hold("begin", phases.start(tile, chunk)))
        twice = registers.hold("twice", phases.twice)
        reduction = vectors.reduction(self._held, self._at, begin, twice)
        self.batches, self.batch, self.rest = reduction
        self._vectors, self._registers = vectors, registers

    @property
    def before(self) -> list[Any]:
        """Return what stands before it, once all batches are made; last the element of no steps."""
        return [
            *self._registers.stores,
            self._vectors.begin(),
            self._single.prologue(),
            self._single.set_identity(self._held, self._at),
        ]

    @property
    def buffers(self) -> list[Var]:
        """Return its registers, once all batches are made."""
        return [*self._vectors.buffers, *self._held.buffers, *self._registers.buffers]

    def keep(self, at: list[Any]) -> Any:
        """Statement that stores the element."""
        return self._single.copy(self._elements, at, self._held, self._at)


class VectorPhases:
    """The first piece of a tile scanned, the others reduced, scanned, replayed; the next tile.

    The phases share the elements and carries of the pieces in memory.

    Parameters
    ----------
    recurrence : Recurrence
        One level, carries of one cell.
    plan : CpuPlan
        With ``time_vector``; ``cache_steps`` is the length of a tile.
    """

    def __init__(self, recurrence: Recurrence, plan: CpuPlan) -> None:
        self.recurrence, self.plan = recurrence, plan
        self.rows = lane_count(recurrence)
        self.dtype = tir.dtype_of(self.rows)
        self.time_dtype = tir.dtype_of(recurrence.time.var)
        self.chunks = int_const(plan.chunks, self.dtype)
        extent = recurrence.time.extent
        self.tiles = int_const(1, self.time_dtype)
        if plan.cache_steps:
            tiles = extent // int_const(plan.cache_steps, extent)
            self.tiles = tir.simplify(tirx.Max(tiles, int_const(1, extent)))
        units = int_const(2 * plan.chunks + 1, extent)
        each = tir.simplify(extent // self.tiles // units)
        # Whole batches of vectors, so that hardly a step is left over.
        batch = int_const(plan.time_vector * 2, extent)
        whole = tirx.Select(each >= batch * 4, each // batch * batch, each)
        #: Steps of the first piece; the others have twice as many.
        self.unit = tir.simplify(whole)
        self.twice = tir.simplify(self.unit * int_const(2, self.unit))
        self.step = tir.simplify(self.unit * units)
        self.first = first_steps(recurrence)
        self.elements = Elements(recurrence, "chunk", [self.rows, self.chunks], "global")
        self.one = int_const(1, self.dtype)
        self.is_tiled = tir.as_int(self.tiles) != 1
        # Slot p is the carry before piece p. That after the first piece has another one where the
        # tile before may still be replayed.
        self.after_first = self.chunks + self.one if self.is_tiled else self.one
        slots = self.chunks + self.one + int_const(self.is_tiled, self.dtype)
        self.carries = carry_scratch(recurrence, [self.rows, tir.simplify(slots)])

    def build(self) -> Built:
        """Nests and scratch."""
        scratch = [*self.elements.buffers, *self.carries]
        head = int_const(0, self.time_dtype)
        first = self._parallel(head, self.reduce)
        if not self.is_tiled:
            return Built([self.begin(), first, *self._on_from(head, self.replay)], scratch)
        tiles = loop("tile", self.tiles, lambda n: tir.seq(self._on_from(n, self._go_on)))
        return Built([self.begin(), first, tiles], scratch)

    def _on_from(self, n: Any, task: Callable[..., _Task]) -> list[Any]:
        """Carries of a tile that is reduced, and tasks that replay it."""
        return [self.scan(n), self._parallel(n, task)]

    def _go_on(self, tile: Any, row: Any, chunk: Any, lanes: list[Any]) -> _Task:
        """Phase 3 of a tile, and beside it phase 1 of the next one if there is one.

        A core that replays a piece reduces what it will replay next, while what it writes past the
        caches goes on.
        """
        following = tile + int_const(1, self.time_dtype)
        goes_on, first = following < self.tiles, tirx.EQ(chunk, tir.zero_like(chunk))
        reduction = _Reduction(self, self.plan.with_(prefetch=0), following, chunk, lanes)

        def beside(batch: Any) -> Any:
            return when(tirx.And(goes_on, tirx.Not(first)), reduction.batch(batch))

        replayed = self._replayed(tile, row, chunk, lanes, beside)
        scanned = self._first_piece(following, row, lanes)
        rest = tirx.IfThenElse(first, tir.seq(scanned.stmts), reduction.rest)
        body = [*reduction.before, *replayed.stmts, when(goes_on, rest)]
        body.append(reduction.keep([row, chunk]))
        buffers = [*replayed.buffers, *scanned.buffers, *reduction.buffers]
        return self._task("scan_replay", lanes, body, buffers), scanned.dtypes

    def _axes(self) -> tuple[Var, Var, Var, list[Any]]:
        """Block variables of one task (tile, row, chunk), and the row's lanes."""
        tile = tirx.Var("v_tile", self.time_dtype)
        row, chunk = tirx.Var("v_row", self.dtype), tirx.Var("v_chunk", self.dtype)
        return tile, row, chunk, decode_lanes(self.recurrence, row)

    def start(self, tile: Any, piece: Any) -> Any:
        """First step of a piece after the first one."""
        units = as_dtype(piece, self.time_dtype) * int_const(2, self.time_dtype)
        return tile * self.step + (units - int_const(1, self.time_dtype)) * self.unit

    def beyond_first(self, time: Any) -> Any:
        """A step behind the first ones, which have other elements, such that this can be proved.

        Gates that a condition on time chooses are numbers then: filters of order two by two chunks
        take a Zen 4 34 us else (30000 steps, vectors of 16), and 15 so.
        """
        unit = tir.as_int(self.unit)
        if not self.first or unit is None or unit < self.first:
            return time
        return tir.simplify(tirx.Max(time, int_const(self.first, time)))

    def begin(self) -> Any:
        """The carry before every lane."""
        row = tirx.Var("v_row", self.dtype)
        lanes = decode_lanes(self.recurrence, row)
        replica = Replica(self.recurrence, lanes, unroll=False)
        body = [replica.begin(), replica.boundary()]
        kernel = self._few("scan_begin", lanes, replica, [*body, self._keep(replica, row, 0)])
        return loop("row", self.rows, lambda r: kernel.block([(row, self.rows, r)]))

    def _keep(self, replica: Replica, row: Any, slot: Any) -> Any:
        slot = int_const(slot, self.dtype) if isinstance(slot, int) else slot
        return replica.keep(self.carries, [row, slot], 0)

    def _few(self, name: str, lanes: list[Any], replica: Replica, body: list[Any]) -> Kernel:
        """A kernel over the rows alone: a few are not worth waking the other cores."""
        recurrence = self.recurrence
        kernel = Kernel(
            name,
            [*recurrence.inputs, *self.elements.buffers, *state_buffers(recurrence)],
            [*self.carries, *(recurrence.outputs if recurrence.boundary is not None else [])],
            when(guard_of(recurrence, lanes), tir.seq(body)),
            replica.buffers,
        )
        return on_stack(kernel)

    def _task(self, name: str, lanes: list[Any], body: list[Any], buffers: list[Var]) -> Kernel:
        """A kernel that scans pieces, and makes elements of others."""
        recurrence = self.recurrence
        return Kernel(
            name,
            [*recurrence.inputs, *self.carries],
            [*self.elements.buffers, *self.carries, *recurrence.outputs],
            when(guard_of(recurrence, lanes), tir.seq(body)),
            buffers,
        )

    def reduce(self, tile: Any, row: Any, chunk: Any, lanes: list[Any]) -> _Task:
        """Phase 1: the first piece of a tile scanned, the element of every other but the last."""
        scanned = self._first_piece(tile, row, lanes)
        reduction = _Reduction(self, self.plan, tile, chunk, lanes)
        reduced = tir.seq([loop("n", reduction.batches, reduction.batch), reduction.rest])
        *before, identity = reduction.before
        first = tirx.EQ(chunk, tir.zero_like(chunk))
        # The element is stored outside of the choice, which would confuse TVM's compaction.
        body = [
            identity,
            tirx.IfThenElse(first, tir.seq(scanned.stmts), tir.seq([*before, reduced])),
            reduction.keep([row, chunk]),
        ]
        buffers = [*scanned.buffers, *reduction.buffers]
        return self._task("scan_reduce", lanes, body, buffers), scanned.dtypes

    def _first_piece(self, tile: Any, row: Any, lanes: list[Any]) -> _Part:
        """The first piece of a tile, whose carry is known, scanned."""
        vectors = TimeVector(self.recurrence, lanes, self.plan)
        by_step = vectors.single
        # No vector shares the elements of the first steps; a piece may be shorter than they are.
        count = self.first
        alone: Any = tir.zero_like(tile)
        if count:
            most = tirx.Min(int_const(count, self.time_dtype), self.unit)
            alone = tirx.Select(tirx.EQ(tile, alone), tir.simplify(most), alone)
        registers = Registers(self.recurrence.time.extent)
        start = registers.hold("start", tile * self.step)
        alone = registers.hold("alone", alone)
        extent = registers.hold("extent", tir.simplify(self.unit - alone))
        steps = vectors.scan(self.beyond_first(start + alone), extent)
        stmts = [
            *registers.stores,
            vectors.begin(),
            by_step.prologue(),
            by_step.fetch(self.carries, [row, int_const(0, self.dtype)], range(1)),
            loop("i", alone, lambda i: by_step.step(start + i)),
            steps,
            self._keep(by_step, row, self.after_first),
        ]
        return _Part(stmts, [*vectors.buffers, *registers.buffers], vectors.held.dtypes)

    def scan(self, n: Any) -> Any:
        """Phase 2: the carry before every piece after the second."""
        tile, row, _, lanes = self._axes()
        replica = Replica(self.recurrence, lanes, unroll=False)

        def piece(c: Any) -> Any:
            applied = replica.apply(self.elements, [row, c + self.one])
            return tir.seq([applied, self._keep(replica, row, c + self.one + self.one)])

        fetched = replica.fetch(self.carries, [row, self.after_first], range(1))
        body = [fetched, loop("c", self.chunks - self.one, piece)]
        if self.is_tiled:
            body.insert(1, self._keep(replica, row, self.one))
        kernel = self._few("scan_carries", lanes, replica, body)
        axes = [(tile, self.tiles, n)]
        return loop("row", self.rows, lambda r: kernel.block([*axes, (row, self.rows, r)]))

    def replay(self, tile: Any, row: Any, chunk: Any, lanes: list[Any]) -> _Task:
        """Phase 3: the loop body over every piece but the first, from its carry."""
        part = self._replayed(tile, row, chunk, lanes)
        kernel = Kernel(
            "scan_replay",
            [*self.recurrence.inputs, *self.carries],
            [*self.recurrence.outputs, *self.carries],
            when(guard_of(self.recurrence, lanes), tir.seq(part.stmts)),
            part.buffers,
        )
        return kernel, part.dtypes

    def _replayed(
        self,
        tile: Any,
        row: Any,
        chunk: Any,
        lanes: list[Any],
        beside: Callable[[Any], Any] | None = None,
    ) -> _Part:
        """A piece replayed; ``beside`` is given the number of a batch of vectors."""
        # What is reduced beside it is asked for some pages before.
        ahead = None if beside is None else self.step
        vectors = TimeVector(self.recurrence, lanes, self.plan, ahead)
        by_step = vectors.single
        # A piece belongs to the core that reduced it, in whose caches it is; the last one is left.
        final = tirx.EQ(chunk, tir.zero_like(chunk))
        piece = tirx.Select(final, self.chunks, chunk)
        last = tirx.And(final, tirx.EQ(tile, self.tiles - 1))
        registers = Registers(self.recurrence.time.extent)
        done = registers.hold("done", tir.simplify(self.step * self.tiles))
        rest = registers.hold("rest", tir.simplify(self.recurrence.time.extent - done))
        begin = self.beyond_first(registers.hold("begin", self.start(tile, piece)))
        steps = vectors.scan(begin, registers.hold("twice", self.twice), beside)
        left_over = vectors.scan(self.beyond_first(done), rest)
        stmts = [
            *registers.stores,
            vectors.begin(),
            by_step.prologue(),
            by_step.fetch(self.carries, [row, piece], range(1)),
            steps,
            when(final, self._keep(by_step, row, 0)),
            when(last, tir.seq([left_over, by_step.finish()])),
        ]
        return _Part(stmts, [*vectors.buffers, *registers.buffers], vectors.held.dtypes)

    def _parallel(self, n: Any, task: Callable[..., _Task]) -> Any:
        """A block over (tile, row, chunk), the last two in one parallel loop, with line stores."""
        tile, row, chunk, lanes = self._axes()
        kernel, dtypes = task(tile, row, chunk, lanes)
        total = tir.simplify(self.rows * self.chunks)
        parallel = on_lines(on_stack(kernel), total)

        def realize(number: Any) -> Any:
            lane, part = number // self.chunks, number % self.chunks
            axes = [(row, self.rows, lane), (chunk, self.chunks, part)]
            return parallel.block([(tile, self.tiles, n), *axes])

        return with_line_stores(loop("task", total, realize, ForKind.PARALLEL), dtypes)
