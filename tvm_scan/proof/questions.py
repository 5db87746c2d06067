"""The statements of a certificate, each as assumptions and a goal."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tvm import tirx

from tvm_scan import tir
from tvm_scan.algebra.base import Element, Forgetting
from tvm_scan.proof.atoms import Atoms
from tvm_scan.proof.elements import Fact, Unknowns, holds_of, unknown_element
from tvm_scan.proof.logic import Bool, conj, implies
from tvm_scan.proof.problem import Theory
from tvm_scan.proof.translate import Term, Translator, all_checks


@dataclass(eq=False)
class Question:
    """The question whether ``goal`` follows from ``given``.

    Attributes
    ----------
    given : list of (bool or z3.BoolRef)
        Assumptions.
    goal : bool or z3.BoolRef
        What is to follow: that results are the same, and that they are what was translated.
    values : bool or z3.BoolRef
        That they are the same alone.
    shown : list of (str, str, term)
        What a counterexample is told in: name, dtype, term.
    atoms : list of Atoms
        Inputs that occur.
    """

    assumed: list[Bool]
    goal: Bool
    values: Bool = True
    shown: list[tuple[str, str, Any]] = field(default_factory=list)
    atoms: list[Atoms] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Alone:
    """An element that is made of no other one, over so many steps, and what is assumed there."""

    parts: Element
    terms: list[Term]
    steps: int
    assumed: list[Bool]


class Questions:
    """The questions about one problem in one theory.

    Parameters
    ----------
    theory : Theory
        The problem and its numbers.
    """

    def __init__(self, theory: Theory) -> None:
        self.theory, self.problem = theory, theory.problem
        self.algebra = self.problem.algebra
        self.dtypes = self.problem.dtypes
        #: Where step 0 sets the carries: its element, and the carries before it.
        self.constant: tuple[Element, Element] | None = None
        if self.problem.first is not None and isinstance(self.algebra, Forgetting):
            self.constant = self.algebra.constant((self.problem.first,)), self.algebra.neutral()

    # ---- the step -----------------------------------------------------------------------------

    def step(self) -> Question:
        """The lifted element applied to the carries is the step."""
        theory, p = self.theory, self.problem
        names, assumed = theory.carries()
        run = theory.translator(names)
        after = run.every(p.steps)
        got = run.every(self.algebra.apply(self.algebra.lift(), p.olds))
        assumed += [theory.loop_defined(after), theory.indexed(run, p.olds)]
        assumed.append(theory.indexed(run, p.steps))
        shown = {"the loop": after, "the element": got}
        return self._same(assumed, got, after, [run], shown)

    def first(self) -> Question | None:
        """The element of step 0 applied to the neutral carries is what step 0 sets."""
        if self.constant is None:
            return None
        theory, (constant, neutral) = self.theory, self.constant
        run = theory.translator(tir.VarMap())
        after = [run(self.problem.first)]
        got = run.every(self.algebra.apply(constant, neutral))
        return self._same([theory.loop_defined(after)], got, after, [run], {})

    def two_steps(self) -> Question:
        """The elements of two steps, combined and applied, are two steps of the loop."""
        theory, p = self.theory, self.problem
        names, assumed = theory.carries()
        run = theory.translator(names)
        moved = tir.VarMap(zip(p.olds, run.every(p.steps), strict=True))
        again = theory.translator(moved, theory.atoms(run.atoms))
        twice = again.every(p.steps)
        assumed += [theory.loop_defined(twice), theory.indexed(run, p.olds)]
        assumed += [theory.indexed(again, p.olds), theory.indexed(again, p.steps)]
        f, g = self._named("f", run), self._named("g", again)
        both = self.algebra.combine(tuple(f.keys()), tuple(g.keys()))
        known = tir.VarMap([*names.items(), *f.items(), *g.items()])
        got = theory.translator(known, run.atoms).every(self.algebra.apply(both, p.olds))
        if theory.promised:
            assumed.append(theory.meant(got))
        shown = {"the loop": twice, "the scan": got}
        return self._same(assumed, got, twice, [run, again], shown)

    def _named(self, name: str, run: Translator) -> tir.VarMap:
        lifted = zip(self.algebra.lift(), self.algebra.dtypes, strict=True)
        return tir.VarMap(
            (tirx.Var(f"{name}{i}", dtype), run(part)) for i, (part, dtype) in enumerate(lifted)
        )

    # ---- elements -----------------------------------------------------------------------------

    def element(self, name: str, facts: tuple[Fact, ...]) -> Unknowns:
        """An unknown element of which the facts hold."""
        theory = self.theory
        return unknown_element(name, self.algebra.dtypes, facts, theory.arithmetic, theory.images)

    def holds(self, facts: tuple[Fact, ...], terms: list[Term], steps: Any) -> list[Bool]:
        """The facts as conditions on each part."""
        theory = self.theory
        return [
            holds_of(fact, term.value, dtype, steps, theory.arithmetic, theory.images)
            for fact, term, dtype in zip(facts, terms, self.algebra.dtypes, strict=True)
        ]

    def pair(self, facts: tuple[Fact, ...]) -> tuple[Unknowns, Unknowns, tir.VarMap, list[Bool]]:
        """Two unknown elements of one lane, and carries before them."""
        f, g = self.element("f", facts), self.element("g", facts)
        names, assumed = self.theory.carries()
        for var, term in zip((*f.parts, *g.parts), (*f.terms, *g.terms), strict=True):
            names[var] = term
        assumed += [*f.assumed, *g.assumed]
        if any(fact.each for fact in facts):
            assumed.append(f.steps + g.steps <= self.problem.most_steps)
        return f, g, names, assumed

    def _in_turn(self, f: Element, g: Element, run: Translator, assumed: list[Bool]) -> list[Term]:
        """Apply two elements one after the other, where that means what is said of it."""
        theory, olds = self.theory, self.problem.olds
        between = self.algebra.apply(f, olds)
        want = run.every(self.algebra.apply(g, between))
        assumed.append(theory.meant([*want, *run.every(between)]))
        assumed += [theory.indexed(run, olds), theory.indexed(run, between)]
        return want

    def composition(self, facts: tuple[Fact, ...]) -> Question:
        """``apply(combine(f, g), h) == apply(g, apply(f, h))``."""
        theory, p = self.theory, self.problem
        f, g, names, assumed = self.pair(facts)
        run = theory.translator(names)
        want = self._in_turn(f.parts, g.parts, run, assumed)
        both = self.algebra.combine(f.parts, g.parts)
        parts, got = run.every(both), run.every(self.algebra.apply(both, p.olds))
        # A part that is of no use, such as the value of a reset that was not, may be anything.
        if theory.promised:
            assumed.append(theory.meant([*parts, *got]))
        shown = {"one after the other": want, "combined": got}
        question = self._same(assumed, got, want, [run], shown)
        question.goal = conj(all_checks(parts).defined, question.goal)
        return question

    def identity(self) -> Question:
        """``apply(identity, h) == h``."""
        theory, p = self.theory, self.problem
        names, assumed = theory.carries()
        run = theory.translator(names)
        assumed.append(theory.indexed(run, p.olds))
        got = run.every(self.algebra.apply(self.algebra.identity(), p.olds))
        want = [names[old] for old in p.olds]
        return self._same(assumed, got, want, [run], {"applied": got})

    def extension(self, facts: tuple[Fact, ...]) -> Question | None:
        """``extend(f, step)`` acts as ``f`` followed by the lifted step.

        None where it is ``combine``, of which the composition speaks.
        """
        f, g, names, assumed = self.pair(facts)
        extended = self.algebra.extend(f.parts, g.parts)
        if tir.structurally_equal(extended, self.algebra.combine(f.parts, g.parts)):
            return None
        run, lifted = self.theory.translator(names), self.algebra.lift()
        want = self._in_turn(f.parts, lifted, run, assumed)
        extended = self.algebra.extend(f.parts, lifted)
        got = run.every(self.algebra.apply(extended, self.problem.olds))
        return self._same(assumed, got, want, [run], {"want": want, "extended": got})

    def plain(self, facts: tuple[Fact, ...]) -> Question | None:
        """The cheaper formulas are the same where their condition says so."""
        cheaper = self.algebra.plainly()
        if cheaper is None:
            return None
        theory, p = self.theory, self.problem
        f, g, names, assumed = self.pair(facts)
        run = theory.translator(names)
        want = run.every(self.algebra.apply(self.algebra.combine(f.parts, g.parts), p.olds))
        assumed.append(theory.meant(want))
        total = cheaper.combine(f.parts, g.parts)
        got = run.every(cheaper.apply(total, p.olds))
        exact: Bool = True if cheaper.exact is None else run(cheaper.exact(total)).value
        after_identity = run.every(cheaper.apply(cheaper.identity, p.olds))
        before = [names[old] for old in p.olds]
        same = implies(exact, theory.same(got, want, self.dtypes))
        goal = conj(same, theory.same(after_identity, before, self.dtypes))
        shown = {"combined": want, "plainly": got}
        return self._asked(assumed, goal, goal, [run], shown)

    def numbers_of_step(self) -> Question:
        """Nothing of 32 or 64 bits overflows in an element and its application but in the loop."""
        theory, p = self.theory, self.problem
        names, assumed = theory.carries()
        run = theory.translator(names)
        loop = run.every(p.steps)
        assumed += [theory.loop_defined(loop), all_checks(loop).stays]
        return self._stays(assumed, self.algebra.lift(), run)

    def numbers(self, facts: tuple[Fact, ...]) -> Question:
        """Nothing of 32 or 64 bits overflows in a combination that does not one after the other."""
        theory, p = self.theory, self.problem
        f, g, names, assumed = self.pair(facts)
        run = theory.translator(names)
        between = self.algebra.apply(f.parts, p.olds)
        want = run.every(self.algebra.apply(g.parts, between))
        assumed += [theory.meant(want), all_checks(want).stays]
        return self._stays(assumed, self.algebra.combine(f.parts, g.parts), run)

    def _stays(self, assumed: list[Bool], element: Element, run: Translator) -> Question:
        values = run.every((*element, *self.algebra.apply(element, self.problem.olds)))
        return self._asked(assumed, all_checks(values).stays, True, [run], {})

    # ---- facts --------------------------------------------------------------------------------

    def alone(self) -> list[Alone]:
        """Elements that are made of no other: of a step, of step 0, of no steps."""
        theory = self.theory
        elements: list[tuple[Element, int]] = [(self.algebra.lift(), 1)]
        if self.constant is not None:
            elements.append((self.constant[0], 1))
        elements.append((self.algebra.identity(), 0))
        out = []
        for parts, steps in elements:
            run = theory.translator(tir.VarMap())
            terms = run.every(parts)
            out.append(Alone(parts, terms, steps, [theory.meant(terms), *run.atoms.facts]))
        return out

    def combined(self, facts: tuple[Fact, ...]) -> tuple[list[Term], Any, list[Bool]]:
        """The combination of two elements of which the facts hold, its steps, assumptions."""
        f, g, names, assumed = self.pair(facts)
        run = self.theory.translator(names)
        terms = run.every(self.algebra.combine(f.parts, g.parts))
        return terms, f.steps + g.steps, [*assumed, *run.atoms.facts]

    def extended(self, facts: tuple[Fact, ...]) -> tuple[list[Term], Any, list[Bool]]:
        """The element that ``combined`` gives, made of an element and a step."""
        f, _, names, assumed = self.pair(facts)
        run, lifted = self.theory.translator(names), self.algebra.lift()
        assumed.append(self.theory.meant(run.every(lifted)))
        terms = run.every(self.algebra.extend(f.parts, lifted))
        if any(fact.each for fact in facts):
            assumed.append(f.steps + 1 <= self.problem.most_steps)
        return terms, f.steps + 1, [*assumed, *run.atoms.facts]

    def _same(
        self,
        assumed: list[Bool],
        got: list[Term],
        want: list[Term],
        runs: list[Translator],
        shown: dict[str, list[Term]],
    ) -> Question:
        """The question whether results mean what is said of them, and are the same as others."""
        same = self.theory.same(got, want, self.dtypes)
        goal = conj(self.theory.meant(got), same)
        return self._asked(assumed, goal, same, runs, shown)

    def _asked(
        self,
        assumed: list[Bool],
        goal: Bool,
        values: Bool,
        runs: list[Translator],
        results: dict[str, list[Term]],
    ) -> Question:
        atoms = [run.atoms for run in runs]
        facts = [fact for each in atoms for fact in each.facts]
        names = runs[0].names.items()
        shown = [(str(var.name), tir.dtype_of(var), term.value) for var, term in names]
        for each in atoms:
            shown += [(name, dtype, term) for name, (dtype, term) in each.unknowns.items()]
        for name, terms in results.items():
            dtypes = self.dtypes
            shown += [(name, d, t.value) for t, d in zip(terms, dtypes, strict=True)]
        return Question([*assumed, *facts], goal, values, shown, atoms)
