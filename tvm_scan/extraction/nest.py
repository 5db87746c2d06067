"""Which loop of a flattened nest is time, and which are lanes.

Theorem (lanes). Let ``v`` be a loop, and let every buffer that the loop writes be indexed, in
all of its loads and stores, by ``c v + r`` in some dimension, with the same ``c != 0`` and with
offsets ``r`` that differ by less than ``|c|`` once the inner loops are left out. Then two
iterations of ``v`` touch disjoint cells of every written buffer, hence carry nothing from one
to the other, and ``v`` may be run in any order and interchanged with any other loop.

A buffer that lives inside the loop, or that nothing outside the nest sees and that every
iteration overwrites in whole before it reads it, is private to the iteration and does not count.

A loop without that property may carry. The outermost such loop is taken as time; the check of
injectivity over all lanes together is made later, on the exact index maps (``access``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm.ir import Var
from tvm.sym import detect_linear_equation
from tvm.tirx import ForKind

from tvm_scan import tir
from tvm_scan.extraction.accesses import accesses_of
from tvm_scan.extraction.flatten import (
    Alloc,
    Condition,
    Let,
    Loop,
    Store,
    allocated_in,
    rebuild,
    stores_in,
    without_allocs,
)
from tvm_scan.extraction.private import is_private
from tvm_scan.recurrence import Refusal, RefusalKind

__all__ = [
    "Nest",
    "bound_in",
    "find_nest",
    "lane_path",
    "linear_in",
    "rename",
]


@dataclass(eq=False)
class Nest:
    """Lane loops, guards on lanes, statements before time, the time loop, statements after."""

    lanes: list[Loop]
    guards: list[Any]
    before: list[Any]
    time: Loop
    after: list[Any]


def bound_in(stmts: list[Any]) -> tir.VarMap:
    """Loop variables and bindings that ``stmts`` define, and buffers that they write."""
    out = tir.VarMap()
    for stmt in stmts:
        if isinstance(stmt, Let):
            out[stmt.var] = True
        elif isinstance(stmt, Store):
            out[stmt.buffer] = True
        elif isinstance(stmt, Condition):
            parts = bound_in(stmt.then).keys() + bound_in(stmt.orelse).keys()
            out = tir.VarMap((v, True) for v in out.keys() + parts)
        elif isinstance(stmt, Loop):
            inner = bound_in(stmt.body).keys()
            out = tir.VarMap((v, True) for v in [*out.keys(), stmt.var, *inner])
    return out


def linear_in(expr: Any, var: Var) -> tuple[int, Any] | None:
    """``(c, r)`` with ``expr == c var + r``, ``c`` a constant and ``r`` free of ``var``."""
    if not tir.contains_var(expr, [var]):
        return 0, expr
    found = detect_linear_equation(expr, [var])
    if len(found) != 2:
        return None
    coefficient = tir.as_int(tir.simplify(found[0]))
    if coefficient is None or tir.contains_var(found[1], [var]):
        return None
    return coefficient, found[1]


def _is_lane(loop: Loop, body: list[Any], external: tir.VarMap) -> bool:
    """Whether ``loop`` satisfies the theorem above; ``body`` is all that runs inside it."""
    inside = tir.VarMap((buffer, True) for buffer in allocated_in(body))
    written = tir.VarMap(
        (store.buffer, True)
        for store in stores_in(body)
        if store.buffer not in inside
        and (store.buffer in external or not is_private(store.buffer, body))
    )
    found: tir.VarMap = tir.VarMap()
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
        earlier = found.get(access.buffer)
        if earlier is None:
            if all(c == 0 for c, _ in shape):
                return False
            found[access.buffer] = shape
            continue
        for (c0, r0), (c1, r1) in zip(earlier, shape, strict=True):
            if c0 != c1:
                return False
            if c0 != 0:
                distance = tir.as_int(tir.simplify(r1 - r0))
                if distance is None or abs(distance) >= abs(c0):
                    return False
    return True


def find_nest(body: list[Any], reduced: tir.VarMap, external: tir.VarMap) -> Nest | Refusal:
    """Split a flattened nest into lanes, time and what surrounds the time loop.

    Parameters
    ----------
    body : list
        The flattened nest (one loop, possibly under a condition).
    reduced : VarMap
        Loop variables that a block declares as reduction iterators.
    external : VarMap
        Buffers that are seen outside the nest.

    Returns
    -------
    Nest or Refusal
    """
    lanes: list[Loop] = []
    guards: list[Any] = []
    before: list[Any] = []
    after: list[Any] = []
    level = body
    while True:
        path, conditions, inside = _perfect_path(level)
        carrying = [loop for loop in path if not _is_lane(loop, loop.body, external)]
        if carrying:
            time = carrying[0]
            position = path.index(time)
            # Lanes that lie inside time, with nothing between, are interchanged with it.
            inner, serial = [], []
            for loop in path[position + 1 :]:
                spread = None
                if _is_lane(loop, loop.body, external):
                    spread = _spread(loop, before, after, external)
                if spread is None:
                    serial.append(loop)
                else:
                    before, after = spread
                    inner.append(loop)
            stmts = _under(conditions, serial, inside, lanes + path[:position] + inner, guards)
            if time.var in reduced and not serial:
                return Refusal(
                    RefusalKind.REDUCTION,
                    time.origin,
                    f"expected a loop that walks time, found the reduction over "
                    f"{time.var.name}: only its last value is used",
                    "leave reductions to TVM's own schedule rules, or declare the axis with "
                    "T.axis.scan",
                )
            lanes += path[:position] + inner
            fused = _fuse_inner_lanes(stmts, external)
            spread = None if fused is None else _spread(fused[0], before, after, external)
            if fused is not None and spread is not None:
                (lane, stmts), (before, after) = fused, spread
                lanes.append(lane)
            loop = Loop(time.var, time.extent, stmts, time.origin, time.thread)
            return _checked(Nest(lanes, guards, before, loop, after))
        guards += [cond for cond, _ in conditions]
        lanes += path
        loops = [
            s
            for s in inside
            if isinstance(s, Loop) and not _is_lane(s, s.body, external) and _carries(s)
        ]
        if not loops:
            origin = path[0].origin if path else (body[0].origin if body else None)
            hidden = [s for s in inside if isinstance(s, Condition) and _has_carrying_loop(s)]
            if hidden:
                return Refusal(
                    RefusalKind.UNSUPPORTED_BODY,
                    hidden[0].origin,
                    "expected the time loop under conditions on loop variables alone, found it in "
                    f"a branch on {hidden[0].cond}",
                    "move the condition into the time loop",
                )
            return Refusal(
                RefusalKind.NO_RECURRENCE,
                origin,
                "expected a loop in which a step reads what an earlier step wrote, found "
                "independent iterations only",
                "nothing to do: TVM's own rules already run this loop in parallel",
            )
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


def _has_carrying_loop(stmt: Any) -> bool:
    if isinstance(stmt, Condition):
        return any(_has_carrying_loop(s) for s in [*stmt.then, *stmt.orelse])
    return isinstance(stmt, Loop) and _carries(stmt)


_KINDS = {
    int(ForKind.PARALLEL): "parallel",
    int(ForKind.VECTORIZED): "vectorized",
    int(ForKind.THREAD_BINDING): "thread-bound",
}


def _checked(nest: Nest) -> Nest | Refusal:
    """Time must be sequential, and the lanes and time must span a box.

    Lanes are re-ordered and time is cut; an extent that moves with another loop, or that a load
    decides, would then be read in the wrong place.
    """
    kind = nest.time.origin.kind
    if kind not in (ForKind.SERIAL, ForKind.UNROLLED):
        return Refusal(
            RefusalKind.UNSUPPORTED_BODY,
            nest.time.origin,
            f"expected steps that run one after another, found the {_KINDS[int(kind)]} loop "
            f"{nest.time.var.name}, in which they race",
            "walk time with a serial loop",
        )
    moving = bound_in([*nest.lanes, *nest.before, nest.time, *nest.after])
    for loop in [*nest.lanes, nest.time]:
        if tir.loads(loop.extent) or any(v in moving for v in tir.variables(loop.extent).keys()):
            return Refusal(
                RefusalKind.UNSUPPORTED_BODY,
                loop.origin,
                f"expected lanes and time of fixed extents, found {loop.var.name} in "
                f"range({loop.extent})",
                "loop to the largest extent and guard the body by a condition",
            )
    for guard in nest.guards:
        bound = [v for v in tir.variables(guard).keys() if v in moving and not _is_var(v, nest)]
        if bound:
            return Refusal(
                RefusalKind.UNSUPPORTED_BODY,
                nest.time.origin,
                f"expected the time loop under conditions on loop variables alone, found {guard}",
                "move the condition into the time loop",
            )
    return nest


def _is_var(var: Var, nest: Nest) -> bool:
    return any(var.same_as(lane.var) for lane in nest.lanes)


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


def _spread(
    lane: Loop, before: list[Any], after: list[Any], external: tir.VarMap
) -> tuple[list[Any], list[Any]] | None:
    """What surrounds time, for one iteration of a lane inside of it; None where it has no such.

    ``for d: S[d] = 0`` before ``for t: for d: ..`` is the initial state of lane ``d``. Legal if the
    lane theorem holds over all of it together.
    """

    def one(stmts: list[Any]) -> list[Any] | None:
        out: list[Any] = []
        for stmt in without_allocs(stmts):
            if not isinstance(stmt, Loop) or not _same_extent(stmt, lane):
                return None
            out += rename(stmt.body, tir.VarMap([(stmt.var, lane.var)]))
        return out

    parts = one(before), one(after)
    if parts[0] is None or parts[1] is None:
        return None
    whole = [*parts[0], *lane.body, *parts[1]]
    if not _is_lane(Loop(lane.var, lane.extent, whole, lane.origin), whole, external):
        return None
    return parts[0], parts[1]


def _same_extent(left: Loop, right: Loop) -> bool:
    return tir.dtype_of(left.var) == tir.dtype_of(right.var) and tir.structurally_equal(
        tir.simplify(left.extent), tir.simplify(right.extent)
    )


def _under(
    conditions: list[tuple[Any, int]],
    serial: list[Loop],
    inside: list[Any],
    lanes: list[Loop],
    guards: list[Any],
) -> list[Any]:
    """Body of the time loop: conditions that are not about lanes alone, and serial loops."""
    stmts = inside
    lane_vars = [lane.var for lane in lanes]
    for cond, _ in reversed(conditions):
        free = [
            v for v in tir.variables(cond).keys() if v not in tir.VarMap((x, 1) for x in lane_vars)
        ]
        if free:
            stmts = [Condition(cond, stmts, [], None)]
        else:
            guards.append(cond)
    for loop in reversed(serial):
        stmts = [Loop(loop.var, loop.extent, stmts, loop.origin, loop.thread)]
    return stmts


def _carries(loop: Loop) -> bool:
    """Whether ``loop`` reads a buffer that it writes (a pure producer loop does not carry)."""
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
        if not _same_extent(loop, first):
            return None
        body += rename(loop.body, tir.VarMap([(loop.var, first.var)]))
    fused = Loop(first.var, first.extent, body, first.origin, first.thread)
    return (fused, body) if _is_lane(fused, body, external) else None


def rename(stmts: list[Any], table: tir.VarMap) -> list[Any]:
    """``stmts`` with variables replaced."""

    def sub(expr: Any) -> Any:
        return tir.substitute(expr, table)

    out: list[Any] = []
    for s in stmts:
        if isinstance(s, Store):
            out.append(Store(s.buffer, [sub(i) for i in s.indices], sub(s.value), s.origin))
        elif isinstance(s, Let):
            out.append(Let(s.var, sub(s.value), s.origin))
        elif isinstance(s, Condition):
            then, orelse = rename(s.then, table), rename(s.orelse, table)
            out.append(Condition(sub(s.cond), then, orelse, s.origin))
        elif isinstance(s, Alloc):
            out.append(s)
        else:
            out.append(Loop(s.var, sub(s.extent), rename(s.body, table), s.origin, s.thread))
    return out


def lane_path(body: list[Any], external: tir.VarMap) -> tuple[list[Loop], Any, list[Var]]:
    """Outermost independent loops of any flattened nest, what they enclose, its allocations.

    Parameters
    ----------
    body : list
        A flattened nest, which need not be a recurrence.
    external : VarMap
        Buffers that are seen outside the nest.

    Returns
    -------
    tuple of (list of Loop, Stmt, list of Var)
    """
    lanes: list[Loop] = []
    level = body
    while len(real := without_allocs(level)) == 1 and isinstance(real[0], Loop):
        if not _is_lane(real[0], real[0].body, external):
            break
        lanes.append(real[0])
        level = real[0].body
    return lanes, rebuild(level), allocated_in(level)
