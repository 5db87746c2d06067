"""Expressions over scalars, evaluated on whole vectors: shuffles, and an algebra lane by lane."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.ir import Call, Var

from tvm_scan import tir
from tvm_scan.algebra import Algebra
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.ir import local

__all__ = ["Vector", "blend", "names", "on_vectors", "shift", "takes_time_vectors"]

_BINARY = (
    tirx.Add,
    tirx.Sub,
    tirx.Mul,
    tirx.Div,
    tirx.Max,
    tirx.Min,
    tirx.EQ,
    tirx.NE,
    tirx.LT,
    tirx.LE,
    tirx.GT,
    tirx.GE,
    tirx.And,
    tirx.Or,
    tirx.BitwiseAnd,
    tirx.BitwiseOr,
    tirx.BitwiseXor,
    tirx.LShift,
    tirx.RShift,
)


class _NoVector(Exception):
    """An operation that has no vector form here."""


class Vector:
    """A local array that is read and written as one vector.

    Parameters
    ----------
    name : str
        Of the buffer.
    width : int
        Cells of the vector.
    dtype : str
        Of one cell.
    """

    def __init__(self, name: str, width: int, dtype: str) -> None:
        self.buffer = local(name, [width], dtype)
        self.width = width

    def load(self) -> Any:
        """The whole vector."""
        return tirx.BufferLoad(self.buffer, [tirx.Ramp(0, 1, self.width)])

    def at(self, cell: int) -> Any:
        """One cell, a scalar."""
        return tirx.BufferLoad(self.buffer, [tirx.IntImm("int32", cell)])

    def store(self, value: Any) -> Any:
        """Statement that sets the whole vector."""
        return tirx.BufferStore(self.buffer, value, [tirx.Ramp(0, 1, self.width)])


def shift(vector: Any, by: int, width: int) -> Any:
    """Cell ``v`` of the result is cell ``v - by``; the first cells are any."""
    return tirx.Shuffle([vector], [max(v - by, 0) for v in range(width)])


def blend(first: Any, rest: Any, count: int, width: int) -> Any:
    """``count`` cells of ``first``, then those of ``rest`` at the same indices."""
    return tirx.Shuffle([first, rest], [v if v < count else width + v for v in range(width)])


def on_vectors(expr: Any, table: tir.VarMap, width: int) -> Any:
    """A scalar expression with its variables replaced by vectors.

    Parameters
    ----------
    expr : Expr
        Over the variables of ``table``.
    table : VarMap
        Variable -> vector of ``width`` cells.
    width : int
        Cells of a vector.

    Returns
    -------
    Expr
        A vector.
    """
    value = _vector(expr, table, width)
    return value if _is_vector(value) else tirx.Broadcast(value, width)


def _can_be_vectors(algebra: Algebra, carries: Sequence[str]) -> bool:
    """Return whether combine and apply of an algebra are made of operations that vectors have."""
    if "bool" in (*carries, *algebra.dtypes):
        return False
    first, second, old = names(algebra, carries)
    table = tir.VarMap((v, tirx.Broadcast(tirx.const(0, tir.dtype_of(v)), 2)) for v in first)
    for var in (*second, *old):
        table[var] = tirx.Broadcast(tirx.const(0, tir.dtype_of(var)), 2)
    try:
        for value in (*algebra.combine(first, second), *algebra.apply(first, old)):
            on_vectors(value, table, 2)
    except _NoVector:
        return False
    return True


def takes_time_vectors(recurrence: Recurrence) -> bool:
    """Return whether steps of a recurrence can be the cells of a vector."""
    return recurrence.levels == 1 and all(
        not recurrence.state_axes(group)
        and _can_be_vectors(group.algebra, [recurrence.carries[c].dtype for c in group.carries])
        for group in recurrence.groups
    )


def names(
    algebra: Algebra, carries: Sequence[str]
) -> tuple[tuple[Var, ...], tuple[Var, ...], tuple[Var, ...]]:
    """Variables for two elements, and for carries of the given dtypes."""
    return (
        tuple(tirx.Var(f"l{j}", d) for j, d in enumerate(algebra.dtypes)),
        tuple(tirx.Var(f"r{j}", d) for j, d in enumerate(algebra.dtypes)),
        tuple(tirx.Var(f"h{j}", d) for j, d in enumerate(carries)),
    )


def _is_vector(value: Any) -> bool:
    return "x" in tir.dtype_of(value)


def _same_width(values: Sequence[Any], width: int) -> list[Any]:
    if not any(_is_vector(v) for v in values):
        return list(values)
    return [v if _is_vector(v) else tirx.Broadcast(v, width) for v in values]


def _vector(e: Any, table: tir.VarMap, width: int) -> Any:
    def go(*parts: Any) -> list[Any]:
        return _same_width([_vector(part, table, width) for part in parts], width)

    if isinstance(e, Var):
        return table.get(e, e)
    if isinstance(e, tirx.IntImm | tirx.FloatImm):
        return e
    if isinstance(e, _BINARY):
        return type(e)(*go(e.a, e.b))
    if isinstance(e, tirx.Not):
        return tirx.Not(*go(e.a))
    if isinstance(e, tirx.Select):
        return tirx.Select(*go(e.condition, e.true_value, e.false_value))
    if isinstance(e, tirx.Cast):
        (value,) = go(e.value)
        dtype = tir.dtype_of(e)
        return tirx.Cast(f"{dtype}x{width}" if _is_vector(value) else dtype, value)
    if isinstance(e, Call) and tir.call_name(e) == "tirx.isnan":
        (value,) = go(e.args[0])
        return tirx.isnan(value)
    raise _NoVector(str(e))
