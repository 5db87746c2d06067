"""A few steps of a delta rule at once, over a tile of the state that a core's first cache holds.

With the names of ``chunk``, in chunks so short that all sums are in registers: one pass over the
tile, two where registers are few, yields what all steps read of the state before them, what they
read of each other follows by substitution, and another pass leaves the state after them. A cell
takes ``3 + 1 / C`` operations a step for one term and one read, where step after step it takes 4.
`tvm_scan.loops.delta_chunk` is the same for the loops of torch's functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import gcd
from typing import TYPE_CHECKING, Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.algebra.literal import one, zero
from tvm_scan.loops.delta_lines import cell_in_strips
from tvm_scan.loops.delta_walk import register_sums
from tvm_scan.schedules.common.ir import in_vectors, int_const, loop
from tvm_scan.schedules.delta.chunk import Chunk, scale

if TYPE_CHECKING:
    from tvm_scan.schedules.delta.cpu_plan import DeltaWalk


#: Sums of a step for which a plan's strip is: what is known before it, and an output.
_READS = 2


class FewSteps:
    """Code for steps whose vectors and amounts stand in the first rows of a chunk's arrays.

    Parameters
    ----------
    chunk : Chunk
        Whose arrays they are; its width is a multiple of 16.
    count : int
        Steps, at most those of the chunk.
    plan : DeltaWalk
        Columns whose sums are in registers, and cells of a vector.
    buffer : callable
        Makes a buffer of a name and a number of cells.
    together : int, optional
        Columns of the state that lie together; by default those whose sums are in registers.
    """

    def __init__(
        self,
        chunk: Chunk,
        count: int,
        plan: DeltaWalk,
        buffer: Callable[[str, int], Var],
        together: int | None = None,
    ) -> None:
        self.chunk, self.count, self.rows = chunk, count, chunk.rows
        self.index, self.dtype = chunk.index, chunk.dtype
        reading, reads = len(chunk.reading), len(chunk.rule.reads)
        self.vector = plan.vector
        # More columns for fewer steps, fewer where more is read.
        pairs, self.sums = max(_READS, reading + reads), register_sums(plan.vector, chunk.dtype)
        most = plan.strip * chunk.steps * _READS // (count * pairs)
        if count == 1:  # whose sums are in one pass
            most = min(most, max(plan.strip, self.sums * self.vector // pairs))
        widths = range(self.vector, chunk.width + 1, self.vector)
        fitting = [n for n in widths if n <= most and chunk.width % n == 0]
        self.strip = max(fitting, default=self.vector)
        self.together = self.strip if together is None else together
        #: Rows of a vector.
        self.lanes = gcd(self.rows, self.vector)

        def sums(name: str, number: int) -> list[Var]:
            return [buffer(f"{name}{n}_{count}", count * self.strip) for n in range(number)]

        self.known, self.seen = sums("known", reading), sums("seen", reads)
        self.amount = sums("amount", len(chunk.rule.terms))
        #: Gates of the columns since the head, where there are some.
        self.faded = [] if chunk.fade is None else [buffer(f"faded_{count}", self.strip)]
        number = (reading + reads) * len(chunk.rule.terms) * count
        self.parts = [buffer(f"part{n}_{count}", self.lanes) for n in range(number)]

    def cell_of(self, i: Any, column: Any) -> Any:
        """Return where a cell of the state lies.

        8192 steps of two heads of 128 x 128 take two cores of a Cascade Lake 10.9 ms with strips
        together, and 11.7 with rows.
        """
        return cell_in_strips(i, column, self.rows, self.together)

    def steps(self, ask: Callable[..., Any] | None = None) -> Any:
        """Return the statements: the reads into ``outs``, and the state after the steps.

        Parameters
        ----------
        ask : callable, optional
            Asks for the lines that some step after each of these needs: given the step, which
            share of them, and of how many ``parts``. Those of a whole chunk at once would keep the
            state's waiting: a core has few lines on their way at a time.
        """
        strips = self.chunk.width // self.strip
        # Each strip asks for its share.
        share = ask and partial(ask, parts=strips)
        return tir.seq(
            [
                *(self._prepare(t) for t in range(self.count)),
                loop("w", strips, partial(self._strip, ask=share), dtype=self.index),
            ]
        )

    # ---- what all columns share ----------------------------------------------------------------

    def _prepare(self, t: int) -> Any:
        """Write what a step reads of what those before write, and the gates since the head."""
        chunk, steps = self.chunk, self.chunk.steps
        dots = [  # where the sum goes, the vector, the term and step that it reads
            (triangle, vectors, bool(seen), n, s)
            for n, _ in enumerate(chunk.into)
            for vectors, triangle, seen in chunk.triangles(n)
            for s in range(t + (n < seen))
        ]
        parts = self.parts[: len(dots)]

        def begin(part: Var) -> Any:
            value = zero(self.dtype)
            return self._vector(self.lanes, lambda u: tirx.BufferStore(part, value, [u]))

        def rows(g: Any) -> Any:
            def cell(u: Any) -> Any:
                i = g * self.lanes + u
                at = t * self.rows + i

                def dot(part: Var, vectors: Var, n: int, s: int) -> Any:
                    term = tirx.BufferLoad(vectors, [at]) * tirx.BufferLoad(
                        chunk.into[n], [s * self.rows + i]
                    )
                    return tirx.BufferStore(part, tirx.BufferLoad(part, [u]) + term, [u])

                def passing(is_after: bool) -> list[Any]:
                    return [
                        dot(part, vectors, n, s)
                        for part, (_, vectors, after, n, s) in zip(parts, dots, strict=True)
                        if after == is_after
                    ]

                return tir.seq(
                    [
                        *passing(False),
                        *(
                            scale(into, s * self.rows + i, chunk.gates, at)
                            for into in chunk.into
                            for s in range(t)
                        ),
                        *passing(True),
                        chunk.pass_on(at, chunk.passed, i),
                    ]
                )

            return self._vector(self.lanes, cell)

        return tir.seq(
            [
                *(begin(part) for part in parts),
                loop("g", self.rows // self.lanes, rows, dtype=self.index),
                *(
                    self._halve(part, triangle, t * steps + s)
                    for part, (triangle, *_, s) in zip(parts, dots, strict=True)
                ),
            ]
        )

    def _halve(self, part: Var, to: Var, at: int) -> Any:
        """Add up the cells of a vector."""
        stmts, half = [], self.lanes // 2

        def cell(u: Any, half: int) -> Any:
            value = tirx.BufferLoad(part, [u]) + tirx.BufferLoad(part, [half + u])
            return tirx.BufferStore(part, value, [u])

        while half:
            stmts.append(self._vector(half, partial(cell, half=half)))
            half //= 2
        first = tirx.BufferLoad(part, [int_const(0, self.index)])
        return tir.seq([*stmts, tirx.BufferStore(to, first, [int_const(at, self.index)])])

    def _vector(self, count: int, make: Callable[[Any], Any]) -> Any:
        return in_vectors(count, count, make, self.index)

    # ---- the columns of a strip ----------------------------------------------------------------

    def _columns(self, make: Callable[[Any], Any]) -> Any:
        """``make(u)`` for the columns of a strip, in registers."""
        return in_vectors(self.strip, self.vector, make, self.index)

    def _strip(self, w: Any, ask: Callable[[int, Any], Any] | None) -> Any:
        chunk, column = self.chunk, w * self.strip
        pairs = [
            *zip(self.known, chunk.source, strict=True),
            *zip(self.seen, chunk.weights, strict=True),
        ]

        def state(i: Any, u: Any) -> list[Any]:
            return [self.cell_of(i, column + u)]

        def read(some: list[tuple[Var, Var]], i: Any) -> Any:
            def term(t: int, total: Var, vectors: Var) -> Any:
                return self._columns(
                    lambda u: self._add(
                        total,
                        t,
                        u,
                        tirx.BufferLoad(vectors, [t * self.rows + i])
                        * tirx.BufferLoad(chunk.state, state(i, u)),
                    )
                )

            return tir.seq(term(t, *pair) for t in range(self.count) for pair in some)

        def write(i: Any) -> Any:
            def cell(u: Any) -> Any:
                value = tirx.BufferLoad(chunk.passed, [i])
                value = value * tirx.BufferLoad(chunk.state, state(i, u))
                value = value * tirx.BufferLoad(self.faded[0], [u]) if self.faded else value
                for into, amount in zip(chunk.into, self.amount, strict=True):
                    for t in range(self.count):
                        factor = tirx.BufferLoad(into, [t * self.rows + i])
                        value = value + factor * self._at(amount, t, u)
                return tirx.BufferStore(chunk.state, value, state(i, u))

            return self._columns(cell)

        each = max(1, self.sums * self.vector // (self.count * self.strip))
        passes = [pairs[first : first + each] for first in range(0, len(pairs), each)]
        half = self.count // 2

        def asked(steps: range) -> list[Any]:
            return [ask(t, w) for t in steps] if ask else []

        return tir.seq(
            [
                *asked(range(half)),
                *(self._clear(total, t) for total, _ in pairs for t in range(self.count)),
                *(loop("i", self.rows, partial(read, some), dtype=self.index) for some in passes),
                *(self._substitute(t, column) for t in range(self.count)),
                self._fade(column),
                *asked(range(half, self.count)),
                loop("i", self.rows, write, dtype=self.index),
            ]
        )

    def _at(self, sums: Var, t: int, u: Any) -> Any:
        return tirx.BufferLoad(sums, [t * self.strip + u])

    def _add(self, sums: Var, t: int, u: Any, value: Any) -> Any:
        return tirx.BufferStore(sums, self._at(sums, t, u) + value, [t * self.strip + u])

    def _clear(self, sums: Var, t: int) -> Any:
        value = zero(self.dtype)
        return self._columns(lambda u: tirx.BufferStore(sums, value, [t * self.strip + u]))

    def _substitute(self, t: int, column: Any) -> Any:
        """Add what a step reads of those before; then what it writes, and its outputs."""
        chunk = self.chunk
        read, reads = chunk.seen[: len(self.known)], chunk.seen[len(self.known) :]
        sums = list(zip(self.known, chunk.lower, read, strict=True))
        stmts = [self._add_steps(t, column, *each) for each in sums]
        for n, _ in enumerate(self.amount):
            if n in chunk.reading:
                # The terms before it in its own step are written by now.
                stmts += self._add_terms(t, *sums[chunk.reading.index(n)])
            stmts.append(self._columns(partial(self._write, t, column, n)))
        for each in zip(self.seen, chunk.readers, reads, strict=True):
            stmts += [self._add_steps(t, column, *each), *self._add_terms(t, *each)]
        for out, total in zip(chunk.outs, self.seen, strict=True):
            stmts.append(self._columns(partial(self._emit, t, column, out, total)))
        return tir.seq(stmts)

    def _add_steps(self, t: int, column: Any, sums: Var, triangles: list[Var], seen: int) -> Any:
        """Add what the steps before wrote, through the gates of the columns up to this step."""
        stmts: list[Any] = []
        for s in range(t):
            stmts += [*self._through(s, t, column, sums), *self._term(t, s, sums, triangles)]
        return tir.seq([*stmts, *(self._through(t, t, column, sums) if seen else [])])

    def _add_terms(self, t: int, sums: Var, triangles: list[Var], seen: int) -> list[Any]:
        """Add what the first terms of the step itself wrote."""
        return self._term(t, t, sums, triangles[:seen])

    def _term(self, t: int, s: int, sums: Var, triangles: Sequence[Var]) -> list[Any]:
        def add(triangle: Var, amount: Var, u: Any) -> Any:
            factor = tirx.BufferLoad(triangle, [int_const(t * self.chunk.steps + s, self.index)])
            return self._add(sums, t, u, factor * self._at(amount, s, u))

        pairs = zip(triangles, self.amount, strict=False)
        return [self._columns(partial(add, *pair)) for pair in pairs]

    def _through(self, s: int, t: int, column: Any, sums: Var) -> list[Any]:
        """Multiply the sums of step t by the gates of the columns at step s."""
        if self.chunk.fade is None:
            return []

        def pass_gate(u: Any) -> Any:
            value = self._gate(s, column, u) * self._at(sums, t, u)
            return tirx.BufferStore(sums, value, [t * self.strip + u])

        return [self._columns(pass_gate)]

    def _gate(self, s: int, column: Any, u: Any) -> Any:
        return tirx.BufferLoad(self.chunk.fade, [s * self.chunk.width + column + u])

    def _fade(self, column: Any) -> Any:
        """Multiply what the steps wrote by the gates of the columns after them."""

        def step(s: int, u: Any) -> Any:
            faded = tirx.BufferLoad(self.faded[0], [u])
            after = [
                tirx.BufferStore(amount, self._at(amount, s, u) * faded, [s * self.strip + u])
                for amount in self.amount
            ]
            gates = faded * self._gate(s, column, u)
            return tir.seq([*after, tirx.BufferStore(self.faded[0], gates, [u])])

        if not self.faded:
            return None
        begin = self._columns(lambda u: tirx.BufferStore(self.faded[0], one(self.dtype), [u]))
        steps = reversed(range(self.count))
        return tir.seq([begin, *(self._columns(partial(step, s)) for s in steps)])

    def _write(self, t: int, column: Any, n: int, u: Any) -> Any:
        chunk, at = self.chunk, [t * self.chunk.width + column + u]
        if n not in chunk.reading:
            value = tirx.BufferLoad(chunk.update[n], at)
        else:
            m = chunk.reading.index(n)
            value = tirx.BufferLoad(chunk.rate[m], at) * self._at(self.known[m], t, u)
            value = tirx.BufferLoad(chunk.drive[m], at) + value
        return tirx.BufferStore(self.amount[n], value, [t * self.strip + u])

    def _emit(self, t: int, column: Any, out: Var, total: Var, u: Any) -> Any:
        return tirx.BufferStore(out, self._at(total, t, u), [t * self.chunk.width + column + u])
