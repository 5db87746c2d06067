"""The loads and stores of a flattened nest, and the buffers that an iteration has for itself."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from tvm import tirx
from tvm.ir import Var
from tvm.sym import Analyzer

from tvm_scan import tir
from tvm_scan.extraction.extents import runs_through
from tvm_scan.extraction.statements import (
    Alloc,
    Condition,
    Loop,
    Store,
    allocated_in,
    decided,
    map_expressions,
    map_inside,
    stores_in,
)


@dataclass(eq=False)
class Access:
    """One load or store of a written buffer, and the loops around it inside the scope."""

    buffer: Var
    indices: list[Any]
    is_store: bool
    inner: list[Loop]
    origin: Any


def accesses_of(stmts: list[Any], inner: list[Loop] | None = None) -> list[Access]:
    """Every load and store in ``stmts``, in program order."""
    out: list[Access] = []
    _add_accesses(stmts, inner or [], out)
    return out


def _add_accesses(stmts: list[Any], inner: list[Loop], out: list[Access]) -> None:
    for stmt in stmts:
        if isinstance(stmt, Alloc):
            continue
        for buffer, indices in stmt.reads:
            out.append(Access(buffer, indices, False, inner, stmt.origin))
        if isinstance(stmt, Store):
            out.append(Access(stmt.buffer, stmt.indices, True, inner, stmt.origin))
        elif isinstance(stmt, Condition):
            _add_accesses(stmt.then, inner, out)
            _add_accesses(stmt.orelse, inner, out)
        elif isinstance(stmt, Loop):
            _add_accesses(stmt.body, [*inner, stmt], out)


def is_private(buffer: Var, body: list[Any]) -> bool:
    """Return whether each run of ``body`` overwrites all of ``buffer`` before reading any of it.

    What a loop does under a condition on its first iteration, ``if t == 0``, comes first in it.
    """
    while not _overwrites(buffer, body):
        apart = _first_apart(buffer, body)
        if apart is None:
            return False
        body = apart
    return True


def _overwrites(buffer: Var, body: list[Any]) -> bool:
    first = _first_access(buffer, without_conditions(body))
    before = _first_access(buffer, body)
    return (
        first is not None
        and before is not None
        and first.is_store
        and before.is_store
        and first.origin is before.origin
        and all(
            _covers(index, extent, first.inner)
            for index, extent in zip(first.indices, tir.shape_of(buffer), strict=True)
        )
    )


def _first_access(buffer: Var, body: list[Any]) -> Access | None:
    return next((a for a in accesses_of(body) if a.buffer.same_as(buffer)), None)


def without_conditions(stmts: list[Any]) -> list[Any]:
    """``stmts`` less everything that a condition guards, at any depth."""
    return [map_inside(s, without_conditions) for s in stmts if not isinstance(s, Condition)]


def _first_apart(buffer: Var, body: list[Any]) -> list[Any] | None:
    """``body`` with the first iteration of the loop that begins with ``buffer`` before the loop.

    None where that is no loop, or one whose first iteration does not use the buffer, or one that
    may have no iteration while something else in ``body`` reads the buffer; where nothing else
    does, a loop without iterations reads none of it.
    """
    using = [i for i, s in enumerate(body) if uses(buffer, s)]
    if not using or not isinstance(loop := body[using[0]], Loop):
        return None
    if (tir.as_int(loop.extent) or 0) < 1 and len(using) > 1:
        return None
    zero = tir.VarMap([(loop.var, tir.zero_like(loop.var))])
    first = decided(rename(loop.body, zero), partial(truth, Analyzer()))
    if not any(uses(buffer, s) for s in first):
        return None
    return [*body[: using[0]], *first, *body[using[0] :]]


def uses(buffer: Var, stmt: Any) -> bool:
    """Return whether a statement loads or stores a buffer."""
    return any(access.buffer.same_as(buffer) for access in accesses_of([stmt]))


def truth(analyzer: Analyzer, cond: Any) -> bool | None:
    """Return whether a condition holds; None where that is not known, or memory decides it."""
    if tir.loads(cond):
        return None
    return (
        True if analyzer.can_prove(cond) else False if analyzer.can_prove(tirx.Not(cond)) else None
    )


def _covers(index: Any, extent: Any, inner: list[Loop]) -> bool:
    """Return whether ``index`` runs through ``[0, extent)`` as the inner loops run."""
    if tir.as_int(extent) == 1:
        return True
    for loop in inner:
        if isinstance(index, Var) and index.same_as(loop.var):
            return runs_through(loop.extent, extent)
    return False


def private_in(body: list[Any], external: tir.VarMap) -> tir.VarMap:
    """Buffers that live inside an iteration, or that it overwrites in whole before it reads."""
    private = tir.VarMap((buffer, True) for buffer in allocated_in(body))
    stored = tir.VarMap((store.buffer, True) for store in stores_in(body))
    for buffer in stored.keys():
        if buffer not in private and buffer not in external and is_private(buffer, body):
            private[buffer] = True
    return private


def rename(stmts: list[Any], table: tir.VarMap) -> list[Any]:
    """``stmts`` with variables replaced."""
    return map_expressions(stmts, lambda expr: tir.substitute(expr, table))
