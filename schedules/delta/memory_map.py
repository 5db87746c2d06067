"""Copies between the memory of a delta rule and the tiles of a chunk, for both kinds of device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Var

from tvm_scan import tir
from tvm_scan.delta_rule import DeltaRule, Written
from tvm_scan.schedules.common.ir import as_dtype, int_const


class MemoryMap:
    """One task: a matrix, and its columns from ``origin`` on.

    Parameters
    ----------
    rule : DeltaRule
        What is built.
    matrix : Expr
        Row-major number of the matrix.
    origin : Expr
        First column.
    """

    def __init__(self, rule: DeltaRule, matrix: Any, origin: Any) -> None:
        self.rule, self.origin = rule, origin
        self.index = tir.dtype_of(rule.time.var)
        values = []
        for lane in reversed(rule.lanes):
            extent = as_dtype(lane.extent, self.index)
            values.append(as_dtype(matrix % extent, tir.dtype_of(lane.var)))
            matrix = matrix // extent
        self.table = tir.VarMap(
            (lane.var, value) for lane, value in zip(rule.lanes, values[::-1], strict=True)
        )

    def at(self, expr: Any, t: Any = None, row: Any = None, column: Any = None) -> Any:
        """``expr`` at a step, a row, and a column of the task."""
        rule, table = self.rule, self.table.copy()
        if t is not None:
            table[rule.time.var] = t
        if row is not None:
            table[rule.rows.var] = as_dtype(row, tir.dtype_of(rule.rows.var))
        if column is not None:
            index = as_dtype(self.origin + column, tir.dtype_of(rule.columns.var))
            table[rule.columns.var] = index
        return tir.substitute(expr, table)

    def first(self, row: Any, column: Any) -> Any:
        """A cell of the state before time."""
        value = self.rule.initial
        if value is None:
            value = tirx.BufferLoad(self.rule.state, list(self.rule.indices))
        return self.at(value, row=row, column=column)

    def last(self, row: Any, column: Any, value: Any) -> Any:
        """Store a cell of the state after time, wherever it is wanted."""
        rule = self.rule
        state = [Written(rule.state, rule.indices, rule.final)] if rule.is_kept else []
        table = tir.VarMap([(rule.final, value)])
        return self._stores([*state, *rule.finish], table, row=row, column=column)

    def emit(self, time: Any, column: Any, reads: list[Any]) -> Any:
        """Stores of one step and column, given the values of its reads."""
        pairs = zip(self.rule.reads, reads, strict=True)
        table = tir.VarMap((read.value, value) for read, value in pairs)
        return self._stores(self.rule.stores, table, t=time, column=column)

    def _stores(self, stores: Sequence[Written], table: tir.VarMap, **at: Any) -> Any:
        return tir.seq(
            tirx.BufferStore(
                store.buffer,
                tir.substitute(self.at(store.value, **at), table),
                [self.at(index, **at) for index in store.index],
            )
            for store in stores
        )

    def held_calls(
        self, exprs: list[tuple[Any, Var]], make: Callable[[int], Var]
    ) -> tuple[list[Any], list[tuple[Any, Var]]]:
        """Take calls out of expressions that do not depend on the axis they are computed along.

        Parameters
        ----------
        exprs : list of (Expr, Var)
            Expressions, each with its axis.
        make : callable
            The register of that number.

        Returns
        -------
        tuple of (list of Expr, list of (Expr, Var))
            The expressions over registers, and what each register holds.
        """
        held = tir.ExprMap()
        zero = int_const(0, self.index)

        def without(expr: Any, axis: Var) -> Any:
            def on_call(call: Call) -> Any:
                if tir.dtype_of(call) != self.rule.dtype or tir.contains_var(call, [axis]):
                    return call
                if call not in held:
                    held[call] = make(len(held))
                return tirx.BufferLoad(held[call], [zero])

            return tvm_ffi.structural_map(expr, (Call, on_call))

        return [without(expr, axis) for expr, axis in exprs], held.items()


def blocks_of(rule: DeltaRule, width: int) -> list[tuple[int, int, int]]:
    """Blocks of columns: the first column of some, columns of each, and how many there are."""
    whole, rest = divmod(int(rule.columns.extent), width)
    blocks = [(0, width, whole), (whole * width, rest, 1)]
    return [block for block in blocks if all(block[1:])]


def assign_task(
    rule: DeltaRule, blocks: int, width: int, first: int = 0
) -> tuple[Var, Any, MemoryMap]:
    """Give a task a matrix and some of its columns.

    Parameters
    ----------
    rule : DeltaRule
        What is built.
    blocks, width, first : int
        Blocks of columns of a matrix, columns of one, and the first column of all.

    Returns
    -------
    tuple of (Var, Expr, MemoryMap)
        Number of the task, how many there are, and its cells.
    """
    index = tir.dtype_of(rule.time.var)
    total: Any = int_const(blocks, index)
    for lane in rule.lanes:
        total = total * as_dtype(lane.extent, index)
    task = tirx.Var("v_task", index)
    memory = MemoryMap(rule, task // blocks, (task % blocks) * width + first)
    return task, tir.simplify(total), memory
