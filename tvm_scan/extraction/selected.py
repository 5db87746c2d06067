"""Stores of a step under a condition, as stores of a value that the condition selects.

Theorem (selection). Let a condition read nothing that the statements under it store, and let no
index of these stores depend on what it does. Then ``if c: B[i] = B[i] + e`` is ``B[i] = B[i] +
if_then_else(c, e, 0)``, and any other store under it one of ``if_then_else(c, e, B[i])``: the cell
is there whether the condition holds or not, and keeps what it has where it does not.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm import tirx

from tvm_scan import tir
from tvm_scan.algebra.literal import zero
from tvm_scan.extraction.statements import Condition, Loop, Store, stores_in
from tvm_scan.extraction.step_loops import addend


def with_selected_values(stmts: list[Any]) -> list[Any]:
    """Flattened statements without the conditions of the theorem; others stay.

    Parameters
    ----------
    stmts : list
        Flattened statements.
    """
    out: list[Any] = []
    for s in stmts:
        if isinstance(s, Loop):
            out.append(replace(s, body=with_selected_values(s.body)))
        elif isinstance(s, Condition) and not s.orelse and _is_free(s):
            out += [_selected(inner, s.cond) for inner in with_selected_values(s.then)]
        else:
            out.append(s)
    return out


def _is_free(condition: Condition) -> bool:
    """Return whether a condition is one of the theorem's."""
    stores = stores_in(condition.then)
    asked = tir.variables(condition.cond).keys()
    if any(tir.contains_var(store.indices, asked) for store in stores):
        return False
    if any(store.buffer in tir.buffers_loaded(condition.cond) for store in stores):
        return False
    return _is_plain(condition.then)


def _is_plain(stmts: list[Any]) -> bool:
    return all(isinstance(s, Store) or (isinstance(s, Loop) and _is_plain(s.body)) for s in stmts)


def _selected(stmt: Any, cond: Any) -> Any:
    if isinstance(stmt, Loop):
        return replace(stmt, body=[_selected(inner, cond) for inner in stmt.body])
    before = tirx.BufferLoad(stmt.buffer, stmt.indices)
    added = addend(stmt)
    if added is not None:
        nothing = zero(tir.dtype_of(stmt.buffer))
        value = before + tirx.op.if_then_else(cond, added, nothing)
    else:
        value = tirx.op.if_then_else(cond, stmt.value, before)
    return replace(stmt, value=value)
