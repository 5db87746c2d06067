"""The statements about one group of carries, asked in the numbers in which they can be answered."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tvm_scan.algebra.literal import is_integer
from tvm_scan.proof.assumptions import assumptions_of, numbers_of
from tvm_scan.proof.bitvectors import BitVectors
from tvm_scan.proof.certificate import GroupProof, Statement, Verdict
from tvm_scan.proof.counterexample import shown_values
from tvm_scan.proof.elements import Fact
from tvm_scan.proof.integers import ExactIntegers
from tvm_scan.proof.invariants import facts_of
from tvm_scan.proof.linear import multiplies
from tvm_scan.proof.problem import Problem, Theory
from tvm_scan.proof.questions import Question, Questions
from tvm_scan.proof.rounding import rounding_law
from tvm_scan.proof.solver import ask
from tvm_scan.proof.untranslatable import UntranslatableError

CLAIMS = {
    "step": "apply(lift(x), h) = step(h, x)",
    "first step": "apply(constant(x0), neutral) = x0",
    "elements": "what is assumed of elements holds of lift(x), the identity and combine(f, g)",
    "composition": "apply(combine(f, g), h) = apply(g, apply(f, h))",
    "identity": "apply(identity, h) = h",
    "extension": "apply(extend(f, lift(x)), h) = apply(lift(x), apply(f, h))",
    "cheaper forms": "the formulas for the usual case are the same where their test says so",
    "numbers": "no sum or product of the scan overflows where the loop's do not",
    "two steps": "apply(combine(lift(x1), lift(x2)), h) = step(step(h, x1), x2)",
}


def _said(name: str, verdict: Verdict, seconds: float, **more: Any) -> Statement:
    return Statement(name, CLAIMS[name], verdict, seconds, **more)


@dataclass(eq=False)
class _Attempt:
    """The statements in one theory, up to the first that does not hold there."""

    theory: Theory
    facts: tuple[Fact, ...] = ()
    statements: list[Statement] = field(default_factory=list)
    fault: str = ""

    @property
    def holds(self) -> bool:
        return not self.fault


def prove_group(problem: Problem, seconds: float) -> GroupProof:
    """Prove what can be proven of one group.

    Parameters
    ----------
    problem : Problem
        Its step and its algebra.
    seconds : float
        Work for each question.
    """
    attempts: list[_Attempt] = []
    refutation: _Refutation | None = None
    for theory in _theories(problem):
        # That an operator of a user's is associative modulo 2^n is rare, and seen soon.
        first_look = problem.is_declared and not theory.exact
        attempt = _attempted(theory, 0.1 * seconds if first_look else seconds)
        if attempt.holds:
            return _proof(attempt, seconds)
        attempts.append(attempt)
        if len(attempts) == 1:
            refutation = _counterexample(problem, 0.05 * seconds, glance=True)
            if refutation is not None:
                break
    return _refuted(attempts, refutation or _counterexample(problem, seconds))


def _theories(problem: Problem) -> list[Theory]:
    """The numbers in which the statements are asked, until all hold.

    First those that wrap around, of which statements hold for all inputs; then those of loops in
    which nothing signed of 32 or 64 bits overflows. Words are poor at divisions and at products of
    twice the width, integers have no bits.
    """
    words = Theory(problem, BitVectors(), exact=False)
    integers = Theory(problem, ExactIntegers(), exact=True)
    if not any(is_integer(dtype) for dtype in problem.dtypes):
        return [words]
    wider = any(is_integer(d) and d not in problem.dtypes for d in problem.algebra.dtypes)
    wider = wider and not problem.is_declared and not problem.moves_bits
    if problem.divides or wider:
        around = Theory(problem, ExactIntegers(wrapping=True), exact=False)
        both = [around, integers]
        return both if problem.divides else [*both, words]
    if problem.is_declared:
        return [words, integers, Theory(problem, ExactIntegers(), exact=True, promised=True)]
    return [words, integers, Theory(problem, BitVectors(), exact=True)]


def _attempted(theory: Theory, seconds: float) -> _Attempt:
    attempt = _Attempt(theory)
    try:
        _ask_all(attempt, Questions(theory), seconds)
    except UntranslatableError as error:
        attempt.fault = f"{theory.arithmetic.name} have no translation of {error}"
    return attempt


def _ask_all(attempt: _Attempt, questions: Questions, seconds: float) -> None:
    def asked(name: str, question: Question | None) -> bool:
        if question is None:
            return True
        answer = ask(question.assumed, question.goal, seconds)
        if not answer.holds:
            attempt.fault = f"{name} is {'wrong' if answer.holds is False else 'undecided'}"
            return False
        attempt.statements.append(_said(name, Verdict.PROVEN, answer.seconds))
        return True

    if not (asked("step", questions.step()) and asked("first step", questions.first())):
        return
    facts, spent = facts_of(questions, seconds)
    attempt.facts = facts
    attempt.statements.append(_said("elements", Verdict.PROVEN, spent))
    _ = (
        asked("composition", questions.composition(facts))
        and asked("identity", questions.identity())
        and asked("extension", questions.extension(facts))
        and asked("cheaper forms", questions.plain(facts))
    )


def _proof(attempt: _Attempt, seconds: float) -> GroupProof:
    theory = attempt.theory
    said = _numbers(Questions(theory), attempt.facts, seconds)
    statements = [*attempt.statements, *([said] if said is not None else [])]
    wraps = said is not None and said.verdict is Verdict.ASSUMED
    return _group(theory, statements, attempt.facts, wraps)


def _group(
    theory: Theory,
    statements: list[Statement],
    facts: tuple[Fact, ...] = (),
    wraps: bool = False,
) -> GroupProof:
    problem = theory.problem
    return GroupProof(
        carries=tuple(str(old.name) for old in problem.olds),
        dtypes=problem.dtypes,
        family=problem.family,
        numbers=numbers_of(theory),
        assumptions=assumptions_of(theory, facts, wraps),
        statements=tuple(statements),
        rounding=rounding_law(problem.algebra, problem.dtypes),
    )


def _numbers(questions: Questions, facts: tuple[Fact, ...], seconds: float) -> Statement | None:
    """Decide whether the scan overflows where the loop does not.

    Where it may, its sums and products are those of words that wrap around; that the kernels
    compute them so is an assumption here, and tested in ``tests/unit/test_wrapping.py``.
    """
    if questions.theory.promised:
        return None
    both = [questions.numbers_of_step(), questions.numbers(facts)]
    if all(question.goal is True for question in both):
        has_integers = any(is_integer(d) for d in questions.algebra.dtypes)
        return _said("numbers", Verdict.PROVEN, 0.0) if has_integers else None
    spent, note = 0.0, ""
    for question in both:
        of_words = isinstance(questions.theory.arithmetic, BitVectors)
        if of_words and question.goal is not True and multiplies(question.goal):
            # Products of any two words overflow; there is nothing to ask.
            return _said("numbers", Verdict.ASSUMED, spent)
        answer = ask(question.assumed, question.goal, seconds)
        spent += answer.seconds
        if not answer.holds:
            if answer.model is not None:
                values = shown_values(answer.model, question.shown, questions.theory)
                note = "as in " + ", ".join(f"{name} = {value}" for name, value in values)
            return _said("numbers", Verdict.ASSUMED, spent, note=note)
    return _said("numbers", Verdict.PROVEN, spent)


def _refuted(attempts: list[_Attempt], refutation: _Refutation | None) -> GroupProof:
    """A counterexample of inputs of the loop; or what remained undecided, and why."""
    best = max(attempts, key=lambda attempt: len(attempt.statements))
    if refutation is None:
        reasons = "; ".join(f"{a.theory.name}: {a.fault}" for a in attempts)
        name = best.fault.partition(" is ")[0]
        name = name if name in CLAIMS else "step"
        last = _said(name, Verdict.UNDECIDED, 0.0, note=reasons)
        theory = best.theory
    else:
        last, theory = refutation.statement, refutation.theory
    return _group(theory, [*(said for said in best.statements if said.name != last.name), last])


@dataclass(frozen=True, eq=False)
class _Refutation:
    """A statement that does not hold, and the numbers for which it does not."""

    statement: Statement
    theory: Theory


def _counterexample(problem: Problem, seconds: float, glance: bool = False) -> _Refutation | None:
    """Inputs for which the values differ, in loops in which nothing undefined happens."""
    promised = problem.is_declared
    words = Theory(problem, BitVectors(), exact=True, promised=promised)
    integers = Theory(problem, ExactIntegers(), exact=True, promised=promised)
    theories = [words]
    if any(is_integer(dtype) for dtype in problem.dtypes):
        theories = [integers] if problem.divides else [words, integers]
    for theory in theories:
        questions = Questions(theory)
        asked = {
            "step": questions.step,
            "two steps": questions.two_steps,
            "identity": questions.identity,
        }
        for name, make in asked.items():
            try:
                question = make()
                answer = ask(question.assumed, question.values, seconds, glance)
            except UntranslatableError:
                continue
            if answer.holds is not False or theory.is_guess(question.atoms):
                continue
            values = tuple(shown_values(answer.model, question.shown, theory))
            said = _said(name, Verdict.REFUTED, answer.seconds, counterexample=values)
            return _Refutation(said, theory)
    return None
