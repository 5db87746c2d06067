"""The integers of a flattened nest: indices, sides of comparisons, and what is cast to a number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir.expr import TensorLoad

from tvm_scan import tir
from tvm_scan.algebra.literal import is_integer
from tvm_scan.extraction.statements import (
    Condition,
    Loop,
    map_expressions,
    map_inside,
    rebuild,
    without_allocs,
)

_COMPARISONS = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE)
_ARITHMETIC = (
    tirx.Add,
    tirx.Sub,
    tirx.Mul,
    tirx.FloorDiv,
    tirx.FloorMod,
    tirx.Max,
    tirx.Min,
    tirx.BitwiseAnd,
    tirx.BitwiseOr,
    tirx.BitwiseXor,
    tirx.LShift,
    tirx.RShift,
)
Map = Callable[[Any], Any]


def map_integers(stmts: list[Any], run: Map) -> list[Any]:
    """``stmts`` with ``run`` applied to every integer that no load is a part of.

    Parameters
    ----------
    stmts : list
        Flattened statements.
    run : callable
        From an index, a side of a comparison or the operand of a cast to what replaces it.
    """

    def integer(e: Any) -> Any:
        return run(e) if _is_plain_integer(e) else e

    def on_load(load: TensorLoad) -> Any:
        return tirx.BufferLoad(load.source, [integer(i) for i in load.indices])

    def on_comparison(e: Any) -> Any:
        return type(e)(integer(e.a), integer(e.b))

    def on_arithmetic(e: Any) -> Any:
        return e if _is_plain_integer(e) else type(e)(integer(e.a), integer(e.b))

    def on_cast(e: tirx.Cast) -> Any:
        return tirx.Cast(tir.dtype_of(e), integer(e.value))

    handlers = [
        (TensorLoad, on_load),
        (_COMPARISONS, on_comparison),
        (_ARITHMETIC, on_arithmetic),
        (tirx.Cast, on_cast),
    ]

    def expr(e: Any) -> Any:
        return integer(e if tir.is_leaf(e) else tvm_ffi.structural_map(e, handlers))

    return map_expressions(stmts, expr)


def _is_plain_integer(e: Any) -> bool:
    return is_integer(tir.dtype_of(e)) and not tir.loads(e)


def simplified(stmts: list[Any], ranges: list[tuple[Any, Any]]) -> list[Any]:
    """``stmts`` with all integers simplified, given loops around them and their extents."""
    out: list[Any] = []
    for s in stmts:
        empty = map_inside(s, lambda _: [])
        (flat,) = map_integers([empty], lambda e: tir.simplify(e, ranges))
        if isinstance(s, Condition):
            flat.then, flat.orelse = simplified(s.then, ranges), simplified(s.orelse, ranges)
        elif isinstance(s, Loop):
            flat.body = simplified(s.body, [*ranges, (s.var, s.extent)])
        out.append(flat)
    return out


def same_statements(left: list[Any], right: list[Any]) -> bool:
    """Return whether two lists do the same, up to the names of what they bind themselves."""
    pair = [without_allocs(stmts) for stmts in (left, right)]
    if len(pair[0]) != len(pair[1]):
        return False
    return tir.structurally_equal(*(rebuild(stmts) for stmts in pair))
