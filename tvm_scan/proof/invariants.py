"""Facts that hold of every element, found and proven: the strongest that compositions keep.

Facts are tried from the strongest to the weakest; one that an element of a step, the identity or a
composition of two elements may break gives way to the next. (C. Flanagan and K. R. M. Leino,
"Houdini, an annotation assistant for ESC/Java", FME 2001.) What is left is true by induction.
"""

from __future__ import annotations

from typing import Any

from tvm_scan.proof.bitvectors import BitVectors
from tvm_scan.proof.elements import Fact, candidates
from tvm_scan.proof.logic import Bool
from tvm_scan.proof.questions import Alone, Questions
from tvm_scan.proof.solver import ask
from tvm_scan.proof.translate import Term


def facts_of(questions: Questions, seconds: float) -> tuple[tuple[Fact, ...], float]:
    """The facts of every part, and how long they took.

    Parameters
    ----------
    questions : Questions
        Of which problem, in which theory.
    seconds : float
        For each condition.
    """
    algebra, theory = questions.algebra, questions.theory
    alone = questions.alone()
    left = candidates(
        [e.parts for e in alone],
        [e.terms for e in alone],
        algebra.combine,
        algebra.dtypes,
        theory.exact and not isinstance(theory.arithmetic, BitVectors),
        theory.images,
    )
    spent = 0.0
    while True:
        facts = tuple(facts[0] for facts in left)
        broken, took = _broken(questions, alone, facts, seconds)
        spent += took
        if broken is None:
            return facts, spent
        left[broken].pop(0)


def _broken(
    questions: Questions, alone: list[Alone], facts: tuple[Fact, ...], seconds: float
) -> tuple[int | None, float]:
    """The first part of which a fact does not hold, if any."""
    cases: list[tuple[list[Term], Any, list[Bool]]] = [
        *((each.terms, each.steps, each.assumed) for each in alone),
        questions.combined(facts),
        questions.extended(facts),
    ]
    spent = 0.0
    for terms, steps, assumed in cases:
        for i, goal in enumerate(questions.holds(facts, terms, steps)):
            answer = ask(assumed, goal, seconds)
            spent += answer.seconds
            if not answer.holds:
                return i, spent
    return None, spent
