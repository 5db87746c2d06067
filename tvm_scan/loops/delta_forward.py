"""The way forward of delta rules on a CPU: outputs, and states after time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tvm import tirx
from tvm.ir import Expr
from tvm.script.ir_builder import tirx as T

from tvm_scan.loops.delta import Matrix
from tvm_scan.loops.delta_chunk import STEPS, Chunk
from tvm_scan.loops.delta_walk import CHECKPOINT, Walk
from tvm_scan.loops.writer import Cells, Loop


def delta_walk(
    batch: Expr,
    heads: Expr,
    length: Expr,
    *,
    packed: bool = False,
    single: bool = False,
    in_place: bool = False,
    keep: bool = False,
    threads: bool = True,
    columns: int = 64,
    strip: int = 32,
    **options: Any,
) -> tirx.PrimFunc:
    """Build ``delta_walk(q, k, v, [w,] [beta | a, b], .., first, [offsets], .., [last], y)``.

    With `in_place` the states after time are left in `first`, and no task copies its own; else a
    task walks with a copy, and leaves the last one in ``last``. With `keep` those before every
    `CHECKPOINT`-th step but the first are left in ``kept``, and what each step reads of the one
    before it in ``known``, which is like ``y``; both stand before ``last``. With `single` there is
    one step, which reads `first` and writes `last`: its states are never copied. Without `threads`
    the calling one does all; a task has at most so many `columns`, and sums of a `strip` of them
    are in registers. The other options are those of `Walk`.
    """
    assert not (single and packed), "sequences that are packed have lengths of their own"
    with Loop() as loop:
        walk = Walk(loop, batch, heads, length, packed, columns=columns, **options)
        block = walk.block
        checkpoints = walk.checkpoints() if keep else None
        known = walk.array("known", walk.values) if keep else None
        last = None if in_place else walk.states("last")
        y = walk.array("y", walk.values)
        kind = T.parallel if threads else T.serial
        with loop.parallel(batch * walk.heads * block.count, "walk", kind) as r:
            walk.at(r // (walk.heads * block.count), r // block.count % walk.heads, r % block.count)
            walk.allocate_reads()
            chunk = _Forward(walk, strip, y, known)
            if single:
                zero = tirx.IntImm("int64", 0)
                walk.fill(zero, zero + 1)
                after = walk.first if last is None else last
                chunk.write(zero, 1, walk.first, after, after)
            elif last is None:
                _walk_time(walk, chunk, checkpoints, walk.first, walk.first)
            else:
                # Rows that lie apart would share few sets of the first cache: 8192 steps of two
                # heads of 128 x 128 took 4.9 ms on two cores of a Zen 5 in `last`, and 3.7 so (on
                # one core 7.5 and 7.4).
                state = chunk.strips_of(walk.scratch("state", walk.keys))
                walk.copy(state, walk.first)
                _walk_time(walk, chunk, checkpoints, state, last)
                with T.If(walk.steps == 0), T.Then():
                    walk.copy(last, walk.first)
    return loop.func


def _walk_time(
    walk: Walk, chunk: _Forward, checkpoints: Cells | None, state: Matrix, last: Matrix
) -> None:
    """Take all steps of a task, whose state is kept in one place, and at last in another one."""
    loop = walk.loop
    with loop.over((walk.steps + (CHECKPOINT - 1)) // CHECKPOINT, "c") as c:
        start = c * CHECKPOINT
        here = tirx.min(CHECKPOINT, walk.steps - start)
        if checkpoints is not None:
            with T.If(c > 0), T.Then():
                walk.copy(walk.checkpoint_at(checkpoints, c), state)
        walk.fill(start, here)
        with loop.over(here // STEPS, "n") as n:
            chunk.write(start + n * STEPS, STEPS, state, state, last)
        with loop.over(here % STEPS, "n") as n:
            chunk.write(start + (here - here % STEPS) + n, 1, state, state, last)


class _Forward(Chunk):
    """A chunk whose outputs are wanted.

    Parameters
    ----------
    walk, strip
        As those of `Chunk`.
    y : Cells
        The outputs.
    known : Cells, optional
        What steps read of the states before them.
    """

    def __init__(self, walk: Walk, strip: int, y: Cells, known: Cells | None) -> None:
        super().__init__(walk, strip)
        self.y, self.total, self.knowns = y, self.strip_cells("total"), known

    def write(self, first: Expr, count: int, before: Matrix, after: Matrix, last: Matrix) -> None:
        """Write the outputs of `count` steps, and the state after them, which may be in place.

        After the last step of all it is left in `last`.
        """
        terms = self.prepare(first, count)
        asks = self._asks(first) if count == STEPS else [None, None]
        with self.over_strips() as strip:
            reads, advance = (ask and partial(ask, strip) for ask in asks)
            pairs = [(self.known, self.source), (self.total, self.query)]
            self.read(count, pairs, before, strip, reads)
            for t, step in enumerate(terms):
                self.substitute(t, step, strip)
                self._emit(t, self.walk.token(first + t), strip)
            if last is after:
                self.advance(count, before, after, strip, advance)
            else:
                with T.If(first + count < self.walk.steps):
                    with T.Then():
                        self.advance(count, before, after, strip, advance)
                    with T.Else():
                        self.advance(count, before, last, strip, advance)

    def _asks(self, first: Expr) -> list[Callable[[Any, Any], None]]:
        """Return what asks for lines before halves of two passes over a strip: a step's for each.

        A core waits for as many lines as it may miss at a time, a few dozens; those of a whole
        chunk are more, and what is asked for at once keeps the others waiting. Lines that are
        written are asked for, too: a store that waits for its line holds up those of the state
        (2048 steps of 32 x 128 x 128 on two cores of a Zen 5: 23.2 ms with a chunk's lines that
        are read asked for at once, 16.5 ms so).
        """
        walk, written = self.walk, [self.y] if self.knowns is None else [self.y, self.knowns]
        strips = self.block.width // self.strip

        def ask(start: int, strip: Any, half: Any) -> None:
            step = first + (start + half)
            walk.ask(step, 1, walk.read_rows, share=(strip, strips))
            for cells in written:
                walk.ask(step, 1, {"v": cells}, written=True, share=(strip, strips))

        return [partial(ask, start) for start in range(0, STEPS, 2)]

    def _emit(self, t: int, token: Any, strip: Any) -> None:
        """Write the output of a step."""
        self.add(self.total, t, range(t + 1), self.reader, strip)
        with self.columns(strip) as (j, _, v):
            self.y[token, self.walk.h, v] = self.total[t * self.strip + j]
            if self.knowns is not None:
                self.knowns[token, self.walk.h, v] = self.known[t * self.strip + j]
