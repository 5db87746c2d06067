"""The loops of a flattened nest: the one that is time, and those that are lanes.

Theorem (lanes). Let ``v`` be a loop, and let every buffer that the loop writes be indexed, in
all of its loads and stores, by ``c v + r`` in some dimension, with the same ``c != 0`` and with
offsets ``r`` that differ by less than ``|c|`` once the inner loops are left out. Then two
iterations of ``v`` touch disjoint cells of every written buffer, hence carry nothing from one
to the other, and ``v`` may be run in any order and interchanged with any other loop.

A buffer that lives inside the loop, or that nothing outside the nest sees and that every
iteration overwrites in whole before it reads it, is private to the iteration and does not count.

A loop without that property may carry. The outermost such loop is taken as time; the check of
injectivity over all lanes together is made later, on the exact index maps (``access``).

A reduction is such a loop, too: its block declares the axis as one, hence its order as free, and
nothing keeps what it has reduced so far. TVM's own rules run it in parallel, so it is no time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm.ir import Var
from tvm.sym import detect_linear_equation

from tvm_scan import tir
from tvm_scan.extraction.accesses import accesses_of, private_in, rename
from tvm_scan.extraction.overwritten import may_keep, overwritten
from tvm_scan.extraction.statements import (
    Condition,
    Loop,
    allocated_in,
    rebuild,
    stores_in,
    without_allocs,
)
from tvm_scan.recurrence import Refusal, RefusalKind


@dataclass(eq=False)
class Nest:
    """Lane loops, guards on lanes, statements before time, the time loop, statements after."""

    lanes: list[Loop]
    guards: list[Any]
    before: list[Any]
    time: Loop
    after: list[Any]
    #: For each lane, the buffers of which every iteration has cells of its own.
    private: list[tir.VarMap]
    #: Whether lanes inside time were interchanged with it.
    interchanged: bool = False


def linear_in(expr: Any, var: Var) -> tuple[int, Any] | None:
    """``(c, r)`` with ``expr == c var + r``, ``c`` a constant and ``r`` free of ``var``."""
    if not tir.contains_var(expr, [var]):
        return 0, expr
    coefficients = detect_linear_equation(expr, [var])
    if len(coefficients) != 2:
        return None
    coefficient = tir.as_int(tir.simplify(coefficients[0]))
    if coefficient is None or tir.contains_var(coefficients[1], [var]):
        return None
    return coefficient, coefficients[1]


def is_lane(loop: Loop, body: list[Any], external: tir.VarMap) -> bool:
    """Return whether ``loop`` satisfies the theorem above; ``body`` is all that runs inside it."""
    private = private_in(body, external)
    written = tir.VarMap(
        (store.buffer, True) for store in stores_in(body) if store.buffer not in private
    )
    shapes: tir.VarMap = tir.VarMap()
    spread: dict[tuple[int, int], list[int]] = {}
    for access in accesses_of(body):
        if access.buffer not in written:
            continue
        shape: list[tuple[int, Any]] = []
        zero = tir.VarMap((l.var, tir.zero_like(l.var)) for l in access.inner)
        for index in access.indices:
            part = linear_in(tir.substitute(index, zero), loop.var)
            if part is None:
                return False
            shape.append(part)
        earlier = shapes.get(access.buffer)
        if earlier is None:
            if all(c == 0 for c, _ in shape):
                return False
            shapes[access.buffer] = shape
            continue
        for dim, ((c0, r0), (c1, r1)) in enumerate(zip(earlier, shape, strict=True)):
            if c0 != c1:
                return False
            if c0 != 0:
                distance = tir.as_int(tir.simplify(r1 - r0))
                if distance is None:
                    return False
                offsets = spread.setdefault((hash(access.buffer), dim), [0])
                offsets.append(distance)
                if max(offsets) - min(offsets) >= abs(c0):
                    return False
    return True


def find_nest(
    body: list[Any], reduced: tir.VarMap, external: tir.VarMap, *, interchange: bool = True
) -> Nest | Refusal:
    """Split a flattened nest into lanes, time and what surrounds the time loop.

    Parameters
    ----------
    body : list
        The flattened nest (one loop, possibly under a condition).
    reduced : VarMap
        Loop variables that a block declares as reduction iterators.
    external : VarMap
        Buffers that are seen outside the nest.
    interchange : bool
        Whether lanes inside time are taken outwards; else they stay loops over the state.
    """
    lanes: list[Loop] = []
    guards: list[Any] = []
    before: list[Any] = []
    after: list[Any] = []
    level = body
    while True:
        path, conditions, inside = _perfect_path(level)
        carrying = [loop for loop in path if not is_lane(loop, loop.body, external)]
        if carrying:
            time = carrying[0]
            position = path.index(time)
            # Lanes that lie inside time, with nothing between, are interchanged with it.
            inner = [l for l in path[position + 1 :] if is_lane(l, l.body, external)]
            inner = inner if interchange else []
            if inner and (before or after):
                inner, before, after = _fuse_around(inner, before, after, external)
            serial = [l for l in path[position + 1 :] if l not in inner]
            stmts = _under(conditions, serial, inside, lanes + path[:position] + inner, guards)
            if time.var in reduced and not _keeps_history(time, external):
                return Refusal(
                    RefusalKind.REDUCTION,
                    time.origin,
                    f"expected a loop over time, found the reduction over "
                    f"{time.var.name}: only its last value is used",
                    "leave reductions to TVM's own schedule rules, or declare the axis with "
                    "T.axis.scan",
                )
            lanes += path[:position] + inner
            moved = bool(inner)
            while interchange and (fused := _fuse_inner_lanes(stmts, external)) is not None:
                lane, stmts = fused
                lanes.append(lane)
                moved = True
            loop = Loop(time.var, time.extent, stmts, time.origin, time.thread)
            private = [private_in(lane.body, external) for lane in lanes]
            return Nest(lanes, guards, before, loop, after, private, moved)
        guards += [cond for cond, _ in conditions]
        lanes += path
        ordered = [s for s in inside if isinstance(s, Loop) and not is_lane(s, s.body, external)]
        loops = [s for s in ordered if _carries(s)] or [s for s in ordered if may_keep(s)]
        if not loops:
            if ordered:
                return overwritten(ordered[0])
            loops_or_stmts = path or without_allocs(body)
            origin = loops_or_stmts[0].origin if loops_or_stmts else None
            return independent(origin)
        if len(loops) > 1:
            return Refusal(
                RefusalKind.SEVERAL_TIME_LOOPS,
                loops[1].origin,
                f"expected one time loop per nest, found {len(loops)} side by side",
                "put each time loop into a loop nest of its own",
            )
        position = inside.index(loops[0])
        before += inside[:position]
        after = inside[position + 1 :] + after
        level = [loops[0]]


def independent(origin: Any) -> Refusal:
    """Refusal of a nest in which nothing depends on an earlier iteration."""
    return Refusal(
        RefusalKind.NO_RECURRENCE,
        origin,
        "expected a loop in which a step reads what an earlier step wrote, found independent "
        "iterations only",
        "nothing to do: TVM's own rules already run this loop in parallel",
    )


def _keeps_history(time: Loop, external: tir.VarMap) -> bool:
    """Return whether a state that ``time`` goes through can be read later on.

    That takes a store at an index that moves with time, to a buffer that outlives the iteration.
    """
    private = private_in(time.body, external)
    return any(
        tir.contains_var(index, [time.var])
        for store in stores_in(time.body)
        if store.buffer not in private
        for index in store.indices
    )


def _perfect_path(level: list[Any]) -> tuple[list[Loop], list[tuple[Any, int]], list[Any]]:
    """Loops that enclose everything, the conditions among them, and what they enclose."""
    path: list[Loop] = []
    conditions: list[tuple[Any, int]] = []
    while len(real := without_allocs(level)) == 1:
        only = real[0]
        if isinstance(only, Loop):
            path.append(only)
            level = only.body
        elif isinstance(only, Condition) and not only.orelse and not tir.loads(only.cond):
            conditions.append((only.cond, len(path)))
            level = only.then
        else:
            break
    return path, conditions, real


def _under(
    conditions: list[tuple[Any, int]],
    serial: list[Loop],
    inside: list[Any],
    lanes: list[Loop],
    guards: list[Any],
) -> list[Any]:
    """Body of the time loop: conditions that are not about lanes alone, and serial loops."""
    stmts = inside
    of_lanes = tir.VarMap((lane.var, True) for lane in lanes)
    for cond, _ in reversed(conditions):
        if all(var in of_lanes for var in tir.variables(cond).keys()):
            guards.append(cond)
        else:
            stmts = [Condition(cond, stmts, [], None)]
    for loop in reversed(serial):
        stmts = [Loop(loop.var, loop.extent, stmts, loop.origin, loop.thread)]
    return stmts


def _carries(loop: Loop) -> bool:
    """Return whether ``loop`` reads a buffer that it writes (a pure producer loop does not)."""
    written = tir.VarMap((store.buffer, True) for store in stores_in(loop.body))
    return any(not a.is_store and a.buffer in written for a in accesses_of(loop.body))


def _fuse_inner_lanes(stmts: list[Any], external: tir.VarMap) -> tuple[Loop, list[Any]] | None:
    """Fuse sibling loops over one lane axis inside time: ``for t: (for d: ..)(for d: ..)``.

    Legal because the fused variable satisfies the lane theorem over all of the siblings: no
    iteration of it reads what another wrote, so running one lane through every sibling first
    changes nothing.
    """
    if len(stmts) < 2 or not all(isinstance(s, Loop) for s in stmts):
        return None
    first = stmts[0]
    body: list[Any] = []
    for loop in stmts:
        if not tir.structurally_equal(loop.extent, first.extent):
            return None
        body += rename(loop.body, tir.VarMap([(loop.var, first.var)]))
    fused = Loop(first.var, first.extent, body, first.origin, first.thread)
    return (fused, body) if is_lane(fused, body, external) else None


def _fuse_around(
    inner: list[Loop], before: list[Any], after: list[Any], external: tir.VarMap
) -> tuple[list[Loop], list[Any], list[Any]]:
    """Lanes inside time that the loops before and after time have too, and those loops' bodies.

    Legal as in ``_fuse_inner_lanes``: the lane theorem holds over all that one iteration runs.
    """
    taken: list[Loop] = []
    for lane in inner:
        matched: list[list[Any]] = []
        for stmts in (before, after):
            bodies: list[Any] = []
            for stmt in stmts:
                if not isinstance(stmt, Loop) or not tir.structurally_equal(
                    stmt.extent, lane.extent
                ):
                    return taken, before, after
                bodies += rename(stmt.body, tir.VarMap([(stmt.var, lane.var)]))
            matched.append(without_allocs(bodies))
        whole = [*matched[0], *lane.body, *matched[1]]
        if not is_lane(Loop(lane.var, lane.extent, whole, lane.origin), whole, external):
            break
        taken.append(lane)
        before, after = matched
    return taken, before, after


def lane_path(body: list[Any], external: tir.VarMap) -> tuple[list[Loop], Any, list[Var]]:
    """Outermost independent loops of any flattened nest, what they enclose, its allocations.

    Parameters
    ----------
    body : list
        A flattened nest, which need not be a recurrence.
    external : VarMap
        Buffers that are seen outside the nest.
    """
    lanes: list[Loop] = []
    level = body
    while len(real := without_allocs(level)) == 1 and isinstance(real[0], Loop):
        if not is_lane(real[0], real[0].body, external):
            break
        lanes.append(real[0])
        level = real[0].body
    return lanes, rebuild(level), allocated_in(level)
