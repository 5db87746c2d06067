"""Stores of a delta rule at every step, the state that it starts from, and the one it leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.delta_rule import Read, Written
from tvm_scan.extraction.array_step import ArrayStep, Known, map_known
from tvm_scan.extraction.matrix_state import MatrixState, MatrixSum
from tvm_scan.extraction.nest import Nest, linear_in
from tvm_scan.extraction.statements import Loop, stores_in
from tvm_scan.extraction.step_loops import NotUnderstood, loop_of

#: Most cells that a step may store for one column.
_MOST = 16


def step_stores(
    nest: Nest,
    step: ArrayStep,
    matrix: MatrixState,
    external: tir.VarMap,
    read: Callable[[MatrixSum], tuple[Read, Any]],
    reads: list[Read],
) -> list[Written]:
    """Stores of one step and one column.

    Parameters
    ----------
    nest : Nest
        The loop nest.
    step : ArrayStep
        One executed step.
    matrix : MatrixState
        Its state.
    external : VarMap
        Buffers that are seen outside the nest.
    read : callable
        The read that a sum is, and what it is multiplied by for a column; None for 1.
    reads : list of Read
        Is filled with the reads that the stores need.

    Raises
    ------
    NotUnderstood
        If two steps, lanes or columns may store to one cell.
    """
    stores: list[Written] = []
    for buffer in _stored(nest.time.body):
        if buffer not in external or buffer.same_as(matrix.buffer):
            continue
        known = step.value_of(buffer)
        if known is None:
            raise NotUnderstood(f"a store to {buffer.name} that only the last iteration leaves")
        _check_output(buffer, known, nest, matrix)
        for indices, value in _instances(known, matrix):
            stores.append(Written(buffer, tuple(indices), _over(value, matrix, read, reads)))
    return stores


def _stored(stmts: list[Any]) -> list[Var]:
    return tir.VarMap((store.buffer, True) for store in stores_in(stmts)).keys()


def _check_output(buffer: Var, known: Known, nest: Nest, matrix: MatrixState) -> None:
    """Every step of every lane and column has a cell of its own: bare indices, each once."""
    axes = [lane.var for lane in matrix.lanes]
    axes += [matrix.columns.var] if matrix.column_is_lane else []
    for var in axes:
        moving = [i for i in known.indices if tir.contains_var(i, [var])]
        if len(moving) != 1 or not moving[0].same_as(var):
            raise NotUnderstood(f"{buffer.name} stored by several lanes")
    time = nest.time.var
    if tir.as_int(nest.time.extent) == 1:
        return
    moves = [linear_in(i, time) for i in known.indices if tir.contains_var(i, [time])]
    if len(moves) != 1 or moves[0] is None or abs(moves[0][0]) != 1:
        raise NotUnderstood(f"{buffer.name} stored without a cell for every step")
    if tir.contains_var(moves[0][1], axes):
        raise NotUnderstood(f"{buffer.name} stored along a diagonal")


def _column_loops(known: Known, matrix: MatrixState) -> list[Loop]:
    """Loops of a store that stand for the column, by the sums that its value reads."""
    out: list[Loop] = []
    for load in tir.loads(known.value):
        one_sum = matrix.sum_of(load)
        for loop, index in zip(one_sum.loops if one_sum else [], load.indices, strict=False):
            mine = loop_of(index, known.loops)
            if loop is None and mine is not None and mine not in out:
                out.append(mine)
    return out


def _instances(known: Known, matrix: MatrixState) -> list[tuple[list[Any], Any]]:
    """The store for one column, once for every value of its other loops."""
    columns = [] if matrix.column_is_lane else _column_loops(known, matrix)
    if len(columns) != (0 if matrix.column_is_lane else 1):
        raise NotUnderstood("an output that does not have the state's columns")
    instances = [(known.indices, known.value)]
    for loop in known.loops:
        count = tir.as_int(loop.extent) or 0
        values = [tirx.IntImm(tir.dtype_of(loop.var), n) for n in range(count)]
        values = [matrix.columns.var] if loop in columns else values
        if len(values) * len(instances) > _MOST:
            raise NotUnderstood(f"an output of more than {_MOST} cells for each step and column")
        tables = [tir.VarMap([(loop.var, value)]) for value in values]
        instances = [
            ([tir.substitute(i, table) for i in indices], tir.substitute(value, table))
            for indices, value in instances
            for table in tables
        ]
    return instances


def _over(
    value: Any,
    matrix: MatrixState,
    read: Callable[[MatrixSum], tuple[Read, Any]],
    reads: list[Read],
) -> Any:
    """``value`` over reads; sums that differ in their loops only are reads of their own."""

    def on_load(load: Any) -> Any:
        one_sum = matrix.sum_of(load)
        if one_sum is None:
            if any(load.source.same_as(symbol) for symbol, _ in matrix.symbols):
                raise NotUnderstood("an output that is the state itself")
            return load
        (summed, factor), table = read(one_sum), tir.VarMap()
        for loop, index in zip(one_sum.loops, load.indices, strict=False):
            if loop is not None:
                table[loop.var] = index
            elif not (isinstance(index, Var) and index.same_as(matrix.columns.var)):
                raise NotUnderstood("an output of another column than its own")
        weight = tir.substitute(summed.weight, table)

        def scaled(value: Any) -> Any:
            return value if factor is None else tir.substitute(factor, table) * value

        for other in reads:
            if other.after == summed.after and tir.structurally_equal(other.weight, weight):
                return scaled(other.value)
        if tir.contains_var(weight, [matrix.columns.var]):
            raise NotUnderstood("a read vector that depends on the column")
        reads.append(Read(summed.value, weight, summed.after))
        return scaled(summed.value)

    return map_known(value, on_load)


def around_time(
    nest: Nest, step: ArrayStep, matrix: MatrixState, external: tir.VarMap
) -> tuple[Any, Var, list[Written]]:
    """The state before time (None where it is in memory), and what is stored after time.

    Returns
    -------
    tuple of (Expr or None, Var, list of Written)
        The second is the cell after time, in the values of the third.

    Raises
    ------
    NotUnderstood
        If the statements around time are more than copies to and from the state.
    """
    final = tirx.Var("final", tir.dtype_of(matrix.buffer))
    state = step.known[matrix.buffer]
    initial = None
    if nest.before:
        begin = ArrayStep(step.written)
        begin.run(nest.before)
        known = begin.value_of(matrix.buffer)
        if known is None or begin.carried is not None or len(_stored(nest.before)) != 1:
            raise NotUnderstood("more than the state set before time")
        value = known.at(state.indices, state.loops)
        if value is None:
            raise NotUnderstood("a state that is set in part before time")
        initial = tir.substitute(value, matrix.canonical(state))
    elif matrix.buffer not in external:
        raise NotUnderstood("a state that nothing sets before time")
    if not nest.after:
        return initial, final, []
    end = ArrayStep(step.written)
    symbol = matrix.symbols[-1][0]
    end.known[matrix.buffer] = step.known[matrix.buffer]
    end.run(nest.after)
    if end.carried is not None or end.sums:
        raise NotUnderstood("more than copies of the state after time")
    finish = []
    for buffer in _stored(nest.after):
        known = end.value_of(buffer)
        if known is None or buffer not in external or buffer.same_as(matrix.buffer):
            raise NotUnderstood(f"a store to {buffer.name} after time")
        finish.append(_copied(buffer, known, symbol, matrix, final))
    return initial, final, finish


def _copied(buffer: Var, known: Known, symbol: Var, matrix: MatrixState, final: Var) -> Written:
    reads = [load for load in tir.loads(known.value) if load.source.same_as(symbol)]
    if not reads:
        raise NotUnderstood(f"a store to {buffer.name} after time without the state")
    table = tir.VarMap(
        (index, here)
        for index, here in zip(reads[0].indices, matrix.symbols[-1][1], strict=True)
        if loop_of(index, known.loops) is not None
    )
    indices = [tir.substitute(i, table) for i in known.indices]
    axes = [*(lane.var for lane in matrix.lanes), matrix.rows.var, matrix.columns.var]
    for var in axes:
        bare = [i for i in indices if isinstance(i, Var) and i.same_as(var)]
        if len(bare) != 1 or sum(1 for i in indices if tir.contains_var(i, [var])) != 1:
            raise NotUnderstood(f"a store to {buffer.name} after time shared by cells")
    cell = matrix.cells[-1]
    value = matrix.at_cell(tir.substitute(known.value, table))
    return Written(buffer, tuple(indices), tir.substitute(value, tir.VarMap([(cell, final)])))
