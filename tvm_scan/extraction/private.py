"""Which buffers are scratch of one run of some statements.

Theorem. Let the first access of a buffer, in the order in which the statements run, be a store
that the loops around it spread over every cell, and let those loops touch the buffer at that index
only. Then each run overwrites the whole buffer before it reads any of it, and nothing in the
buffer passes from one run to the next.
"""

from __future__ import annotations

from typing import Any

from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.extraction.accesses import Access, accesses_of
from tvm_scan.extraction.flatten import Condition, Loop

__all__ = ["is_private"]


def is_private(buffer: Var, body: list[Any]) -> bool:
    """Whether each run of ``body`` overwrites all of ``buffer`` before reading any of it."""
    first = _first_access(buffer, body, [], tir.VarMap())
    if first is None or not first.is_store:
        return False
    spread: list[Loop] = []
    for index, extent in zip(first.indices, tir.shape_of(buffer), strict=True):
        if tir.as_int(extent) == 1:
            continue
        loop = _covering(index, extent, first.inner)
        if loop is None or any(loop is other for other in spread):
            return False
        spread.append(loop)
    for loop in first.inner:
        # A loop that may not run at all does not overwrite; unless nothing else reads either.
        runs = (tir.as_int(loop.extent) or 0) >= 1
        if not runs and not any(loop is s for s in spread) and _used_outside(buffer, body, loop):
            return False
    if not spread:
        return True
    outermost = next(loop for loop in first.inner if any(loop is s for s in spread))
    return all(
        tir.structurally_equal(mine, other)
        for access in accesses_of([outermost])
        if access.buffer.same_as(buffer)
        for mine, other in zip(access.indices, first.indices, strict=True)
    )


def _uses(buffer: Var, stmts: list[Any]) -> int:
    return sum(access.buffer.same_as(buffer) for access in accesses_of(stmts))


def _used_outside(buffer: Var, body: list[Any], loop: Loop) -> bool:
    return _uses(buffer, body) != _uses(buffer, [loop])


def _first_access(
    buffer: Var, stmts: list[Any], inner: list[Loop], first: tir.VarMap
) -> Access | None:
    """The first access of ``buffer`` while every loop is in its first iteration.

    A load stands for "not known" too: a condition that the first iteration does not decide.
    """
    for stmt in stmts:
        own = [a for a in accesses_of([stmt], inner) if a.buffer.same_as(buffer)]
        if not own:
            continue
        if isinstance(stmt, Loop):
            entered = tir.VarMap([*first.items(), (stmt.var, tir.zero_like(stmt.var))])
            return _first_access(buffer, stmt.body, [*inner, stmt], entered)
        if not isinstance(stmt, Condition):
            return own[0]
        if any(load.source.same_as(buffer) for load in tir.loads(stmt.cond)):
            return own[0]
        decided = tir.as_int(tir.simplify(tir.substitute(stmt.cond, first)))
        if decided is None:
            return None
        taken = stmt.then if decided else stmt.orelse
        found = _first_access(buffer, taken, inner, first)
        if found is not None or _uses(buffer, taken):
            return found
    return None


def _covering(index: Any, extent: Any, inner: list[Loop]) -> Loop | None:
    """The loop whose variable is ``index`` and runs through ``[0, extent)``."""
    for loop in inner:
        if isinstance(index, Var) and index.same_as(loop.var):
            known = tir.as_int(extent)
            same = tir.structurally_equal(tir.simplify(loop.extent), tir.simplify(extent))
            return (
                loop if same or (known is not None and tir.as_int(loop.extent) == known) else None
            )
    return None
