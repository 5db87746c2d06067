"""Bodies that were unrolled by hand, rolled up again.

Theorem (rolled up). Let the body of ``for s in range(E)`` be ``U`` lists of statements, and let
``T`` be statements over a variable ``t`` such that list ``k`` is ``T`` at ``t = U s + k``, for
every ``k < U`` and every ``s``. Then ``for t in range(U E): T`` runs the same statements in the
same order. If from some list on each stands under the condition ``U s + k < n``, and the others
satisfy it for all ``s``, then ``for t in range(n)`` does.

``T`` is found by rewriting the first list with ``s = t / U``, and then compared with the others.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Range, Var
from tvm.sym import Analyzer

from tvm_scan import tir
from tvm_scan.algebra.choices import map_choices
from tvm_scan.extraction.accesses import rename, truth
from tvm_scan.extraction.extents import Extents
from tvm_scan.extraction.integers import map_integers, same_statements, simplified
from tvm_scan.extraction.nest import linear_in
from tvm_scan.extraction.statements import Condition, Loop, decided, map_expressions, without_allocs

_LARGEST = 16


def rolled_up(loop: Loop, extents: Extents) -> Loop | None:
    """A loop with one step per iteration; None where its body is no repetition.

    Parameters
    ----------
    loop : Loop
        A loop whose iterations may carry.
    extents : Extents
        Of the function that it belongs to.
    """
    for body in _views(without_allocs(loop.body)):
        for copies in range(min(len(body), _LARGEST), 1, -1):
            if len(body) % copies:
                continue
            rolled = _rolled(loop, body, copies, extents)
            if rolled is not None:
                return rolled
    return None


Guarded = tuple[Any, Any]


def _views(body: list[Any]) -> list[list[Guarded]]:
    """The statements as they stand, and with conditions around several taken apart."""
    plain: list[Guarded] = [(None, s) for s in body]
    apart: list[Guarded] = []
    conditions = 0
    for s in body:
        if isinstance(s, Condition) and not s.orelse and not tir.loads(s.cond):
            apart += [(s.cond, inner) for inner in s.then]
            conditions += 1
        else:
            apart.append((None, s))
    return [plain, apart] if conditions else [plain]


def _rolled(loop: Loop, body: list[Guarded], copies: int, extents: Extents) -> Loop | None:
    size = len(body) // copies
    lists = [body[i * size : (i + 1) * size] for i in range(copies)]
    time = Var(loop.var.name, loop.var.ty)
    steps = _count(loop, lists, copies)
    if steps is None:
        return None
    template = _first(loop.var, time, [s for _, s in lists[0]], copies)
    # At multiples of ``U`` the template is the first list by the way it is made.
    for k, each in enumerate(lists[1:], start=1):
        here = tir.VarMap([(time, loop.var * copies + k)])
        expected = _decided(rename(template, here), loop)
        if not same_statements(expected, _decided([s for _, s in each], loop)):
            return None
    return Loop(time, extents.count(steps), template, loop.origin, loop.thread)


def _count(loop: Loop, lists: list[list[Guarded]], copies: int) -> Any:
    """Number of steps; None where the conditions of the lists are not those of a tail."""
    whole = loop.extent * copies
    limit = None
    unguarded: list[int] = []
    for k, statements in enumerate(lists):
        guards = [cond for cond, _ in statements]
        if all(cond is None for cond in guards):
            unguarded.append(k)
            continue
        for cond in guards:
            bound = None if cond is None else below(cond, loop.var)
            if bound is None or bound[0] != copies:
                return None
            here = tir.simplify(bound[1] + k)
            if limit is not None and not tir.structurally_equal(here, limit):
                return None
            limit = here
    if limit is None:
        return tir.simplify(whole)
    analyzer = Analyzer()
    last = loop.extent - 1
    if not all(analyzer.can_prove(last * copies + k < limit) for k in unguarded):
        return None
    return limit if analyzer.can_prove(limit <= whole) else tirx.Min(limit, whole)


def below(cond: Any, var: Var) -> tuple[int, Any] | None:
    """``(c, r)`` with ``cond == (c var < r)``, ``c`` a positive constant and ``r`` free of it."""
    if isinstance(cond, tirx.LT | tirx.LE):
        difference = cond.a - cond.b
    elif isinstance(cond, tirx.GT | tirx.GE):
        difference = cond.b - cond.a
    else:
        return None
    if tir.loads(cond) or not tir.dtype_of(cond.a).startswith("int"):
        return None
    linear = linear_in(tir.simplify(difference), var)
    if linear is None or linear[0] < 1:
        return None
    more = 1 if isinstance(cond, tirx.LE | tirx.GE) else 0
    return linear[0], tir.simplify(tir.zero_like(linear[1]) - linear[1] + more)


_SCALED = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE)


def _first(var: Var, time: Var, stmts: list[Any], copies: int) -> list[Any]:
    """Statements over ``time`` that are ``stmts`` at ``time = copies var``."""

    def integer(e: Any) -> Any:
        linear = linear_in(e, var) if tir.contains_var(e, [var]) else None
        if linear is None or linear[0] % copies:
            return e
        return tir.simplify(time * (linear[0] // copies) + linear[1])

    def comparison(e: Any) -> Any:
        # ``c var + r < 0`` is ``c time + U r < 0``: boundaries may lie between two multiples.
        if not tir.dtype_of(e.a).startswith("int") or tir.loads(e):
            return e
        linear = linear_in(e.a - e.b, var)
        if linear is None or not linear[0]:
            return e
        return type(e)(tir.simplify(time * linear[0]), tir.simplify(linear[1] * -copies))

    def tests(s: Any) -> Any:
        return tvm_ffi.structural_map(s, [(_SCALED, comparison)])

    stmts = map_expressions(stmts, tests, values_only=True)
    rest = tir.VarMap([(var, tirx.floordiv(time, tirx.IntImm(tir.dtype_of(time), copies)))])
    return rename(map_integers(stmts, integer), rest)


def _decided(stmts: list[Any], loop: Loop) -> list[Any]:
    """``stmts`` simplified, with the choices made that are the same in all iterations."""
    analyzer = Analyzer()
    analyzer.bind(loop.var, Range.from_min_extent(tir.zero_like(loop.var), loop.extent))

    known = partial(truth, analyzer)

    def choose(e: Any, cond: Any, yes: Any, no: Any) -> Any:
        holds = known(cond)
        return e if holds is None else yes if holds else no

    chosen = map_expressions(stmts, lambda e: map_choices(e, choose), values_only=True)
    return simplified(decided(chosen, known), [(loop.var, loop.extent)])
