"""Quotients and remainders in indices, worked out where the ranges of the loops allow it.

TVM's own operators index by a flat position: ``out[(v * 29 + t + 1) // 29, (v * 29 + t + 1) % 29]``
is ``out[v, t + 1]``.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Var
from tvm.ir.expr import TensorLoad

from tvm_scan import tir
from tvm_scan.extraction.statements import Condition, Let, Loop, Store

Ranges = list[tuple[Var, Any]]


def tidy_indices(stmts: list[Any], ranges: Ranges | None = None) -> list[Any]:
    """A flattened nest with the indices of its loads and stores simplified.

    Parameters
    ----------
    stmts : list
        Flattened statements.
    ranges : list of (Var, Expr)
        Loops around them and their extents.
    """
    known: Ranges = ranges or []

    def index(expr: Any) -> Any:
        return tir.simplify(expr, known) if _divides(expr) else expr

    def load(read: TensorLoad) -> Any:
        if not any(_divides(i) for i in read.indices):
            return read
        return tirx.BufferLoad(read.source, [index(i) for i in read.indices])

    def tidy(expr: Any) -> Any:
        return tir.map_loads(expr, load) if tir.loads(expr) else expr

    out: list[Any] = []
    for s in stmts:
        if isinstance(s, Store):
            out.append(
                Store(s.buffer, [index(tidy(i)) for i in s.indices], tidy(s.value), s.origin)
            )
        elif isinstance(s, Let):
            out.append(Let(s.var, tidy(s.value), s.origin))
        elif isinstance(s, Condition):
            then, orelse = tidy_indices(s.then, known), tidy_indices(s.orelse, known)
            out.append(Condition(tidy(s.cond), then, orelse, s.origin))
        elif isinstance(s, Loop):
            body = tidy_indices(s.body, [*known, (s.var, s.extent)])
            out.append(Loop(s.var, s.extent, body, s.origin, s.thread))
        else:
            out.append(s)
    return out


def _divides(expr: Any) -> bool:
    return not tir.is_leaf(expr) and bool(tir.nodes(expr, tirx.FloorDiv, tirx.FloorMod))
