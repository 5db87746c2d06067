"""Questions to the solver, within a bound of work that does not depend on the machine's load."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import z3

from tvm_scan.proof.linear import Linear, is_linear, unknown_choices
from tvm_scan.proof.logic import Bool
from tvm_scan.proof.residues import monomials, normal_remainders

#: Units of z3's own count of work per second of a machine of 2024, roughly.
_WORK = 4_000_000
_REMEMBERED = 4096
#: What a question counts at least.
_LEAST = 10_000
#: Milliseconds.
_STUCK = 300_000


@dataclass(frozen=True, eq=False)
class Answer:
    """The solver's answer.

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


def ask(assumed: list[Bool], goal: Bool, seconds: float, glance: bool = False) -> Answer:
    """Ask whether ``goal`` follows from ``assumed``.

    Parameters
    ----------
    assumed : list of (bool or z3.BoolRef)
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
    if goal is True or any(g is False for g in assumed):
        return Answer(True, 0.0)
    terms = [g for g in assumed if g is not True]
    goal = z3.BoolVal(False) if goal is False else goal
    question = z3.Implies(z3.And(*terms), goal) if terms else goal
    key = question.get_id()
    held = _known.get(key)
    if held is not None and (held[2].holds is not None or held[1] >= seconds):
        _known.move_to_end(key)
        return held[2]
    begin = time.perf_counter()
    holds, model = (_check if glance else _decide)(terms, goal, seconds)
    answer = Answer(holds, time.perf_counter() - begin, model)
    _known[key] = (question, seconds, answer)  # the term is kept, so that its number stays its own
    while len(_known) > _REMEMBERED:
        _known.popitem(last=False)
    return answer


def _decide(assumed: list[Any], goal: Any, seconds: float) -> tuple[bool | None, Any]:
    """Try what is quick first: what is equal as polynomials, what is linear, then by cases."""
    if z3.is_true(monomials(goal)):
        return True, None
    simple = is_linear([*assumed, goal])
    if simple:
        holds, model = _check(assumed, goal, 0.2 * seconds)
        if holds is not None:
            return holds, model
    linear = Linear(assumed)
    for terms in ([*assumed, goal], unknown_choices([*assumed, goal])):
        known = [linear(term) for term in terms]
        if _check([*known[:-1], *linear.facts], known[-1], 0.1 * seconds)[0]:
            return True, None
    # What is given is decided with the goal, so that its choices are, too.
    whole = z3.Implies(z3.And(*assumed), goal) if assumed else goal
    if _Cases(assumed, seconds, linear).holds(whole):
        return True, None
    # Products of reals count little and take long.
    return _check(assumed, goal, (0.5 if simple else 0.1) * seconds)


def _check(assumed: list[Any], goal: Any, seconds: float) -> tuple[bool | None, Any]:
    solver = z3.Solver()
    solver.set("rlimit", int(seconds * _WORK) + 1)
    # Some of z3's algebra is not counted as work; no answer depends on this unless it is stuck.
    solver.set("timeout", _STUCK)
    solver.add(*assumed, z3.Not(goal))
    said = solver.check()
    if said == z3.unsat:
        return True, None
    return (False, solver.model()) if said == z3.sat else (None, None)


class _Cases:
    """Decides the conditions of choices one after the other, until none is left.

    Products of unknowns are unknowns of their own, so that only proofs are found, but quickly.
    """

    def __init__(self, assumed: list[Any], seconds: float, linear: Linear) -> None:
        self.work, self.linear = int(seconds * _WORK), linear
        self.solver = z3.Solver()
        self.solver.add(*(linear(term) for term in assumed))

    def holds(self, goal: Any) -> bool:
        """Return whether the goal follows from what is given, and from the case at hand."""
        goal = monomials(normal_remainders(goal))
        if z3.is_true(goal):
            return True
        tests = _conditions(goal)
        if self._is_impossible(z3.Not(unknown_choices([goal])[0] if tests else goal)):
            return True
        if not tests:
            return False
        test = min(tests, key=_weight)
        for value in (True, False):
            case = test if value else z3.Not(test)
            if self._is_impossible(case):
                continue
            self.solver.push()
            self.solver.add(self.linear(case))
            holds = self.holds(z3.substitute(goal, (test, z3.BoolVal(value))))
            self.solver.pop()
            if not holds:
                return False
        return True

    def _is_impossible(self, case: Any) -> bool:
        if self.work <= 0:
            return False
        self.solver.push()
        # Before the facts are read, which there may be more of then.
        self.solver.add(self.linear(case))
        self.solver.add(*self.linear.facts)
        self.solver.set("rlimit", self.work)
        before = _work_done(self.solver)
        said = self.solver.check()
        self.work -= max(_LEAST, _work_done(self.solver) - before)
        self.solver.pop()
        return bool(said == z3.unsat)


def _work_done(solver: Any) -> int:
    """z3's own count, which never goes back."""
    counts = solver.statistics()
    return next((int(n) for name, n in counts if name == "rlimit count"), 0)


def _conditions(e: Any) -> list[Any]:
    """The conditions of innermost choices between numbers."""
    seen: set[int] = set()
    stack, out = [e], []
    while stack:
        node = stack.pop()
        if not z3.is_app(node) or node.get_id() in seen:
            continue
        seen.add(node.get_id())
        if z3.is_app_of(node, z3.Z3_OP_ITE) and not _conditions(node.arg(0)):
            out.append(node.arg(0))
        stack.extend(node.children())
    return out


def _weight(test: Any) -> tuple[bool, int]:
    """Tests of flags before those of numbers; small ones first."""
    size, stack, numbers = 0, [test], False
    while stack:
        node = stack.pop()
        size += 1
        numbers = numbers or z3.is_arith(node)
        stack.extend(node.children())
    return numbers, size
