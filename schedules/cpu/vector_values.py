"""Formulas over scalars, evaluated on whole vectors: those of an algebra, cell by cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from tvm import tirx
from tvm.ir import Call, Var

from tvm_scan import tir
from tvm_scan.algebra import Algebra
from tvm_scan.algebra.base import Combine, Condition
from tvm_scan.algebra.literal import is_float
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.ir import local

#: Operations, with those that are repeated, from which on what is repeated has a name.
_LONG = 400

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

    def at(self, cell: Any) -> Any:
        """One cell, a scalar."""
        return tirx.BufferLoad(self.buffer, [cell])

    def store(self, value: Any) -> Any:
        """Statement that sets the whole vector."""
        return tirx.BufferStore(self.buffer, value, [tirx.Ramp(0, 1, self.width)])


def on_vectors(
    formula: Combine, first: Sequence[Any], second: Sequence[Any], width: int
) -> tuple[list[Any], list[Any]]:
    """A formula over scalars on vectors, and statements that name what a long one repeats.

    TVM's passes visit an expression as a tree, in which what is used twice stands twice: a
    composition that runs a map three times is a hundred times as long as what it computes.

    Parameters
    ----------
    formula : callable
        ``combine`` or ``apply`` of an algebra.
    first, second : sequence of Expr
        Parts of an element, and of another one or of carries: vectors of ``width`` cells.
    width : int
        Cells of a vector; of one cell all are scalars.

    Returns
    -------
    list of Stmt
        Bindings, empty for formulas that are short.
    list of Expr
        Vectors, over the names that are bound.
    """
    left, right = (
        variables(name, [tir.dtype_of(part).partition("x")[0] for part in parts])
        for name, parts in (("l", first), ("r", second))
    )
    table = tir.VarMap(zip((*left, *right), (*first, *second), strict=True))
    exprs = formula(left, right)
    uses, operations = _uses(exprs)
    binds: list[Any] = []
    named: dict[int, Any] = {}

    def vector(e: Any) -> Any:
        if operations <= _LONG:
            return _vector(e, table, width, vector)
        key = e.__hash__()
        if key in named:
            return named[key]
        value = _vector(e, table, width, vector)
        if uses[key] > 1 and not isinstance(e, Var) and is_float(tir.dtype_of(value)):
            name = Var(f"x{len(binds)}", value.ty)
            binds.append(tirx.Bind(name, value))
            value = name
        named[key] = value
        return value

    values = [vector(e) for e in exprs]
    return binds, [v if width == 1 or _is_vector(v) else tirx.Broadcast(v, width) for v in values]


def all_cells(condition: Condition, element: Sequence[Vector]) -> tuple[list[Any], Any]:
    """Statements, and a condition that says whether another one holds in every cell of vectors."""
    width = element[0].width
    parts = [part.load() for part in element]
    binds, (holds,) = on_vectors(lambda parts, _: (condition(parts),), parts, (), width)
    zeros, ones = (tirx.Broadcast(tirx.const(n, "int32"), width) for n in (0, 1))
    failing = tirx.Select(holds, zeros, ones)
    some = tirx.call_llvm_pure_intrin("int32", "llvm.vector.reduce.or", failing)
    name = Var("failing", "int32")
    return [*binds, tirx.Bind(name, some)], tirx.EQ(name, 0)


def set_vectors(
    targets: Sequence[Vector], formula: Combine, first: Sequence[Any], second: Sequence[Any]
) -> list[Any]:
    """Statements that set vectors to a formula as in ``on_vectors``."""
    binds, values = on_vectors(formula, first, second, targets[0].width)
    return [*binds, *(t.store(value) for t, value in zip(targets, values, strict=True))]


def _uses(exprs: Sequence[Any]) -> tuple[dict[int, int], int]:
    """Count the uses of each part of expressions, by identity, and their operations as trees."""
    uses: dict[int, int] = {}
    lengths: dict[int, int] = {}

    def length(e: Any) -> int:
        key = e.__hash__()
        uses[key] = uses.get(key, 0) + 1
        if key not in lengths:
            lengths[key] = 1 + sum(length(part) for part in _parts(e))
        return lengths[key]

    return uses, sum(length(e) for e in exprs)


def _can_be_vectors(algebra: Algebra, carries: Sequence[str]) -> bool:
    """Return whether combine and apply of an algebra are made of operations that vectors have."""
    if "bool" in (*carries, *algebra.dtypes):
        return False
    element, olds = (
        [tirx.Broadcast(tirx.const(0, d), 2) for d in dtypes]
        for dtypes in (algebra.dtypes, carries)
    )
    try:
        on_vectors(algebra.combine, element, element, 2)
        on_vectors(algebra.apply, element, olds, 2)
    except _NoVector:
        return False
    return True


@lru_cache(maxsize=256)
def takes_time_vectors(recurrence: Recurrence) -> bool:
    """Return whether steps of a recurrence can be the cells of a vector."""
    return recurrence.levels == 1 and all(
        not recurrence.state_axes(group)
        and _can_be_vectors(group.algebra, [recurrence.carries[c].dtype for c in group.carries])
        for group in recurrence.groups
    )


def variables(name: str, dtypes: Sequence[str]) -> tuple[Var, ...]:
    """Scalar variables for the parts of an element, or for carries."""
    return tuple(tirx.Var(f"{name}{j}", dtype) for j, dtype in enumerate(dtypes))


def _is_vector(value: Any) -> bool:
    return "x" in tir.dtype_of(value)


def _same_width(values: Sequence[Any], width: int) -> list[Any]:
    if not any(_is_vector(v) for v in values):
        return list(values)
    return [v if _is_vector(v) else tirx.Broadcast(v, width) for v in values]


def _parts(e: Any) -> tuple[Any, ...]:
    """The operands of an operation that vectors have."""
    if isinstance(e, _BINARY):
        return (e.a, e.b)
    if isinstance(e, tirx.Select):
        return (e.condition, e.true_value, e.false_value)
    if isinstance(e, tirx.Not):
        return (e.a,)
    if isinstance(e, tirx.Cast):
        return (e.value,)
    if isinstance(e, Call) and tir.call_name(e) == "tirx.isnan":
        return (e.args[0],)
    return ()


def _vector(e: Any, table: tir.VarMap, width: int, inner: Callable[[Any], Any]) -> Any:
    """``e`` on vectors; ``inner`` makes those of its operands."""
    if isinstance(e, Var):
        return table.get(e, e)
    if isinstance(e, tirx.IntImm | tirx.FloatImm):
        return e
    operands = _parts(e)
    if not operands:
        raise _NoVector(str(e))
    vectors = _same_width([inner(part) for part in operands], width)
    if isinstance(e, tirx.Cast):
        dtype = tir.dtype_of(e)
        return tirx.Cast(f"{dtype}x{width}" if _is_vector(vectors[0]) else dtype, vectors[0])
    if isinstance(e, Call):
        return tirx.isnan(vectors[0])
    return type(e)(*vectors)
