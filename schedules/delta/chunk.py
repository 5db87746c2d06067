"""Arithmetic of a chunk of steps of a delta rule, told once; ``cpu`` and ``gpu`` run it.

For a chunk of C steps, with e, p, r and u of ``DeltaRule`` and running products of the gates
(never their quotients, so that gates may be small or zero), and for one term:

    D[:, s]  = p[s] times the gates after s        K x C
    M[t, s]  = e[t] . D[:, s] before step t        strictly lower triangular
    N[t, s]  = r[t] . D[:, s]                      lower triangular, one for each read
    u[t]     = drive[t] + rate[t] (e'[t] S + sum_{s<t} M[t, s] u[s])   by forward substitution
    y[t]     = r'[t] S + sum_s N[t, s] u[s]
    S        = (all gates) S + D u

where e' and r' carry the gates since the head of the chunk. With several terms each has p, D and u
of its own, each that reads has e, and an M for each D; every product with u is the sum of those
with all of them. A term that reads the state with those before it reads after the gate, and its M
has s = t for these. Forward substitution is the sequential loop in other words: it divides by
nothing and is as stable as the loop.

A gate of the columns stands on the other side of S, where no vector meets it: all sums over s are
taken in order, and what stands before step s is multiplied by its gate there (Horner's scheme).

Work, for V columns, K rows and one term: 3 K V + C (2 K + 1.5 V) multiply-adds a step, against
3 K V of the loop; the span is L / C chunks.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.algebra.literal import one, zero
from tvm_scan.delta_rule import DeltaRule
from tvm_scan.schedules.common.ir import local, loop
from tvm_scan.schedules.delta.memory_map import assign_task


class Chunk:
    """The arrays of a chunk, and its phases over them.

    Parameters
    ----------
    rule : DeltaRule
        What is built.
    steps, width : int
        Steps of a chunk, and columns of a task with their padding.
    scope : str
        Of the arrays that steps share.
    stride : int, optional
        Cells from step to step of the vectors over the rows; the rows if not given.

    Attributes
    ----------
    state : Var
        K x V.
    known, drive : list of Var
        e' S and the drive of every step, by term, of which one may stand where the update will.
    outs : list of Var
        What every read yields.
    """

    state: Var
    known: list[Var]
    drive: list[Var]
    outs: list[Var]

    def __init__(
        self, rule: DeltaRule, steps: int, width: int, scope: str, stride: int | None = None
    ) -> None:
        self.rule, self.steps, self.width, self.dtype = rule, steps, width, rule.dtype
        self.rows = tir.as_int(rule.rows.extent) or 0
        self.columns = tir.as_int(rule.columns.extent) or 0
        self.index = tir.dtype_of(rule.time.var)
        #: What the task allocates, in the order of the executor.
        self.buffers: list[Var] = []

        def array(name: str, *shape: int) -> Var:
            return local(name, [prod(shape)], self.dtype, scope)

        self.stride = self.rows if stride is None else stride
        c, k, terms = steps, self.stride, range(len(rule.terms))
        #: The order in which ``source`` and ``rate`` stand.
        self.reading = rule.reading
        self.gates, self.passed = array("gates", c, k), array("passed", k)
        self.into = [array(f"into{n}", c, k) for n in terms]
        self.source = [array(f"source{n}", c, k) for n in self.reading]
        self.weights = [array(f"weight{n}", c, k) for n, _ in enumerate(rule.reads)]
        #: By the vector that reads, then by the term that is read.
        self.lower = [[array(f"lower{m}_{n}", c, c) for n in terms] for m in self.reading]
        self.readers = [
            [array(f"reader{m}_{n}", c, c) for n in terms] for m, _ in enumerate(rule.reads)
        ]
        self.update = [array(f"update{n}", c, width) for n in terms]
        self.rate = [array(f"rates{n}", c, width) for n in self.reading]
        #: Gates of the columns.
        self.fade = None if rule.column_gate is None else array("fades", c, width)

    def assign_task(self, blocks: int, width: int, first: int = 0) -> None:
        """Give the task a matrix and ``width`` columns, of ``blocks`` of them from ``first`` on."""
        self.task, self.total, self.memory = assign_task(self.rule, blocks, width, first)
        #: Steps of the task.
        self.length = self.memory.at(self.rule.time.extent)

    @property
    def is_stored(self) -> bool:
        """Return whether the state after time is wanted."""
        return bool(self.rule.written_last)

    def each_chunk(self, chunk: Callable[[Any], Any]) -> Any:
        """``chunk(head)`` for every chunk of time."""
        steps = self.steps
        chunks = tir.simplify((self.length + (steps - 1)) // steps)
        return loop("chunk", chunks, lambda n: chunk(n * steps), dtype=self.index)

    # ---- phases -------------------------------------------------------------------------------

    @property
    def vectors(self) -> list[tuple[Var, Any, Any]]:
        """Arrays over steps and rows, what is loaded, and what stands for a step beyond time."""
        rule, none = self.rule, zero(self.dtype)
        terms = [rule.terms[n] for n in self.reading]
        return [
            (self.gates, rule.gate, one(self.dtype)),
            *((b, term.into, none) for b, term in zip(self.into, rule.terms, strict=True)),
            *((b, term.source, none) for b, term in zip(self.source, terms, strict=True)),
            *((b, read.weight, none) for b, read in zip(self.weights, rule.reads, strict=True)),
        ]

    @property
    def amounts(self) -> list[tuple[Var, Any, Any]]:
        """Arrays over steps and columns likewise; a drive that is all is the update."""
        terms, none = self.rule.terms, zero(self.dtype)
        drives = dict(zip(self.reading, self.drive, strict=True))
        return [
            *([] if self.fade is None else [(self.fade, self.rule.column_gate, one(self.dtype))]),
            *((b, terms[n].rate, none) for b, n in zip(self.rate, self.reading, strict=True)),
            *((drives.get(n, self.update[n]), term.drive, none) for n, term in enumerate(terms)),
        ]

    @property
    def seen(self) -> list[int]:
        """Terms of its own step that are in what each source reads, and then each read."""
        of_terms = [self.rule.terms[n].added for n in self.reading]
        return of_terms + [len(self.rule.terms) * read.after for read in self.rule.reads]

    def triangles(self, term: int) -> list[tuple[Var, Var, int]]:
        """Every M and N of a term: the vectors, the triangle, terms of the step that are read."""
        sources = zip(self.source, self.lower, strict=True)
        reads = zip(self.weights, self.readers, strict=True)
        pairs = [(vectors, by_term[term]) for vectors, by_term in (*sources, *reads)]
        return [(*pair, seen) for pair, seen in zip(pairs, self.seen, strict=True)]

    def pass_on(self, at: Any, passed: Var, slot: Any) -> Any:
        """Multiply the vectors at a step and row by ``passed[slot]``: the gates since the head."""
        dots = self.triangles(0)
        return tir.seq(
            [
                *(scale(v, at, passed, slot) for v, _, seen in dots if not seen),
                scale(passed, slot, self.gates, at),
                *(scale(v, at, passed, slot) for v, _, seen in dots if seen),
            ]
        )


def scale(buffer: Var, at: Any, by: Var, slot: Any) -> Any:
    """``buffer[at] *= by[slot]``."""
    value = tirx.BufferLoad(buffer, [at]) * tirx.BufferLoad(by, [slot])
    return tirx.BufferStore(buffer, value, [at])
