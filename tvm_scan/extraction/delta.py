"""``extract_delta``: the proof that a loop is a delta rule.

Theorem (diagonal plus low rank). Let a step be ``S'[i] = a[i] S[i] + b[i]``, where b may read
sums ``d = sum_j e[j] S[j]`` over the state before it. If b is a sum of products ``p[i] u`` with u
free of i and affine in the sums, it is one of terms ``u = rate d + drive`` of a sum each, and
``S' = (diag(a) + sum of rate p e^T) S + sum of p drive``. If none of a, p, e and what the outputs
weigh the state with depends on the column, all columns share them. Over a chunk of steps then,
with the gates' products ``A(s, t) = a[s+1] .. a[t]``, for each term, summing over all of them,
``u[t] = drive[t] + rate[t] e[t] . (A(0, t-1) S[0] + sum_{s<t} A(s, t-1) p[s] u[s])``,
a triangular system for the u; states and outputs are matrix products with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.algebra.affine import coefficients
from tvm_scan.algebra.base import NotInFamily
from tvm_scan.algebra.literal import one, zero
from tvm_scan.delta_rule import DeltaRule, Read, Term, Written
from tvm_scan.extraction.accesses import accesses_of
from tvm_scan.extraction.array_step import ArrayStep, map_known
from tvm_scan.extraction.assemble import buffers_outside
from tvm_scan.extraction.delta_stores import around_time, step_stores
from tvm_scan.extraction.factors import products
from tvm_scan.extraction.flatten import flatten
from tvm_scan.extraction.matrix_state import MatrixState, MatrixSum, matrix_state
from tvm_scan.extraction.nest import Nest, find_nest
from tvm_scan.extraction.one_step import as_one_step
from tvm_scan.extraction.partial_sums import with_whole_sums
from tvm_scan.extraction.preconditions import check_preconditions
from tvm_scan.extraction.split_loops import with_whole_lanes, with_whole_loops
from tvm_scan.extraction.statements import stores_in
from tvm_scan.extraction.step_loops import NotUnderstood
from tvm_scan.extraction.wide_state import widened
from tvm_scan.recurrence import Axis, Refusal, RefusalKind

__all__ = ["extract_delta"]


def extract_delta(func: tirx.PrimFunc, stmt: Any) -> DeltaRule | Refusal:
    """Prove that a nest is a delta rule.

    Parameters
    ----------
    func : PrimFunc
        The function that the nest belongs to.
    stmt : Stmt
        One of ``root_nests(func)``.

    Returns
    -------
    DeltaRule or Refusal
    """
    tree = flatten(func, stmt)
    if isinstance(tree, Refusal):
        return tree
    external = buffers_outside(func, stmt)
    body = with_whole_loops(tree.body, tree.reduced)
    rule = _over_time(func, stmt, body, tree.reduced, external)
    if isinstance(rule, Refusal):
        body = as_one_step(body, external)
        again = _over_time(func, stmt, body, tir.VarMap(), external)
        return rule if isinstance(again, Refusal) else again
    return rule


def _over_time(
    func: tirx.PrimFunc, stmt: Any, body: list[Any], reduced: tir.VarMap, external: tir.VarMap
) -> DeltaRule | Refusal:
    refusals: list[Refusal] = []
    for interchange in (True, False):
        nest = find_nest(body, reduced, external, interchange=interchange)
        if isinstance(nest, Refusal):
            return nest
        refusal = check_preconditions(func, nest)
        if refusal is not None:
            return refusal
        try:
            return _rule(func, stmt, _with_whole_sums(with_whole_lanes(nest), external), external)
        except NotUnderstood as reason:
            refusals.append(_refused(func, reason, nest))
    return refusals[0]


def _with_whole_sums(nest: Nest, external: tir.VarMap) -> Nest:
    around = [(a.buffer, True) for a in accesses_of([*nest.before, *nest.after])]
    body = with_whole_sums(nest.time.body, tir.VarMap([*external.items(), *around]))
    return replace(nest, time=replace(nest.time, body=with_whole_loops(body, tir.VarMap())))


def _refused(func: tirx.PrimFunc, reason: NotUnderstood, nest: Nest) -> Refusal:
    return Refusal(
        RefusalKind.COUPLED_CARRIES,
        reason.origin or nest.time.origin,
        "expected a delta rule, S' = diag(g) S + p (w + r (q . S)) + .. with the same g, p and q "
        f"for all columns of S, found {reason.detail}",
        "the forms of the delta rule that are taken are listed in docs/families.md",
        func,
    )


def _rule(func: tirx.PrimFunc, stmt: Any, nest: Nest, external: tir.VarMap) -> DeltaRule:
    if nest.guards:
        raise NotUnderstood("a condition on the lanes")
    wide = widened(nest, external)
    nest, external = wide.nest, wide.external
    everything = [*nest.before, nest.time, *nest.after]
    written = tir.VarMap((store.buffer, True) for store in stores_in(everything))
    step = ArrayStep(written)
    step.run(nest.time.body)
    matrix = matrix_state(nest, step, external)
    if tir.contains_var(matrix.indices, [nest.time.var]):
        raise NotUnderstood("a state that is indexed by time")
    proof = _Proof(matrix, nest)
    gate, terms = proof.update()
    reads: list[Read] = []
    stores = step_stores(nest, step, matrix, external, lambda s: proof.read(s, reads), reads)
    initial, final, finish = around_time(nest, step, matrix, external)
    is_kept = matrix.buffer in external
    if is_kept and matrix.buffer in wide.halves:
        initial = wide.before_time(matrix) if initial is None else initial
        finish.append(Written(matrix.buffer, tuple(matrix.indices), final))
        is_kept = False
    read = tir.VarMap(
        (wide.in_memory(a.buffer), True)
        for a in accesses_of(everything)
        if not a.is_store and (a.buffer not in written or a.buffer in external)
    )
    return DeltaRule(
        func, stmt, tuple(matrix.lanes), matrix.rows, matrix.columns,
        Axis(nest.time.var, nest.time.extent),
        matrix.buffer, tuple(matrix.indices), initial, is_kept, gate, terms, tuple(reads),
        tuple(wide.rounded(store) for store in stores),
        final, tuple(wide.rounded(store) for store in finish),
        tuple(read.keys()), tuple(wide.in_memory(b) for b in written.keys() if b in external),
    )  # fmt: skip


class _Proof:
    """The theorem's conditions, on the step of one cell; each raises ``NotUnderstood``."""

    def __init__(self, matrix: MatrixState, nest: Nest) -> None:
        self.matrix, self.nest = matrix, nest
        self.dtype = tir.dtype_of(matrix.buffer)
        #: All that an expression may depend on besides inputs.
        self.axes = [*(lane.var for lane in matrix.lanes), nest.time.var]
        self.inner = [loop.var for s in matrix.sums for loop in s.loops if loop is not None]

    def update(self) -> tuple[Any, tuple[Term, ...]]:
        """Gate, and what is added."""
        matrix = self.matrix
        row, column = matrix.rows.var, matrix.columns.var
        sums: list[MatrixSum] = []
        totals: list[Var] = []

        def on_load(load: Any) -> Any:
            one_sum = matrix.sum_of(load)
            if one_sum is None:
                return load
            if one_sum not in sums:
                sums.append(one_sum)
                totals.append(tirx.Var(f"total{len(totals)}", self.dtype))
            for loop, index in zip(one_sum.loops, load.indices, strict=False):
                if loop is not None or not (isinstance(index, Var) and index.same_as(column)):
                    raise NotUnderstood("a sum of another column than the step's own")
            return totals[sums.index(one_sum)]

        step = map_known(self._over_first(matrix.cells[-1]), on_load)
        if not sums:
            raise NotUnderstood("no sum over the state in its update")
        sources = [self._weight(one_sum) for one_sum in sums]
        if any(after for _, after in sources):
            raise NotUnderstood("an update by a sum over the state that it updates")
        cell = matrix.cells[0]
        gate, rest = _affine(step, cell)
        rest = zero(self.dtype) if rest is None else rest
        terms = [
            term
            for into, amount in products(rest, row, [*totals, column, cell])
            for term in self._terms(into, amount, totals, [source for source, _ in sources])
        ]
        gate = one(self.dtype) if gate is None else gate
        self._check("gate", gate, [*self.axes, row], totals)
        for term in terms:
            for what, expr, allowed in (
                ("vector", term.into, row),
                ("read vector", term.source, row),
                ("rate", term.rate, column),
                ("amount", term.drive, column),
            ):
                if expr is not None:
                    self._check(what, expr, [*self.axes, allowed], totals)
        return gate, tuple(terms)

    def _terms(
        self, into: Any, amount: Any, totals: list[Var], sources: list[Any]
    ) -> Iterator[Term]:
        """An amount of several sums as terms of one each, the drive with the first."""
        read = []
        for total, source in zip(totals, sources, strict=True):
            if tir.contains_var(amount, [total]):
                rate, amount = _affine(amount, total)
                amount = zero(self.dtype) if amount is None else amount
                read.append((source, one(self.dtype) if rate is None else rate))
        if not read:
            yield Term(into, None, None, amount)
        for number, (source, rate) in enumerate(read):
            yield Term(into, source, rate, zero(self.dtype) if number else amount)

    def read(self, one_sum: MatrixSum, reads: list[Read]) -> Read:
        """A read of the state, over the sum's own loops where it has any."""
        weight, after = self._weight(one_sum)
        self._check("read vector", weight, [*self.axes, self.matrix.rows.var, *self.inner], [])
        return Read(tirx.Var(f"read{len(reads)}", self.dtype), weight, after)

    def _over_first(self, expr: Any, last: bool = False) -> Any:
        """``expr`` with later cells written out over the first; the last one kept if ``last``."""
        matrix = self.matrix
        pairs = list(zip(matrix.cells[1:], matrix.steps, strict=True))
        for cell, step in reversed(pairs[:-1] if last else pairs):
            expr = tir.substitute(expr, tir.VarMap([(cell, step)]))
        return expr

    def _weight(self, one_sum: MatrixSum) -> tuple[Any, bool]:
        """The weight of the state in the sum, and whether that is the state after the step."""
        cells = self.matrix.cells
        after = tir.contains_var(one_sum.term, [cells[-1]])
        term = self._over_first(one_sum.term, last=after)
        cell = cells[-1] if after else cells[0]
        if any(self.matrix.sum_of(load) for load in tir.loads(term)):
            raise NotUnderstood("a sum over a state that another sum went into")
        if tir.contains_var(term, [c for c in cells if not c.same_as(cell)]):
            raise NotUnderstood("a sum over states of two times")
        weight, rest = _affine(term, cell)
        if rest is not None:
            raise NotUnderstood("a sum that adds more than the state")
        return one(self.dtype) if weight is None else weight, after

    def _check(self, what: str, expr: Any, allowed: list[Var], totals: list[Var]) -> None:
        matrix = self.matrix
        every = [*self.axes, *self.inner, *matrix.cells, matrix.rows.var, matrix.columns.var]
        wrong = [v for v in [*every, *totals] if not _in(v, allowed)]
        for var in wrong:
            if tir.contains_var(expr, [var]):
                raise NotUnderstood(f"a {what} that depends on {var.name}: {expr}")
        if any(matrix.sum_of(load) for load in tir.loads(expr)):
            raise NotUnderstood(f"a {what} that depends on a sum over the state")


def _in(var: Var, among: list[Var]) -> bool:
    return any(var.same_as(other) for other in among)


def _affine(expr: Any, var: Var) -> tuple[Any, Any]:
    parts = coefficients(expr, var)
    if isinstance(parts, NotInFamily):
        raise NotUnderstood(f"{parts.reason}: {parts.expr}")
    return parts
