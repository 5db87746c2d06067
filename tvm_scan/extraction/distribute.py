"""``distributed``: a loop whose sums over its state run over two axes, as two loops over time.

Theorem (distribution over time). Let the update of a state read it in sums over one axis, and let
outputs, which nothing of the update reads, have sums over another one. A first loop computes the
update and keeps, for every step, what its sums are; a second one reads these in place of the sums.
Each then computes what the whole loop did, from the same terms in the same order. Columns of the
first loop, which is a delta rule, are independent; in the second one every cell of the state is.

Oja's rule is of this form, ``S' = S diag(g) + (k - S diag(g) v) (b v)'`` with ``y = S' q``: it
erases along the value and reads along the key.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Var
from tvm.ir.expr import TensorLoad

from tvm_scan import tir
from tvm_scan.algebra.literal import zero
from tvm_scan.delta_rule import Read, Written
from tvm_scan.extraction.array_step import ArrayStep, Sum, map_known
from tvm_scan.extraction.delta_stores import around_time, step_stores
from tvm_scan.extraction.matrix_state import MatrixState, MatrixSum, matrix_state, sums_over_state
from tvm_scan.extraction.nest import Nest
from tvm_scan.extraction.statements import stores_in
from tvm_scan.extraction.step_loops import NotUnderstood
from tvm_scan.recurrence import Axis


def distributed(nest: Nest, external: tir.VarMap) -> tuple[list[Any], list[Var]]:
    """Distribute a nest over two.

    Parameters
    ----------
    nest : Nest
        The loop nest.
    external : VarMap
        Buffers that are seen outside the nest.

    Returns
    -------
    tuple of (list of Stmt, list of Var)
        The two nests, and the buffers that they allocate.

    Raises
    ------
    NotUnderstood
        If the nest is not of the theorem's form.
    """
    everything = [*nest.before, nest.time, *nest.after]
    step = ArrayStep(tir.VarMap((store.buffer, True) for store in stores_in(everything)))
    step.run(nest.time.body)
    over = sums_over_state(step)
    update = [pair for pair in over if pair[0] in _of_update(step)]
    others = [pair for pair in over if pair not in update]
    if not update or not others or update[0][1] == others[0][1] or nest.guards:
        raise NotUnderstood("no sums over two axes of the state")
    first = _Half(nest, step, external, matrix_state(nest, step, external, update), None)
    second = _Half(nest, step, external, matrix_state(nest, step, external, others), first)
    return [first.stmt(), second.stmt()], [*first.of_steps, *first.buffers, *second.buffers]


def _of_update(step: ArrayStep) -> list[Sum]:
    """Sums that a store to the state reads, or one of these."""
    wanted = [known.value for _, known in step.versions[1:]]
    out: list[Sum] = []
    while wanted:
        read = tir.variables(wanted.pop())
        more = [s for s in step.sums if s.symbol in read and s not in out]
        out += more
        wanted += [s.term for s in more]
    return out


class _Half:
    """One of the two loops: a column of the state is a lane.

    Parameters
    ----------
    nest, step, external
        The whole loop, one step of it, and buffers that are seen outside.
    matrix : MatrixState
        The state by the axes of the sums of this half.
    first : _Half or None
        The loop before, which has computed the other sums.
    """

    def __init__(
        self,
        nest: Nest,
        step: ArrayStep,
        external: tir.VarMap,
        matrix: MatrixState,
        first: _Half | None,
    ) -> None:
        self.nest, self.step, self.external, self.matrix = nest, step, external, matrix
        self.first, self.dtype = first, tir.dtype_of(matrix.buffer)
        self.lanes = [*matrix.lanes, matrix.columns]
        self.totals: list[Var] = []
        sizes = [axis.extent for axis in (*matrix.lanes, self._time, matrix.columns)]
        names = [f"sums{n}" for n, _ in enumerate(matrix.sums if first is None else [])]
        #: What the sums are at every step.
        self.of_steps = [tirx.decl_buffer(sizes, self.dtype, name, layout=None) for name in names]
        number = "" if first is None else "_again"
        self.column = tirx.decl_buffer(
            [matrix.rows.extent], self.dtype, f"column{number}", layout=None
        )
        self.buffers = [] if self._in_place else [self.column]

    @property
    def _time(self) -> Axis:
        return Axis(self.nest.time.var, self.nest.time.extent)

    @property
    def _in_place(self) -> bool:
        return self.first is not None and self.matrix.buffer in self.external

    def _cell(self) -> tuple[Var, list[Any]]:
        if self._in_place:
            return self.matrix.buffer, self.matrix.indices
        return self.column, [self.matrix.rows.var]

    def _total(self, name: str) -> Var:
        total = tirx.decl_buffer([1], self.dtype, name, layout=None)
        self.totals.append(total)
        self.buffers.append(total)
        return total

    def stmt(self) -> Any:
        """The loop nest."""
        matrix, nest, rows = self.matrix, self.nest, [self.matrix.rows]
        initial, final, finish = around_time(nest, self.step, matrix, self.external)
        if initial is None and not self._in_place:
            initial = tirx.BufferLoad(matrix.buffer, matrix.indices)
        begin = [] if initial is None else [_loops(rows, [self._set(initial)])]
        last: list[Any] = []
        if self.first is None:
            pairs = zip(matrix.sums, self.of_steps, strict=True)
            sums = [stmt for pair in pairs for stmt in self._sum(*pair)]
            steps = [*sums, self._update()]
        else:
            steps = self._with_outputs()
            cell = tir.VarMap([(final, tirx.BufferLoad(*self._cell()))])
            last = [
                _loops(rows, [_stored(store, tir.substitute(store.value, cell))])
                for store in finish
            ]
        return _loops(self.lanes, [*begin, _loops([self._time], steps), *last])

    def _set(self, value: Any) -> Any:
        buffer, indices = self._cell()
        return tirx.BufferStore(buffer, value, indices)

    def _sum(self, one_sum: MatrixSum, over_time: Var) -> list[Any]:
        """One sum of the update, and the store of it."""
        version = max(n for n, _ in enumerate(self.matrix.cells) if self._reads(one_sum, n))
        term, total = self._chained(one_sum.term, version), self._total(f"total{len(self.totals)}")
        axes = [*(axis.var for axis in self.matrix.lanes), self.nest.time.var]
        value = tirx.BufferLoad(total, [0])
        store = tirx.BufferStore(over_time, value, [*axes, self.matrix.columns.var])
        return [*_summed(total, self.matrix.rows, term), store]

    def _reads(self, one_sum: MatrixSum, version: int) -> bool:
        return tir.contains_var(one_sum.term, [self.matrix.cells[version]])

    def _with_outputs(self) -> list[Any]:
        """The update and the stores of a step, with the sums that they read."""
        matrix, reads = self.matrix, list[Read]()
        last = len(matrix.cells) - 1

        def as_read(one_sum: MatrixSum) -> tuple[Read, Any]:
            var = tirx.Var(f"read{len(reads)}", self.dtype)
            return Read(var, one_sum.term, self._reads(one_sum, last)), None

        stores = step_stores(self.nest, self.step, matrix, self.external, as_read, reads)
        before: list[Any] = []
        after: list[Any] = []
        values = tir.VarMap()
        for read in reads:
            total = self._total(f"read{len(self.totals)}")
            values[read.value] = tirx.BufferLoad(total, [0])
            if read.after and tir.contains_var(read.weight, matrix.cells[:last]):
                raise NotUnderstood("a sum over states of two times")
            term = self._chained(read.weight, last - 1)
            if read.after:
                here = tir.VarMap([(matrix.cells[last], tirx.BufferLoad(*self._cell()))])
                term = self._known(tir.substitute(read.weight, here))
            (after if read.after else before).extend(_summed(total, matrix.rows, term))
        outputs = [_stored(s, self._known(tir.substitute(s.value, values))) for s in stores]
        return [*before, self._update(), *after, *outputs]

    def _update(self) -> Any:
        last = len(self.matrix.cells) - 1
        return _loops([self.matrix.rows], [self._set(self._chained(self.matrix.cells[last], last))])

    def _chained(self, expr: Any, version: int) -> Any:
        matrix = self.matrix
        for n in range(version, 0, -1):
            expr = tir.substitute(expr, tir.VarMap([(matrix.cells[n], matrix.steps[n - 1])]))
        cell = tirx.BufferLoad(*self._cell())
        return self._known(tir.substitute(expr, tir.VarMap([(matrix.cells[0], cell)])))

    def _known(self, expr: Any) -> Any:
        """``expr`` with loads of what holds the sums of the update."""
        of = self if self.first is None else self.first
        axes = [*(axis.var for axis in of.matrix.lanes), self.nest.time.var]

        def on_load(load: TensorLoad) -> Any:
            for number, one_sum in enumerate(of.matrix.sums):
                if load.source.same_as(one_sum.symbol):
                    if one_sum.loops != [None]:
                        raise NotUnderstood("a sum that has no column")
                    if self.first is not None:
                        return tirx.BufferLoad(of.of_steps[number], [*axes, *load.indices])
                    if not load.indices[0].same_as(self.matrix.columns.var):
                        raise NotUnderstood("a sum of another column than the step's own")
                    return tirx.BufferLoad(self.totals[number], [0])
            return load

        return map_known(expr, on_load)


def _summed(total: Var, rows: Axis, term: Any) -> list[Any]:
    added = tirx.BufferStore(total, tirx.BufferLoad(total, [0]) + term, [0])
    return [tirx.BufferStore(total, zero(tir.dtype_of(total)), [0]), _loops([rows], [added])]


def _stored(store: Written, value: Any) -> Any:
    return tirx.BufferStore(store.buffer, value, list(store.index))


def _loops(axes: list[Axis], body: list[Any]) -> Any:
    stmt = tir.loops_over([(axis.var, axis.extent) for axis in axes], tir.seq(body))
    return tir.fresh_copy(stmt)
