"""Time in one loop: tiles, unrolled bodies, guarded tails and remainders made one loop of steps.

Three theorems, each about the order in which statements run, which stays the same.

Tiles. ``for o in range(E): for i in range(K): S`` runs ``S`` at ``(o, i)`` in lexicographic order,
which is ``for t in range(E K)`` with ``o = t // K`` and ``i = t % K``. Lanes between the two loops
may stand inside instead, since lanes may be interchanged with any loop (``nest``).

Tails. ``for t in range(E): if t < n: S`` runs ``S`` for the first ``min(E, n)`` steps.

Remainders. ``for t in range(E): S`` and then ``S`` at ``E, E + 1, ..`` is one longer loop, if
``E`` is not negative, as no extent of a flattened nest is (``extents``).

Bodies that are unrolled are rolled up in ``reroll``. What comes out is the loop as one writes it
with one step per iteration; whether that is a recurrence is proven afterwards, on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import Var
from tvm.sym import Analyzer

from tvm_scan import tir
from tvm_scan.extraction.accesses import accesses_of, rename
from tvm_scan.extraction.apart import has_own_cells
from tvm_scan.extraction.extents import Extents
from tvm_scan.extraction.integers import same_statements, simplified
from tvm_scan.extraction.reroll import below, rolled_up
from tvm_scan.extraction.statements import (
    Alloc,
    Condition,
    Loop,
    allocated_in,
    rebuild,
    without_allocs,
)

_INT32 = 1 << 31


@dataclass(frozen=True, eq=False)
class _Scope:
    """Facts about the function around the statements."""

    external: tir.VarMap
    reduced: tir.VarMap
    extents: Extents


def one_loop_of_time(
    stmts: list[Any], external: tir.VarMap, reduced: tir.VarMap, extents: Extents
) -> list[Any] | None:
    """A flattened nest whose loops over time have one step per iteration.

    Parameters
    ----------
    stmts : list
        Flattened statements.
    external : VarMap
        Buffers that are seen outside the nest.
    reduced : VarMap
        Loop variables that a block declares as reduction iterators. Variables of loops that are
        made of such ones are added.
    extents : Extents
        Of the function; those of the loops in ``stmts`` are counts, and stay so.

    Returns
    -------
    list or None
        None where nothing was to be done.
    """
    out, changed = _level(stmts, _Scope(external, reduced, extents), [])
    return out if changed else None


def _level(stmts: list[Any], scope: _Scope, outer: list[Var]) -> tuple[list[Any], bool]:
    out: list[Any] = [s for s in stmts if isinstance(s, Alloc)]
    changed = False
    for s in without_allocs(stmts):
        is_changed = False
        if isinstance(s, Condition):
            then, is_changed = _level(s.then, scope, outer)
            s = Condition(s.cond, then, s.orelse, s.origin)
        elif isinstance(s, Loop) and has_own_cells(s, scope.external):
            body, is_changed = _level(s.body, scope, [*outer, s.var])
            s = Loop(s.var, s.extent, body, s.origin, s.thread)
        elif isinstance(s, Loop):
            whole = allocated_in([s])
            s, is_changed = _one_loop(s, scope, outer)
            # What lived as long as a tile lives as long as the loop.
            allocated = tir.VarMap((buffer, True) for buffer in allocated_in([s]))
            out += [Alloc(buffer) for buffer in whole if buffer not in allocated]
        out.append(s)
        changed |= is_changed
    joined = _joined(out, scope.external)
    return (joined or out, True) if joined or changed else (stmts, False)


def _one_loop(loop: Loop, scope: _Scope, outer: list[Var]) -> tuple[Loop, bool]:
    changed = False
    while True:
        tile = _tile(loop, scope.external)
        rolled = None if tile is None else _fused(loop, *tile)
        parts = [loop] if rolled is None or tile is None else [loop, tile[1]]
        rolled = (
            rolled or _without_tail(loop, scope.extents, outer) or rolled_up(loop, scope.extents)
        )
        if rolled is None:
            return loop, changed
        if any(part.var in scope.reduced for part in parts):
            scope.reduced[rolled.var] = True
        loop, changed = rolled, True


# ---- tiles --------------------------------------------------------------------------------------


def _tile(loop: Loop, external: tir.VarMap) -> tuple[list[Any], Loop] | None:
    """The statements between the loop and the next one inside it that is no lane, and that loop."""
    between: list[Any] = []
    level = without_allocs(loop.body)
    while len(level) == 1:
        only = level[0]
        if isinstance(only, Loop) and not has_own_cells(only, external):
            return between, only
        if isinstance(only, Condition) and (only.orelse or tir.loads(only.cond)):
            return None
        if not isinstance(only, Loop | Condition):
            return None
        between.append(only)
        level = without_allocs(only.then if isinstance(only, Condition) else only.body)
    return None


def _fused(outer: Loop, between: Sequence[Any], inner: Loop) -> Loop | None:
    width, guard = _width(inner)
    if width is None or width < 1:
        return None
    body = inner.body if guard is None else [Condition(guard, inner.body, [], inner.origin)]
    for s in reversed(between):
        if isinstance(s, Loop):
            body = [Loop(s.var, s.extent, body, s.origin, s.thread)]
        else:
            body = [Condition(s.cond, body, [], s.origin)]
    dtype = tir.dtype_of(outer.var)
    time = Var(outer.var.name, outer.var.ty)
    size = tirx.IntImm(dtype, width)
    remainder = tirx.floormod(time, size)
    if tir.dtype_of(inner.var) != dtype:
        remainder = tirx.Cast(tir.dtype_of(inner.var), remainder)
    table = tir.VarMap([(outer.var, tirx.floordiv(time, size)), (inner.var, remainder)])
    extent = tir.simplify(outer.extent * size)
    body = simplified(rename(body, table), [(time, extent)])
    indices = [i for a in accesses_of(body) if a.is_store for i in a.indices]
    if any(_is_divided(index, time) for index in indices):
        return None  # a loop over rows, not over tiles
    # The product must be a number of the variable's own dtype. Where only the user's own index
    # ``o K + i`` is left of the two, it is one already.
    known = tir.as_int(extent)
    fits = dtype == "int64" or (known is not None and known < _INT32)
    whole = rebuild(body)
    if not fits and (_is_divided(whole, time) or not tir.contains_var(whole, [time])):
        return None
    return Loop(time, extent, body, outer.origin, outer.thread)


def _width(inner: Loop) -> tuple[int | None, Any]:
    """Constant extent of a loop over a tile, and the condition of a tile that is cut short."""
    known = tir.as_int(inner.extent)
    if known is not None:
        return known, None
    if isinstance(inner.extent, tirx.Min):
        for size, rest in (
            (inner.extent.a, inner.extent.b),
            (inner.extent.b, inner.extent.a),
        ):
            if (known := tir.as_int(size)) is not None:
                return known, inner.var < rest
    return None, None


def _is_divided(node: Any, time: Var) -> bool:
    divisions = tir.nodes(node, tirx.FloorDiv, tirx.FloorMod)
    return any(tir.contains_var(e, [time]) for e in divisions)


# ---- tails --------------------------------------------------------------------------------------


def _without_tail(loop: Loop, extents: Extents, outer: list[Var]) -> Loop | None:
    """The loop over the steps at which the condition around its body holds."""
    body = without_allocs(loop.body)
    if len(body) != 1 or not isinstance(body[0], Condition) or body[0].orelse:
        return None
    bound = below(body[0].cond, loop.var)
    if bound is None or tir.contains_var(bound[1], outer):
        return None
    step, limit = bound
    if step > 1:
        limit = tirx.floordiv(limit + (step - 1), step)
    short = Analyzer().can_prove(limit <= loop.extent)
    extent = extents.count(tir.simplify(limit if short else tirx.Min(loop.extent, limit)))
    return Loop(loop.var, extent, body[0].then, loop.origin, loop.thread)


# ---- remainders -----------------------------------------------------------------------------


def _joined(stmts: list[Any], external: tir.VarMap) -> list[Any] | None:
    """``stmts`` with what goes on where a loop stops taken into the loop."""
    out: list[Any] = []
    rest = list(stmts)
    changed = False
    while rest:
        s = rest.pop(0)
        while isinstance(s, Loop) and not has_own_cells(s, external):
            longer = _longer(s, rest)
            if longer is None:
                break
            s, used = longer
            rest = rest[used:]
            changed = True
        out.append(s)
    return out if changed else None


def _longer(loop: Loop, rest: list[Any]) -> tuple[Loop, int] | None:
    """The loop with the statements that are its further steps, and how many of them."""
    if not rest:
        return None
    size = len(without_allocs(loop.body))
    following = rest[0]
    if isinstance(following, Loop):
        if _is_at(loop, loop.extent + following.var, following.body, following):
            return _grown(loop, following.extent), 1
        return None
    if isinstance(following, Condition) and not following.orelse:
        count = _zero_or_one(following.cond)
        if count is not None and _is_at(loop, loop.extent, following.then):
            return _grown(loop, count), 1
        return None
    if len(rest) >= size and _is_at(loop, loop.extent, rest[:size]):
        return _grown(loop, tir.zero_like(loop.var) + 1), size
    return None


def _is_at(loop: Loop, step: Any, stmts: list[Any], inside: Loop | None = None) -> bool:
    ranges = [] if inside is None else [(inside.var, inside.extent)]
    table = tir.VarMap([(loop.var, step)])
    wanted = simplified(rename(loop.body, table), ranges)
    return same_statements(wanted, simplified(stmts, ranges))


def _grown(loop: Loop, by: Any) -> Loop:
    more = tirx.Max(by, tir.zero_like(loop.var)) if tir.as_int(by) is None else by
    return Loop(loop.var, tir.simplify(loop.extent + more), loop.body, loop.origin, loop.thread)


def _zero_or_one(cond: Any) -> Any:
    """``r`` of a condition ``r == 1`` on a remainder by two, in any of its spellings."""
    if not isinstance(cond, tirx.EQ | tirx.NE | tirx.GT):
        return None
    if not isinstance(cond.a, tirx.FloorMod) or tir.as_int(cond.a.b) != 2:
        return None
    wanted = 1 if isinstance(cond, tirx.EQ) else 0
    return cond.a if tir.as_int(cond.b) == wanted else None
