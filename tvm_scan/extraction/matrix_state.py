"""The state of a step as a matrix: which loops are its rows, its columns, and its lanes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.extraction.array_step import ArrayStep, Known, Sum, map_known
from tvm_scan.extraction.nest import Nest
from tvm_scan.extraction.statements import Loop
from tvm_scan.extraction.step_loops import NotUnderstood, loop_of
from tvm_scan.recurrence import Axis

#: Most rows of a state.
_LARGEST = 256


class SumsOverTwoAxes(NotUnderstood):
    """A state that sums run over in more than one axis; see ``distributed``."""


@dataclass(eq=False)
class MatrixSum:
    """``symbol[..] = sum over the rows of term``, over cells of the state, row and column.

    Attributes
    ----------
    symbol : Var
        What stands for the sum.
    loops : list of (Loop or None)
        Its loops; None where one stands for the column.
    term : Expr
        Over the cells.
    """

    symbol: Var
    loops: list[Loop | None]
    term: Any


@dataclass(eq=False)
class MatrixState:
    """A step of a matrix state, written for one cell of it.

    Attributes
    ----------
    buffer : Var
        The state.
    lanes : list of Axis
        Independent matrices.
    rows, columns : Axis
        The axis that sums run over, and the other one.
    indices : list of Expr
        Index of the cell.
    column_is_lane : bool
        Whether the column is a loop around time.
    cells : list of Var
        The cell before the step and after each store to it.
    steps : list of Expr
        What each store wrote, over earlier cells and loads of sums.
    sums : list of MatrixSum
        Sums over the state, and no others.
    """

    buffer: Var
    lanes: list[Axis]
    rows: Axis
    columns: Axis
    indices: list[Any]
    column_is_lane: bool
    cells: list[Var]
    steps: list[Any]
    sums: list[MatrixSum]
    #: For every version its symbol and the index at which a load of it is this cell.
    symbols: list[tuple[Var, list[Any]]]

    def at_cell(self, expr: Any) -> Any:
        """``expr`` with every load of the state at this cell as a variable; others are refused."""

        def on_load(load: Any) -> Any:
            for cell, (symbol, here) in zip(self.cells, self.symbols, strict=True):
                if load.source.same_as(symbol):
                    if all(_same(i, j) for i, j in zip(load.indices, here, strict=True)):
                        return cell
                    raise NotUnderstood(f"a read of another cell of {self.buffer.name}")
            return load

        return map_known(expr, on_load)

    def canonical(self, known: Known) -> tir.VarMap:
        """Row and column for the loops of a store to the state, or to a buffer of its shape."""
        return tir.VarMap(
            (index, here)
            for index, here in zip(known.indices, self.indices, strict=True)
            if loop_of(index, known.loops) is not None
        )

    def sum_of(self, load: Any) -> MatrixSum | None:
        """The sum that a load stands for."""
        return next((s for s in self.sums if load.source.same_as(s.symbol)), None)


def matrix_state(
    nest: Nest, step: ArrayStep, external: tir.VarMap, over: list[tuple[Sum, set[int]]]
) -> MatrixState:
    """Find the roles of the state's axes.

    Parameters
    ----------
    nest : Nest
        The loop nest.
    step : ArrayStep
        One executed step.
    external : VarMap
        Buffers that are seen outside the nest.
    over : list of (Sum, set of int)
        Those of ``sums_over_state`` whose axis is that of the rows.

    Raises
    ------
    NotUnderstood
        If the state is not a matrix whose columns share their weights.
    """
    buffer = step.carried
    if buffer is None or len(step.versions) < 2:
        raise NotUnderstood("no state that a step updates")
    if tir.dtype_of(buffer) not in ("float32", "float64"):
        raise NotUnderstood(f"a state of {tir.dtype_of(buffer)}")
    indices = step.versions[0][1].indices
    inner = {d: l for d, i in enumerate(indices) if (l := loop_of(i, step.versions[0][1].loops))}
    held = {d: l for d, i in enumerate(indices) if d not in inner and (l := loop_of(i, nest.lanes))}
    for d, index in enumerate(indices):
        if d not in inner and d not in held and tir.as_int(index) is None:
            raise NotUnderstood(f"a state at {index}")
    missing = [l for l in nest.lanes if l not in held.values()]
    private = buffer not in external and bool(nest.before)
    if len(set(map(id, held.values()))) != len(held) or (missing and not private):
        raise NotUnderstood("lanes that share a state")
    if not over:
        raise NotUnderstood("no sum over the state")
    dims = {d for _, dimensions in over for d in dimensions}
    if len(dims) != 1 or not dims <= set(inner):
        raise SumsOverTwoAxes("sums over different axes of the state")
    row_dim = dims.pop()
    others = [d for d in inner if d != row_dim]
    if len(others) > 1:
        raise NotUnderstood("a state that is not a matrix")
    column_dim = others[0] if others else -1
    lane = None if others else _lane_of_columns(nest.lanes, [s for s, _ in over])
    column_loop = lane or inner[column_dim]
    row_loop = inner[row_dim]
    sizes = [tir.as_int(row_loop.extent), tir.as_int(column_loop.extent)]
    if None in sizes or not all(sizes) or (sizes[0] or 0) > _LARGEST:
        raise NotUnderstood(f"a state of {row_loop.extent} x {column_loop.extent}")
    row = tirx.Var("row", tir.dtype_of(row_loop.var))
    column = tirx.Var("column", tir.dtype_of(column_loop.var)) if others else column_loop.var
    here = [
        row if d == row_dim else column if d == column_dim else i for d, i in enumerate(indices)
    ]
    dtype = tir.dtype_of(buffer)
    matrix = MatrixState(
        buffer,
        [Axis(l.var, l.extent) for l in nest.lanes if l is not column_loop],
        Axis(row, row_loop.extent),
        Axis(column, column_loop.extent),
        here,
        not others,
        [tirx.Var(f"cell{n}", dtype) for n in range(len(step.versions))],
        [],
        [],
        [(symbol, _indices_at(known, here)) for symbol, known in step.versions],
    )
    matrix.steps = [
        matrix.at_cell(tir.substitute(known.value, matrix.canonical(known)))
        for _, known in step.versions[1:]
    ]
    matrix.sums = [_matrix_sum(matrix, step, one_sum, column_dim) for one_sum, _ in over]
    return matrix


def _indices_at(known: Known, here: list[Any]) -> list[Any]:
    """Index of a version's symbol at which it is the cell ``here``."""
    return [
        here[next(d for d, i in enumerate(known.indices) if loop_of(i, [l]))] for l in known.loops
    ]


def sums_over_state(step: ArrayStep) -> list[tuple[Sum, set[int]]]:
    """Sums whose terms read the state, and the dimensions of the state that they run over."""
    out = []
    for one_sum in step.sums:
        dims: set[int] = set()
        reads = False
        for load in tir.loads(one_sum.term):
            for symbol, known in step.versions:
                if load.source.same_as(symbol):
                    reads = True
                    at = [n for n, i in enumerate(load.indices) if loop_of(i, [one_sum.over])]
                    if len(at) != 1:
                        raise NotUnderstood("a sum that does not run over the state")
                    loop = known.loops[at[0]]
                    dims.add(next(d for d, i in enumerate(known.indices) if loop_of(i, [loop])))
        if reads:
            out.append((one_sum, dims))
    return out


def _lane_of_columns(lanes: list[Loop], sums: list[Sum]) -> Loop:
    """The innermost lane on which no weight of a sum depends, but for a factor."""
    for lane in reversed(lanes):
        if not any(tir.contains_var(s.term, [lane.var]) for s in sums):
            return lane
    # The proof asks whether it is one.
    if lanes:
        return lanes[-1]
    raise NotUnderstood("weights that differ from column to column")


def _matrix_sum(matrix: MatrixState, step: ArrayStep, one_sum: Sum, column_dim: int) -> MatrixSum:
    if tir.dtype_of(one_sum.symbol) != tir.dtype_of(matrix.buffer):
        raise NotUnderstood("a sum in another dtype than the state")
    if tir.as_int(one_sum.over.extent) != tir.as_int(matrix.rows.extent):
        raise NotUnderstood("a sum over a part of the state")
    table = tir.VarMap([(one_sum.over.var, matrix.rows.var)])
    loops: list[Loop | None] = list(one_sum.loops)
    for load in tir.loads(one_sum.term):
        for symbol, known in step.versions:
            if not load.source.same_as(symbol) or matrix.column_is_lane:
                continue
            position = next(
                n for n, l in enumerate(known.loops) if loop_of(known.indices[column_dim], [l])
            )
            column = loop_of(load.indices[position], one_sum.loops)
            if column is not None:
                table[column.var] = matrix.columns.var
                loops = [None if l is column else l for l in loops]
    term = matrix.at_cell(tir.substitute(one_sum.term, table))
    return MatrixSum(one_sum.symbol, loops, term)


def _same(left: Any, right: Any) -> bool:
    return isinstance(left, Var) and isinstance(right, Var) and left.same_as(right)
