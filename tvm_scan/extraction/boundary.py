"""The source of the first step: an initial state, a value of its own, or memory before time.

Theorem (first step). Let the step be ``E(h, t)``. If ``E`` with ``t = 0`` is free of ``h``, the
recurrence has no initial state: step 0 is the constant map to ``E(., 0)``, and ``E`` with its
tests on ``t`` decided for ``t >= 1`` is the step from there on. If in addition
``E(., 0) == E(c, t >= 1)`` for the expression ``c`` that stands beside the carry, then ``c`` is
an initial state and every step is the same map.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import Range, Var
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer

from tvm_scan import tir
from tvm_scan.algebra.choices import choices_in, map_choices


@dataclass(eq=False)
class Boundary:
    """The step from step 1 on, and either an initial value or the value after step 0."""

    step: Any
    init: Any = None
    first: Any = None


def decide_time_tests(expr: Any, time: Var, extent: Any, at: int | None, begin: int = 1) -> Any:
    """``expr`` with choices on time decided for step ``at``, or (None) for all from ``begin``."""
    analyzer = Analyzer()
    zero = tir.zero_like(time)
    if at is not None:
        analyzer.bind(time, zero + at)
    else:
        rest = tirx.Max(extent - begin, zero + 1)
        analyzer.bind(time, Range.from_min_extent(zero + begin, rest))

    def holds(cond: Any, wanted: bool) -> bool:
        if isinstance(cond, tirx.Or | tirx.And):
            parts = (holds(part, wanted) for part in (cond.a, cond.b))
            return any(parts) if isinstance(cond, tirx.Or) == wanted else all(parts)
        if tir.loads(cond):
            return False
        return bool(analyzer.can_prove(cond if wanted else tirx.Not(cond)))

    def decide(whole: Any, cond: Any, yes: Any, no: Any) -> Any:
        return yes if holds(cond, True) else no if holds(cond, False) else whole

    return map_choices(expr, decide)


def split_boundary(
    step: Any, old: Var, time: Var, extent: Any, others: Sequence[Var] = ()
) -> Boundary:
    """Apply the theorem above to the step of one carry.

    Parameters
    ----------
    step : Expr
        The carry after the step, with its tests on time.
    old, time : Var
        The carry before the step, and time.
    extent : Expr
        Extent of time.
    others : sequence of Var
        What an initial value must not depend on: other carries before the step.
    """
    at_first = decide_time_tests(step, time, extent, at=0)
    if not tir.contains_var(step, [old]) or tir.contains_var(at_first, [old]):
        return Boundary(step)
    later, init = _from_step([at_first], step, old, [old, *others], time, extent)
    if init is not None:
        return Boundary(later, init=init)
    return Boundary(
        later, first=tir.substitute(at_first, tir.VarMap([(time, tir.zero_like(time))]))
    )


def joint_initial_values(
    steps: Sequence[Any], olds: Sequence[Var], time: Var, extent: Any
) -> tuple[list[Any], list[Any]] | None:
    """The theorem above for several carries that feed one another.

    Parameters
    ----------
    steps : sequence of Expr
        The carries after the step, with their tests on time.
    olds : sequence of Var
        The carries before it.
    time : Var
        Time.
    extent : Expr
        Extent of time.

    Returns
    -------
    tuple of (list of Expr, list of Expr) or None
        Steps without tests on time, and initial values with which step 0 is what it was.
    """
    inits: list[Any] = []
    for old in olds:
        values = [v for step in steps for v in _initial_values(step, old, olds, time, extent)]
        if not values:
            return None
        inits.append(values[0])
    table = tir.VarMap(zip(olds, inits, strict=True))
    later = [decide_time_tests(step, time, extent, at=None) for step in steps]
    for step, rest in zip(steps, later, strict=True):
        at_first = decide_time_tests(step, time, extent, at=0)
        if not tir.structurally_equal(tir.substitute(rest, table), at_first):
            return None
    return later, inits


def lag_initial_values(
    steps: Sequence[Any], olds: Sequence[Var], time: Var, extent: Any
) -> tuple[list[Any], list[Any]] | None:
    """Initial values of carries of which one is computed, from the last one, and the others move.

    Theorem. Let a step read the carry ``k`` steps back alone, and let ``E(c, t >= k)``, its step
    with the tests on time decided from step ``k`` on, be what each of the steps ``0 .. k - 1`` is,
    for one expression ``c`` that does not depend on time. What these steps find ``k`` steps back
    is the state before time; so with ``c`` in all of it every step is the same map.

    Parameters and result are those of ``joint_initial_values``.
    """
    count = len(olds)
    working = [step for step in steps if not isinstance(step, Var)]
    if len(working) != 1:
        return None
    (step,) = working
    read = [old for old in olds if tir.contains_var(step, [old])]
    if len(read) != 1:
        return None
    early = [decide_time_tests(step, time, extent, at=s) for s in range(count)]
    later, init = _from_step(early, step, read[0], olds, time, extent)
    return None if init is None else ([later if s is step else s for s in steps], [init] * count)


def _from_step(
    early: list[Any], step: Any, old: Var, olds: Sequence[Var], time: Var, extent: Any
) -> tuple[Any, Any]:
    """The step after the ``early`` ones, and a value of ``old`` with which these are the same.

    The value is None where there is none.
    """
    later = decide_time_tests(step, time, extent, at=None, begin=len(early))
    for init in _initial_values(step, old, olds, time, extent):
        wanted = tir.substitute(later, tir.VarMap([(old, init)]))
        if all(tir.structurally_equal(each, wanted) for each in early):
            return later, init
    return later, None


def without_time_tests(body: Any, held: Any, init: Any, time: Var, extent: Any) -> Any:
    """``body`` with ``t > 0 ? held : init`` as ``held``, which step 0 finds equal to ``init``.

    Parameters
    ----------
    body : Stmt
        One step over registers.
    held : Var
        Register array of the carry; the state before step 0 is ``init``.
    init : Expr
        The initial value.
    time : Var
        Time.
    extent : Expr
        Extent of time.
    """

    def choose(whole: Any, _: Any, yes: Any, no: Any) -> Any:
        for chosen, other in ((yes, no), (no, yes)):
            if not (isinstance(chosen, TensorLoad) and chosen.source.same_as(held)):
                continue
            if not tir.structurally_equal(other, init):
                continue
            early = decide_time_tests(whole, time, extent, at=0)
            late = decide_time_tests(whole, time, extent, at=None)
            if early.same_as(other) and late.same_as(chosen):
                return chosen
        return whole

    return map_choices(body, choose)


def _initial_values(step: Any, old: Var, olds: Sequence[Var], time: Var, extent: Any) -> list[Any]:
    """Values free of time and carries that step 0 may find in place of one, by tests on time."""
    candidates = [decide_time_tests(other, time, extent, at=0) for other in _beside(step, old)]
    return [init for init in candidates if not tir.contains_var(init, [time, *olds])]


def _beside(step: Any, old: Var) -> list[Any]:
    """Alternatives of the carry in choices such as ``if_then_else(t > 0, old, c)``."""
    return [
        other
        for _, yes, no in choices_in(step)
        for side, other in ((yes, no), (no, yes))
        if isinstance(side, Var) and side.same_as(old)
    ]
