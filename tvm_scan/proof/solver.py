"""Questions to the solver, within a bound of work that does not depend on the machine's load."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import z3

from tvm_scan.proof.logic import Bool
from tvm_scan.proof.residues import normal_remainders

__all__ = ["Answer", "ask"]

#: Units of z3's own count of work per second of a machine of 2024, roughly.
_WORK = 4_000_000
_REMEMBERED = 4096


@dataclass(frozen=True, eq=False)
class Answer:
    """What the solver said.

    Attributes
    ----------
    holds : bool or None
        Whether the goal follows; None where the solver gave up.
    seconds : float
        How long it took when it was asked.
    model : z3.ModelRef or None
        Values for which it does not.
    """

    holds: bool | None
    seconds: float
    model: Any = None


_known: OrderedDict[int, tuple[Any, float, Answer]] = OrderedDict()


def ask(given: list[Bool], goal: Bool, seconds: float, glance: bool = False) -> Answer:
    """Whether ``goal`` follows from ``given``.

    Parameters
    ----------
    given : list of (bool or z3.BoolRef)
        Assumptions.
    goal : bool or z3.BoolRef
        What is to follow.
    seconds : float
        Work to spend, as seconds of a usual machine; the same on all machines.
    glance : bool
        Whether to try one way only, where a counterexample is found soon or of no use.

    Returns
    -------
    Answer
        The same object for the same question.
    """
    if goal is True or any(g is False for g in given):
        return Answer(True, 0.0)
    terms = [g for g in given if g is not True]
    goal = z3.BoolVal(False) if goal is False else goal
    question = z3.Implies(z3.And(*terms), goal) if terms else goal
    key = question.get_id()
    held = _known.get(key)
    if held is not None and held[1] >= seconds:
        _known.move_to_end(key)
        return held[2]
    begin = time.perf_counter()
    holds, model = (_check if glance else _decide)(terms, goal, seconds)
    answer = Answer(holds, time.perf_counter() - begin, model)
    _known[key] = (question, seconds, answer)  # the term is kept, so that its number stays its own
    while len(_known) > _REMEMBERED:
        _known.popitem(last=False)
    return answer


def _decide(given: list[Any], goal: Any, seconds: float) -> tuple[bool | None, Any]:
    """Try what is quick first; what is false is most often found by the first real look."""
    if z3.is_true(z3.simplify(goal, som=True)):
        return True, None
    holds, model = _check(given, goal, 0.1 * seconds)
    if holds is not None:
        return holds, model
    general = _general([*given, goal])
    if _check(general[:-1], general[-1], 0.1 * seconds)[0]:
        return True, None
    holds, model = _Cases(given, seconds).decide(goal)
    return (holds, model) if holds is not None else _check(given, goal, 0.5 * seconds)


def _check(given: list[Any], goal: Any, seconds: float) -> tuple[bool | None, Any]:
    solver = z3.Solver()
    solver.set("rlimit", int(seconds * _WORK) + 1)
    solver.add(*given, z3.Not(goal))
    said = solver.check()
    if said == z3.unsat:
        return True, None
    return (False, solver.model()) if said == z3.sat else (None, None)


def _general(terms: list[Any]) -> list[Any]:
    """The terms as sums of monomials, with an unknown in the place of every choice of a number.

    What follows for any numbers follows for those that were chosen.
    """
    unknown: dict[int, tuple[Any, Any]] = {}

    def visit(e: Any) -> None:
        stack, seen = [e], set()
        while stack:
            node = stack.pop()
            if not z3.is_app(node) or node.get_id() in seen:
                continue
            seen.add(node.get_id())
            if z3.is_app_of(node, z3.Z3_OP_ITE) and z3.is_arith(node):
                unknown[node.get_id()] = (node, z3.FreshConst(node.sort()))
            else:
                stack.extend(node.children())

    for term in terms:
        visit(term)
    pairs = list(unknown.values())
    return [z3.simplify(z3.substitute(term, *pairs), som=True) for term in terms]


class _Cases:
    """Decides the conditions of choices one after the other, until none is left."""

    def __init__(self, given: list[Any], seconds: float) -> None:
        self.work = int(seconds * _WORK)
        self.solver = z3.Solver()
        self.solver.add(*given)

    def decide(self, goal: Any) -> tuple[bool | None, Any]:
        """Whether the goal follows from what is assumed."""
        goal = z3.simplify(normal_remainders(goal), som=True)
        if z3.is_true(goal):
            return True, None
        test = _a_condition(goal)
        if test is None:
            return self._leaf(goal)
        for value in (True, False):
            self.solver.push()
            self.solver.add(test if value else z3.Not(test))
            holds, model = True, None
            if self._check() != z3.unsat:
                holds, model = self.decide(z3.substitute(goal, (test, z3.BoolVal(value))))
            self.solver.pop()
            if not holds:
                return holds, model
        return True, None

    def _leaf(self, goal: Any) -> tuple[bool | None, Any]:
        self.solver.push()
        self.solver.add(z3.Not(goal))
        said = self._check()
        model = self.solver.model() if said == z3.sat else None
        self.solver.pop()
        return (True if said == z3.unsat else False if said == z3.sat else None), model

    def _check(self) -> Any:
        if self.work <= 0:
            return z3.unknown
        self.solver.set("rlimit", self.work)
        before = _work_done(self.solver)
        said = self.solver.check()
        self.work -= max(1000, _work_done(self.solver) - before)
        return said


def _work_done(solver: Any) -> int:
    """z3's own count, which never goes back."""
    counts = solver.statistics()
    return next((int(n) for name, n in counts if name == "rlimit count"), 0)


def _a_condition(e: Any) -> Any:
    """The condition of an innermost choice between numbers."""
    seen: set[int] = set()
    stack = [e]
    while stack:
        node = stack.pop()
        if not z3.is_app(node) or node.get_id() in seen:
            continue
        seen.add(node.get_id())
        if z3.is_app_of(node, z3.Z3_OP_ITE):
            inner = _a_condition(node.arg(0))
            return node.arg(0) if inner is None else inner
        stack.extend(node.children())
    return None
