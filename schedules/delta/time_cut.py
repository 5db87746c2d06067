"""Time of a delta rule cut into segments, each a rule of its own: few states fill many cores.

A segment of time changes a state by ``S' = M S + U``: M, K x K, is what its gates and reads make
of the state, and U what it makes of none. So all segments are passed at once, twice: first without
the state before them, for U, and in K more columns that begin as the identity and are driven by
nothing, for M; then, from the states before them, for the outputs. Between the two each state
passes its segments in order, a product of K x K by K x V for each::

    U[p] = the segment p from 0                 columns of V
    M[p] = the segment p from I, driven by 0    columns of K
    S[p + 1] = M[p] S[p] + U[p]                 one after another
    the segment p from S[p]                     columns of V, outputs

Every pass is the rule over a shorter time, with one lane more, and built as any other, on a GPU
and on a CPU. M is the same for all columns of the state, so no rate or gate may be a column's. Yang
et al. 2024 (arXiv 2406.06484, section 3) give the form for chunks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.algebra.literal import one, zero
from tvm_scan.delta_rule import DeltaRule, Term
from tvm_scan.recurrence import Axis
from tvm_scan.schedules.common.ir import as_dtype, int_const, local
from tvm_scan.schedules.common.result import Built
from tvm_scan.schedules.common.sizes import known_extent
from tvm_scan.schedules.picture import Chunks, Picture, Serial

if TYPE_CHECKING:
    from tvm_scan.schedules.plan import ScanPlan


#: Most chunks of time, and steps of one at least.
_MOST_CHUNKS, _LEAST_CHUNK = 1024, 64
#: Most cells of an array between passes: indices may have 32 bits.
_MOST_CELLS = 1 << 31


def why_uncut(rule: DeltaRule) -> str | None:
    """Say what of a rule is a column's own, so that M would be too; None for nothing."""
    if rule.column_gate is not None:
        return "a gate of the columns"
    column = [rule.columns.var]
    if any(t.source is not None and tir.contains_var(t.rate, column) for t in rule.terms):
        return "a rate of the columns"
    return None


def check_chunks(plan: ScanPlan, rule: DeltaRule, chunks: int) -> None:
    """Check a plan's chunks of time; 0 for none.

    Raises
    ------
    PlanError
        If there are too many or too few, what is between them is too large, or the rule cannot be
        cut.
    """
    plan.require(
        chunks == 0 or 2 <= chunks <= _MOST_CHUNKS,
        f"0, or 2 to {_MOST_CHUNKS} chunks of time",
        f"chunks={chunks}",
        "leave chunks at 0",
    )
    if not chunks:
        return
    states = prod(tir.as_int(lane.extent) or 0 for lane in rule.lanes)
    rows, columns = int(rule.rows.extent), int(rule.columns.extent)
    cells = states * (chunks + 1) * rows * max(rows, columns)
    plan.require(
        cells < _MOST_CELLS,
        f"fewer than {_MOST_CELLS} cells of the states between chunks",
        f"{cells}",
        "use fewer chunks",
    )
    column = why_uncut(rule)
    plan.require(
        column is None,
        "a rule that multiplies all columns of the state by one matrix, for chunks of time",
        str(column),
        "leave chunks at 0",
    )


def chunk_counts(rule: DeltaRule) -> tuple[int, ...]:
    """Chunks of time that are worth passing twice."""
    if why_uncut(rule) is not None:
        return ()
    length = known_extent(rule.time.extent)
    return tuple(n for n in (4, 8, 16, 32, 64) if n * _LEAST_CHUNK <= length)


def why_wasteful(chunks: int, each: int, steps: int) -> str | None:
    """Say so where chunks of time have fewer steps than are taken at once."""
    if chunks * each <= max(1, steps):
        return None
    return f"expected chunks of {each} steps or more, got {chunks} of {steps} steps"


def picture_of(chunks: int, line: tuple[str, str], walk: Serial) -> Picture:
    """Return the picture of a plan, whose time may be cut."""
    if not chunks:
        return Picture((line,), (walk,))
    passes = "what each makes of no state and of the identity; states past them in order; outputs"
    return Picture((("chunks", f"{chunks} of time: {passes}"), line), (Chunks(chunks), walk))


def build_passes(
    rule: DeltaRule,
    chunks: int,
    steps: int,
    nests: Callable[[DeltaRule], list[Any]],
    carries: Callable[[TimeCut], list[Any]],
) -> Built:
    """Build a rule in one pass, or its chunks of time.

    Parameters
    ----------
    rule : DeltaRule
        The whole one.
    chunks, steps : int
        Chunks of time, or 0, and steps that are taken at once.
    nests : callable
        The nests of a rule.
    carries : callable
        Those that take the states past the segments.
    """
    if not chunks:
        return Built(nests(rule), [])
    cut = TimeCut.of(rule, chunks, steps)
    between = [*nests(cut.effects), *nests(cut.maps), *carries(cut)]
    return Built([*between, *nests(cut.outputs)], [cut.states, cut.products])


def arrays_of(rule: DeltaRule) -> list[Var]:
    """Arrays that a rule reads and writes, each once."""
    parts = [part for part in rule.parts if part is not None]
    read = [array for part in parts for array in tir.buffers_loaded(part).keys()]
    return tir.VarMap((array, True) for array in (*read, *rule.outputs)).keys()


@dataclass(frozen=True, eq=False)
class TimeCut:
    """The passes over the segments, and the arrays between them.

    Attributes
    ----------
    effects, maps, outputs : DeltaRule
        U and M of the segments, and the rule from the states before them.
    states, products : Var
        S and U, (states, segments + 1, rows, columns): that of a segment stands where the state
        after it will; and M, (states, segments, rows, rows).
    passed : int
        Segments that have an M: all but the last one, if the state after time is not wanted.
    """

    effects: DeltaRule
    maps: DeltaRule
    outputs: DeltaRule
    states: Var
    products: Var
    passed: int

    @property
    def passes(self) -> tuple[DeltaRule, ...]:
        """The rules of the segments."""
        return self.effects, self.maps, self.outputs

    @staticmethod
    def of(rule: DeltaRule, segments: int, steps: int) -> TimeCut:
        """Cut the time of a rule.

        Parameters
        ----------
        rule : DeltaRule
            One that ``why_uncut`` says nothing of.
        segments, steps : int
            Segments, and the number of which each but the last has a multiple of steps.
        """
        index = tir.dtype_of(rule.time.var)
        segment, time = tirx.Var("segment", index), tirx.Var("t", index)
        length = rule.time.extent
        each = tir.simplify((length + (segments * steps - 1)) // (segments * steps) * steps)
        begin = segment * each
        nothing = int_const(0, index)
        here = tirx.Max(nothing, tirx.Min(as_dtype(each, index), length - begin))

        def moved(expr: Any) -> Any:
            if expr is None:
                return None
            return tir.substitute(expr, tir.VarMap([(rule.time.var, begin + time)]))

        def lanes(segments: int) -> tuple[Axis, ...]:
            return (*rule.lanes, Axis(segment, int_const(segments, index)))

        passed = segments if rule.written_last else segments - 1
        count, number = _number(rule, index)
        rows, columns = rule.rows.extent, rule.columns.extent
        states = local("states", [count, segments + 1, rows, columns], rule.dtype, "global")
        products = local("products", [count, passed, rows, rows], rule.dtype, "global")
        row, column = as_dtype(rule.rows.var, index), as_dtype(rule.columns.var, index)
        terms = tuple(
            Term(moved(t.into), moved(t.source), moved(t.rate), moved(t.drive), t.added)
            for t in rule.terms
        )
        part = replace(rule, time=Axis(time, here), gate=moved(rule.gate), terms=terms, finish=())
        effects = replace(
            part,
            lanes=lanes(passed),
            state=states,
            indices=(number, segment + 1, row, column),
            initial=zero(rule.dtype),
            is_kept=True,
            reads=(),
            stores=(),
            outputs=(states,),
        )
        across = tirx.Var("across", index)
        maps = replace(
            effects,
            columns=Axis(across, rows),
            state=products,
            indices=(number, segment, row, across),
            initial=tirx.Select(row.equal(across), one(rule.dtype), zero(rule.dtype)),
            terms=_undriven(terms, rule.dtype),
            outputs=(products,),
        )
        outputs = replace(
            part,
            lanes=lanes(segments),
            initial=tirx.BufferLoad(states, [number, segment, row, column]),
            is_kept=False,
            reads=tuple(replace(read, weight=moved(read.weight)) for read in rule.reads),
            stores=tuple(
                replace(store, index=tuple(map(moved, store.index)), value=moved(store.value))
                for store in rule.stores
            ),
            inputs=(*rule.inputs, states),
            outputs=tuple(store.buffer for store in rule.stores),
        )
        return TimeCut(effects, maps, outputs, states, products, passed)


def _number(rule: DeltaRule, index: str) -> tuple[Any, Any]:
    """Count of states, and the number of one, row-major over the lanes."""
    count: Any = int_const(1, index)
    number: Any = int_const(0, index)
    for lane in rule.lanes:
        extent = as_dtype(lane.extent, index)
        count, number = count * extent, number * extent + as_dtype(lane.var, index)
    return tir.simplify(count), number


def _undriven(terms: tuple[Term, ...], dtype: str) -> tuple[Term, ...]:
    """Terms without their drives; those that read nothing are gone, where others are left."""
    reading = [n for n, term in enumerate(terms) if term.source is not None] or [0]
    return tuple(
        replace(
            terms[n],
            drive=zero(dtype),
            added=sum(before < terms[n].added for before in reading),
        )
        for n in reading
    )
