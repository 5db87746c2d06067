"""Loops of a matrix state that were split over blocks, threads and registers, as one loop each.

Three theorems, each about statements that run in the same order.

Splits. Let all of ``for o in range(E): for i in range(W): S`` use ``o`` and ``i`` as ``o W + i``
alone. Then it is ``for x in range(E W): S`` with ``x`` in place of that. Two lanes, which may be
interchanged with any loop, need not stand next to each other.

First iterations. ``for x in range(E): if x == 0: I; S`` with ``E > 0`` and I without ``x`` is
``I; for x in range(E): S``: the first iteration begins with I, and no other runs it. Blocks of
reductions set their sum so.

Conditions. Where every statement of a nest is under one condition ``v < n`` on a lane ``v``, the
lane has its first ``n`` iterations only.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.extraction.accesses import rename
from tvm_scan.extraction.integers import map_integers
from tvm_scan.extraction.nest import Nest
from tvm_scan.extraction.statements import (
    Alloc,
    Condition,
    Loop,
    loops_in,
    map_inside,
    rebuild,
    without_allocs,
)


def with_whole_loops(stmts: list[Any], reduced: tir.VarMap) -> list[Any]:
    """A flattened nest without split loops, and without conditions on first iterations.

    Parameters
    ----------
    stmts : list
        Flattened statements.
    reduced : VarMap
        Loop variables that a block declares as reduction iterators; those of loops that are made of
        such ones are added.
    """
    out: list[Any] = []
    for s in stmts:
        s = map_inside(s, lambda inner: with_whole_loops(inner, reduced))
        out += _without_first(_joined(s, reduced)) if isinstance(s, Loop) else [s]
    return out


def with_whole_lanes(nest: Nest) -> Nest:
    """``nest`` with lanes that are parts of one as that one, and with guards as extents."""
    parts, guard = _guard_of([nest.before, nest.time.body, nest.after])
    guards = [*nest.guards, *([] if guard is None else [guard])]
    parts.append([Condition(cond, [], [], None) for cond in guards])
    lanes = list(nest.lanes)
    while (pair := _pair_of_one(lanes, parts)) is not None:
        outer, inner, whole, parts = pair
        lanes = [whole if lane is outer else lane for lane in lanes if lane is not inner]
    before, body, after, conditions = parts
    guards = [left for c in conditions if (left := _not_bound(c.cond, lanes)) is not None]
    time = replace(nest.time, body=body)
    return replace(
        nest,
        lanes=lanes,
        guards=guards,
        before=before,
        time=time,
        after=after,
        private=[tir.VarMap() for _ in lanes],
    )


def _pair_of_one(
    lanes: list[Loop], parts: list[list[Any]]
) -> tuple[Loop, Loop, Loop, list[list[Any]]] | None:
    """Two lanes that are parts of one, that one, and the statements over it."""
    together = _together(parts)
    for outer, inner in permutations(lanes, 2):
        whole = _one_of(outer, inner, parts, together)
        if whole is not None:
            return outer, inner, *whole
    return None


def _joined(loop: Loop, reduced: tir.VarMap) -> Loop:
    """``loop`` and the loop that is all of its body as one, where they are parts of one."""
    inside = without_allocs(loop.body)
    if len(inside) != 1 or not isinstance(inside[0], Loop):
        return loop
    inner = inside[0]
    whole = _one_of(loop, inner, [inner.body], _together([inner.body]))
    if whole is None:
        return loop
    joined, (body,) = whole
    if loop.var in reduced or inner.var in reduced:
        reduced[joined.var] = True
    allocs = [s for s in loop.body if isinstance(s, Alloc)]
    return _joined(replace(joined, body=[*allocs, *body]), reduced)


def _one_of(
    outer: Loop, inner: Loop, parts: list[list[Any]], together: list[tir.VarMap]
) -> tuple[Loop, list[list[Any]]] | None:
    """One loop for two, and the statements over it; None where they are not parts of one.

    ``together`` has the variables of each integer that has several.
    """
    if not any(outer.var in each and inner.var in each for each in together):
        return None
    dtype = tir.dtype_of(outer.var)
    if dtype != tir.dtype_of(inner.var) or tir.contains_var(inner.extent, [outer.var]):
        return None
    width = inner.extent
    if tir.as_int(width) is None or tir.loads(outer.extent):
        return None
    # Of a loop without iterations anything is true.
    if any(
        tir.as_int(l.extent) == 0
        for l in [outer, inner, *loops_in([s for part in parts for s in part])]
    ):
        return None
    fused = Var(f"{outer.var.name}_{inner.var.name}", outer.var.ty)
    extent = tir.simplify(outer.extent * width)
    # What is left of ``o W + i`` is the new variable; ``o`` is left where it stands alone.
    table = tir.VarMap([(inner.var, fused - outer.var * width)])
    ranges = [(fused, extent), (outer.var, outer.extent)]

    def run(e: Any) -> Any:
        return tir.simplify(e, ranges) if tir.contains_var(e, [outer.var]) else e

    out = [map_integers(rename(part, table), run) for part in parts]
    if any(tir.contains_var(rebuild(part), [outer.var]) for part in out):
        return None
    known = tir.as_int(extent)
    if dtype != "int64" and (known is None or known >= 1 << 31):
        return None
    thread = outer.thread if outer.thread == inner.thread else ""
    return Loop(fused, extent, [], outer.origin, thread), out


def _together(parts: list[list[Any]]) -> list[tir.VarMap]:
    """Variables of each integer of some statements that has several."""
    several: list[tir.VarMap] = []

    def run(e: Any) -> Any:
        if len(variables := tir.variables(e)) > 1:
            several.append(variables)
        return e

    for part in parts:
        map_integers(part, run)
    return several


def _without_first(loop: Loop) -> list[Any]:
    """The loop behind the statements that it begins with, in its first iteration alone."""
    out: list[Any] = []
    body = list(loop.body)
    while body and isinstance(first := body[0], Condition) and not first.orelse:
        if not (tir.as_int(loop.extent) or 0) > 0 or not _is_first(first.cond, loop.var):
            break
        if tir.contains_var(rebuild(first.then), [loop.var]):
            break
        out, body = [*out, *first.then], body[1:]
    return [*out, replace(loop, body=body)] if without_allocs(body) else out


def _is_first(cond: Any, var: Var) -> bool:
    if not isinstance(cond, tirx.EQ):
        return False
    sides = ((cond.a, cond.b), (cond.b, cond.a))
    return any(isinstance(a, Var) and a.same_as(var) and tir.as_int(b) == 0 for a, b in sides)


# ---- conditions ---------------------------------------------------------------------------------


def _guard_of(parts: list[list[Any]]) -> tuple[list[list[Any]], Any]:
    """The condition that all statements are under, and the statements without it."""
    lifted = [_lifted(part) for part in parts]
    conditions = [cond for (cond, _), part in zip(lifted, parts, strict=True) if part]
    if not conditions or any(cond is None for cond in conditions):
        return parts, None
    if not all(tir.structurally_equal(cond, conditions[0]) for cond in conditions):
        return parts, None
    return [stmts for _, stmts in lifted], conditions[0]


def _lifted(stmts: list[Any]) -> tuple[Any, list[Any]]:
    """A condition without loads that everything is under, and what is under it."""
    cond: Any = None
    out: list[Any] = []
    for s in stmts:
        if isinstance(s, Alloc):
            out.append(s)
            continue
        if isinstance(s, Condition) and not s.orelse and not tir.loads(s.cond):
            here, inside = s.cond, s.then
        elif isinstance(s, Loop):
            here, body = _lifted(s.body)
            inside = [replace(s, body=body)]
            if here is not None and tir.contains_var(here, [s.var]):
                here = None
        else:
            here, inside = None, [s]
        if here is None or (cond is not None and not tir.structurally_equal(here, cond)):
            return None, stmts
        cond = here
        out += inside
    return cond, out


def _not_bound(cond: Any, lanes: list[Loop]) -> Any:
    """The part of a condition on lanes that is no bound of one; bounds become extents."""
    if isinstance(cond, tirx.And):
        parts = [part for side in (cond.a, cond.b) if (part := _not_bound(side, lanes)) is not None]
        return tir.all_of(parts)
    for position, lane in enumerate(lanes):
        bound = _bound_of(cond, lane.var)
        if bound is None or tir.contains_var(bound, [l.var for l in lanes]):
            continue
        known, extent = tir.as_int(bound), tir.as_int(lane.extent)
        if known is None or extent is None:
            continue
        least = tirx.IntImm(tir.dtype_of(lane.var), max(0, min(known, extent)))
        lanes[position] = replace(lane, extent=least)
        return None
    return cond


def _bound_of(cond: Any, var: Var) -> Any:
    """``n`` of ``var < n``."""
    if isinstance(cond, tirx.LT) and isinstance(cond.a, Var) and cond.a.same_as(var):
        return cond.b
    return None
