"""Small inner loops, written out, so that each cell has an index of its own."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_scan import tir
from tvm_scan.extraction.accesses import rename
from tvm_scan.extraction.statements import Condition, Let, Loop, decided, statements_in

_LARGEST_EXTENT = 4
#: Statements that unrolling may make of a body.
_LARGEST_BODY = 256


def unrolled_body(body: list[Any]) -> list[Any] | None:
    """A loop body with every loop of at most four iterations written out.

    Parameters
    ----------
    body : list
        Flattened statements.

    Returns
    -------
    list or None
        None where there is no such loop, or the result would be long.
    """
    out, is_changed = _unroll(body)
    return out if is_changed and _size(out) <= _LARGEST_BODY else None


def _unroll(stmts: list[Any]) -> tuple[list[Any], bool]:
    out: list[Any] = []
    is_changed = False
    for stmt in stmts:
        if isinstance(stmt, Loop):
            inner, inside = _unroll(stmt.body)
            extent = tir.as_int(stmt.extent)
            if extent is None or extent > _LARGEST_EXTENT or _size(inner) * extent > _LARGEST_BODY:
                out.append(Loop(stmt.var, stmt.extent, inner, stmt.origin, stmt.thread))
                is_changed |= inside
                continue
            is_changed = True
            for i in range(extent):
                value = tirx.IntImm(tir.dtype_of(stmt.var), i)
                copy = rename(inner, tir.VarMap([(stmt.var, value)]))
                # Conditions on the number of an iteration alone: one side is left.
                choices = decided(copy, lambda cond: tir.as_int(tir.simplify(cond)))
                out += _renamed_lets(choices)
        elif isinstance(stmt, Condition):
            then, in_then = _unroll(stmt.then)
            orelse, in_else = _unroll(stmt.orelse)
            out.append(Condition(stmt.cond, then, orelse, stmt.origin))
            is_changed |= in_then or in_else
        else:
            out.append(stmt)
    return out, is_changed


def _renamed_lets(stmts: list[Any]) -> list[Any]:
    """Copies of an iteration must not bind one variable twice."""
    out = list(stmts)
    for i, stmt in enumerate(out):
        if isinstance(stmt, Let):
            fresh = tirx.Var(stmt.var.name, tir.dtype_of(stmt.var))
            out[i] = Let(fresh, stmt.value, stmt.origin)
            out[i + 1 :] = rename(out[i + 1 :], tir.VarMap([(stmt.var, fresh)]))
    return out


def _size(stmts: list[Any]) -> int:
    return sum(not isinstance(stmt, Loop | Condition) for stmt in statements_in(stmts))
