"""``extract_delta``: the proof that a loop is a delta rule.

Theorem (diagonal plus low rank). Let a step be ``S'[i] = a[i] S[i] + b[i]``, where b may read
sums ``d = sum_j e[j] S[j]`` over the state before it. If b is a sum of products ``p[i] u`` with u
free of i and affine in the sums, it is one of terms ``u = rate d + drive`` of a sum each, and
``S' = (diag(a) + sum of rate p e^T) S + sum of p drive``. If none of a, p, e and what the outputs
weigh the state with depends on the column, all columns share them. Over a chunk of steps then,
with the gates' products ``A(s, t) = a[s+1] .. a[t]``, for each term, summing over all of them,
``u[t] = drive[t] + rate[t] e[t] . (A(0, t-1) S[0] + sum_{s<t} A(s, t-1) p[s] u[s])``,
a triangular system for the u; states and outputs are matrix products with it.

A term may read the state that the terms before it in its step leave, ``a S + p[1] u[1] + ..``: the
sum is ``(e a) . S + (e . p[1]) u[1] + ..``, and the system has these steps within a step. A gate
that is a product of one of rows and one of columns is both, since ``diag(a) S diag(c)`` multiplies
from two sides; so is the weight of a sum, whose columns' factor multiplies the sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from tvm import tirx

from tvm_scan import tir
from tvm_scan.delta_rule import DeltaRule, Read, Written
from tvm_scan.extraction.accesses import accesses_of
from tvm_scan.extraction.array_step import ArrayStep
from tvm_scan.extraction.assemble import buffers_outside
from tvm_scan.extraction.delta_proof import StepProof
from tvm_scan.extraction.delta_stores import around_time, step_stores
from tvm_scan.extraction.distribute import distributed
from tvm_scan.extraction.flatten import flatten
from tvm_scan.extraction.matrix_state import SumsOverTwoAxes, matrix_state, sums_over_state
from tvm_scan.extraction.nest import Nest, find_nest
from tvm_scan.extraction.one_step import as_one_step
from tvm_scan.extraction.partial_sums import with_whole_sums
from tvm_scan.extraction.preconditions import check_preconditions
from tvm_scan.extraction.selected import with_selected_values
from tvm_scan.extraction.split_loops import with_whole_lanes, with_whole_loops
from tvm_scan.extraction.statements import stores_in
from tvm_scan.extraction.step_loops import NotUnderstood
from tvm_scan.extraction.unroll import unrolled_body
from tvm_scan.extraction.wide_state import widened
from tvm_scan.recurrence import Axis, Refusal, RefusalKind


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
        A refused nest whose update and outputs sum over different axes of the state has its two
        loops over time with it.
    """
    external = buffers_outside(func, stmt)
    tree = flatten(func, stmt)
    if isinstance(tree, Refusal):
        return tree
    body = with_whole_loops(tree.body, tree.reduced)
    result = _over_time(func, stmt, body, tree.reduced, external)
    if isinstance(result, DeltaRule):
        return result
    again = _over_time(func, stmt, as_one_step(body, external), tir.VarMap(), external)
    if isinstance(again, DeltaRule):
        return again
    return replace(result, loops=result.loops or again.loops)


def _over_time(
    func: tirx.PrimFunc, stmt: Any, body: list[Any], reduced: tir.VarMap, external: tir.VarMap
) -> DeltaRule | Refusal:
    """Prove the first form of a nest that is understood."""
    refusals: list[Refusal] = []
    loops = None
    for interchange in (True, False):
        nest = find_nest(body, reduced, external, interchange=interchange)
        if isinstance(nest, Refusal):
            return replace(nest, loops=loops)
        refusal = check_preconditions(func, nest)
        if refusal is not None:
            return replace(refusal, loops=loops)
        for form in _written_out(nest):
            try:
                whole = _with_whole_sums(with_whole_lanes(form), external)
                return _rule(func, stmt, whole, external)
            except NotUnderstood as reason:
                refusals.append(_refused(func, reason, nest))
                if isinstance(reason, SumsOverTwoAxes):
                    with suppress(NotUnderstood):
                        loops = loops or distributed(whole, external)
    return replace(refusals[0], loops=loops)


def _written_out(nest: Nest) -> Iterator[Nest]:
    """Yield a nest, and if its step has loops over a few updates, that with these written out."""
    yield nest
    body = unrolled_body(nest.time.body)
    if body is not None:
        yield replace(nest, time=replace(nest.time, body=body))


def _with_whole_sums(nest: Nest, external: tir.VarMap) -> Nest:
    around = [(a.buffer, True) for a in accesses_of([*nest.before, *nest.after])]
    body = with_selected_values(nest.time.body)
    body = with_whole_sums(body, tir.VarMap([*external.items(), *around]))
    return replace(nest, time=replace(nest.time, body=with_whole_loops(body, tir.VarMap())))


def _refused(func: tirx.PrimFunc, reason: NotUnderstood, nest: Nest) -> Refusal:
    return Refusal(
        RefusalKind.COUPLED_CARRIES,
        reason.origin or nest.time.origin,
        "expected a delta rule, S' = diag(g) S + p (w + r (q . S)) + .. with the same g, p and q "
        f"for all columns of S, found {reason.detail}",
        reason.fix or "the forms of the delta rule that are taken are listed in docs/families.md",
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
    matrix = matrix_state(nest, step, external, sums_over_state(step))
    if tir.contains_var(matrix.indices, [nest.time.var]):
        raise NotUnderstood("a state that is indexed by time")
    proof = StepProof(matrix, nest)
    gate, column_gate, terms = proof.update()
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
        matrix.buffer, tuple(matrix.indices), initial, is_kept,
        gate, column_gate, terms, tuple(reads),
        tuple(wide.rounded(store) for store in stores),
        final, tuple(wide.rounded(store) for store in finish),
        tuple(read.keys()), tuple(wide.in_memory(b) for b in written.keys() if b in external),
    )  # fmt: skip
