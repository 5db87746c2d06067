"""The proof that the step of a matrix state is a delta rule's: gates, terms, and reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.algebra.affine import coefficients
from tvm_scan.algebra.base import NotInFamily
from tvm_scan.algebra.literal import one, zero
from tvm_scan.delta_rule import Read, Term
from tvm_scan.extraction.array_step import map_known
from tvm_scan.extraction.factors import products
from tvm_scan.extraction.matrix_state import MatrixState, MatrixSum
from tvm_scan.extraction.nest import Nest
from tvm_scan.extraction.step_loops import NotUnderstood


class StepProof:
    """The conditions of the theorem of ``extract_delta``; each raises ``NotUnderstood``.

    Parameters
    ----------
    matrix : MatrixState
        The step, written for one cell of the state.
    nest : Nest
        The loop nest.
    """

    def __init__(self, matrix: MatrixState, nest: Nest) -> None:
        self.matrix = matrix
        self.dtype = tir.dtype_of(matrix.buffer)
        #: All that an expression may depend on besides inputs.
        self.axes = [*(lane.var for lane in matrix.lanes), nest.time.var]
        self.inner = [loop.var for s in matrix.sums for loop in s.loops if loop is not None]
        #: The sums that the update reads, the vector of each with the stores before it, what stands
        #: for the vector's product, and for the sum: that times a factor of the column.
        self._sums: list[MatrixSum] = []
        self._sources: list[tuple[Any, int]] = []
        self._totals: list[Var] = []
        self._scaled: list[Any] = []

    def update(self) -> tuple[Any, Any, tuple[Term, ...]]:
        """Gates of rows and of columns (None for 1), and what is added."""
        row, column, totals = self.matrix.rows.var, self.matrix.columns.var, self._totals
        both, added = self._decomposed(len(self.matrix.cells) - 1)
        gate, column_gate = self._split("gate", both)
        counts = [self._count_until(version, both, added) for _, version in self._sources]
        terms = [term for into, amount in added for term in self._terms(into, amount, counts)]
        self._check("gate", gate, [*self.axes, row], totals)
        self._check("gate of columns", column_gate, [*self.axes, column], totals)
        for term in terms:
            for what, expr, allowed in (
                ("vector", term.into, row),
                ("read vector", term.source, row),
                ("rate", term.rate, column),
                ("amount", term.drive, column),
            ):
                self._check(what, expr, [*self.axes, allowed], totals)
        return gate, column_gate, tuple(terms)

    def _decomposed(self, version: int) -> tuple[Any, list[tuple[Any, Any]]]:
        """Gate, and pairs of a vector and an amount, of the cell after so many stores."""
        matrix = self.matrix
        cell = matrix.cells[0]
        step = map_known(self._over_first(matrix.cells[version]), self._total)
        if not self._sums:
            raise NotUnderstood("no sum over the state in its update")
        gate, rest = _affine(step, cell)
        gate = one(self.dtype) if gate is None else gate
        apart = [*self._totals, matrix.columns.var, cell]
        return gate, [] if rest is None else products(rest, matrix.rows.var, apart)

    def _total(self, load: Any) -> Any:
        """Stand-in for a load: of a sum over the state, its total for the column of the step."""
        one_sum = self.matrix.sum_of(load)
        if one_sum is None:
            return load
        column = self.matrix.columns.var
        for loop, index in zip(one_sum.loops, load.indices, strict=False):
            if loop is not None or not (isinstance(index, Var) and index.same_as(column)):
                raise NotUnderstood("a sum of another column than the step's own")
        if one_sum not in self._sums:
            weight, version = self._source(one_sum)
            source, factor = self._split("read vector", weight)
            total = tirx.Var(f"total{len(self._sums)}", self.dtype)
            self._sums.append(one_sum)
            self._sources.append((source, version))
            self._totals.append(total)
            self._scaled.append(total if factor is None else factor * total)
        return self._scaled[self._sums.index(one_sum)]

    def _source(self, one_sum: MatrixSum) -> tuple[Any, int]:
        """The weight of the state in a sum of the update, and after how many stores that is."""
        cells = self.matrix.cells
        version = max(n for n, cell in enumerate(cells) if tir.contains_var(one_sum.term, [cell]))
        if version == len(cells) - 1:
            raise NotUnderstood("an update by a sum over the state that it updates")
        term = self._over_first(one_sum.term)
        if not any(self.matrix.sum_of(load) for load in tir.loads(term)):
            weight, rest = _affine(term, cells[0])
            if rest is None:
                return one(self.dtype) if weight is None else weight, 0
        return self._over_cell(one_sum.term, version), version

    def _over_cell(self, term: Any, version: int) -> Any:
        """The weight of the cell after so many stores in a term that reads no other one."""
        cells = self.matrix.cells
        if tir.contains_var(term, [cell for n, cell in enumerate(cells) if n != version]):
            raise NotUnderstood("a sum over states of two times")
        weight, rest = _affine(term, cells[version])
        if rest is not None:
            raise NotUnderstood("a sum that adds more than the state")
        return one(self.dtype) if weight is None else weight

    def _count_until(self, version: int, gate: Any, added: list[tuple[Any, Any]]) -> int:
        """Terms of the step that are in the state after so many stores."""
        if not version:
            return 0
        passed, before = self._decomposed(version)
        same = tir.structurally_equal
        alike = [
            same(into, other) and same(amount, another)
            for (into, amount), (other, another) in zip(before, added, strict=False)
        ]
        if not same(passed, gate) or sum(alike) != len(before):
            raise NotUnderstood("a sum over a state that is not the gates' and the first terms'")
        return sum(max(1, len(self._totals_in(amount))) for _, amount in before)

    def _totals_in(self, amount: Any) -> list[int]:
        return [n for n, total in enumerate(self._totals) if tir.contains_var(amount, [total])]

    def _terms(self, into: Any, amount: Any, counts: list[int]) -> Iterator[Term]:
        """An amount of several sums as terms of one each, the drive with the first."""
        read = []
        for number in self._totals_in(amount):
            rate, amount = _affine(amount, self._totals[number])
            amount = zero(self.dtype) if amount is None else amount
            read.append((number, one(self.dtype) if rate is None else rate))
        if not read:
            yield Term(into, None, None, amount)
        for position, (number, rate) in enumerate(read):
            drive = zero(self.dtype) if position else amount
            yield Term(into, self._sources[number][0], rate, drive, counts[number])

    def read(self, one_sum: MatrixSum, reads: list[Read]) -> tuple[Read, Any]:
        """A read of the state, over the sum's own loops if it has any, and its column's factor."""
        weight, after = self._weight(one_sum)
        weight, factor = self._split("read vector", weight)
        self._check("read vector", weight, [*self.axes, self.matrix.rows.var, *self.inner], [])
        allowed = [*self.axes, self.matrix.columns.var, *self.inner]
        self._check("factor of a read", factor, allowed, [])
        return Read(tirx.Var(f"read{len(reads)}", self.dtype), weight, after), factor

    def _split(self, what: str, expr: Any) -> tuple[Any, Any]:
        """Factors of rows and of columns, whose product an expression is; None for 1."""
        row, column = self.matrix.rows.var, self.matrix.columns.var
        if not tir.contains_var(expr, [column]):
            return expr, None
        with suppress(NotUnderstood):
            pairs = products(expr, row, [column])
            if len(pairs) == 1:
                return pairs[0]
        raise NotUnderstood(f"a {what} that depends on {column.name} and not as a factor: {expr}")

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
        if any(self.matrix.sum_of(load) for load in tir.loads(term)):
            raise NotUnderstood("a sum over a state that another sum went into")
        return self._over_cell(term, len(cells) - 1 if after else 0), after

    def _check(self, what: str, expr: Any, allowed: list[Var], totals: list[Var]) -> None:
        if expr is None:
            return
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
