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
from tvm_scan.proof.problem import Theory, all_checks
from tvm_scan.proof.translate import Term, Translator


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

    # ---- the step -----------------------------------------------------------------------------

    def step(self) -> Question:
        """The lifted element applied to the carries is the step."""
        theory, p = self.theory, self.problem
        names, assumed = theory.carries()
        atoms = theory.atoms()
        run = theory.translator(atoms, names)
        after = [run(step) for step in p.steps]
        got = [run(part) for part in self.algebra.apply(self.algebra.lift(), p.olds)]
        assumed += [theory.loop_defined(all_checks(after)), theory.indexed(run, p.olds)]
        assumed.append(theory.indexed(run, p.steps))
        goal = (theory.meant(all_checks(got)), theory.same(got, after, self.dtypes))
        return self._asked(assumed, goal, names, [atoms], {"the loop": after, "the element": got})

    def first(self) -> Question | None:
        """The element of step 0 applied to the neutral carries is what step 0 sets."""
        neutral, theory = self.theory.neutral, self.theory
        if neutral is None or not isinstance(self.algebra, Forgetting):
            return None
        atoms = theory.atoms()
        run = theory.translator(atoms, tir.VarMap())
        after = [run(self.problem.first)]
        constant = self.algebra.constant((self.problem.first,))
        got = [run(part) for part in self.algebra.apply(constant, neutral)]
        assumed = [theory.loop_defined(all_checks(after))]
        goal = (theory.meant(all_checks(got)), theory.same(got, after, self.dtypes))
        return self._asked(assumed, goal, tir.VarMap(), [atoms], {})

    def two_steps(self) -> Question:
        """The elements of two steps, combined and applied, are two steps of the loop."""
        theory, p = self.theory, self.problem
        names, assumed = theory.carries()
        atoms = theory.atoms()
        later = theory.atoms(atoms)
        run = theory.translator(atoms, names)
        once = [run(step) for step in p.steps]
        moved = tir.VarMap(zip(p.olds, once, strict=True))
        again = theory.translator(later, moved)
        twice = [again(step) for step in p.steps]
        assumed += [theory.loop_defined(all_checks(twice)), theory.indexed(run, p.olds)]
        assumed += [theory.indexed(again, p.olds), theory.indexed(again, p.steps)]
        f, g = self._named("f", run), self._named("g", again)
        for var, term in (*f, *g):
            names[var] = term
        both = self.algebra.combine(tuple(v for v, _ in f), tuple(v for v, _ in g))
        combined = theory.translator(atoms, names)
        got = [combined(part) for part in self.algebra.apply(both, p.olds)]
        if theory.promised:
            assumed.append(theory.meant(all_checks(got)))
        goal = (theory.meant(all_checks(got)), theory.same(got, twice, self.dtypes))
        shown = {"the loop": twice, "the scan": got}
        known = tir.VarMap((old, names[old]) for old in p.olds)
        return self._asked(assumed, goal, known, [atoms, later], shown)

    def _named(self, name: str, run: Translator) -> list[tuple[Any, Term]]:
        lifted = zip(self.algebra.lift(), self.algebra.dtypes, strict=True)
        return [
            (tirx.Var(f"{name}{i}", dtype), run(part)) for i, (part, dtype) in enumerate(lifted)
        ]

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

    def composition(self, facts: tuple[Fact, ...]) -> Question:
        """``apply(combine(f, g), h) == apply(g, apply(f, h))``."""
        theory, p = self.theory, self.problem
        f, g, names, assumed = self.pair(facts)
        atoms = theory.atoms()
        run = theory.translator(atoms, names)
        between = self.algebra.apply(f.parts, p.olds)
        want = [run(part) for part in self.algebra.apply(g.parts, between)]
        assumed += [theory.meant(all_checks([*want, *(run(part) for part in between)]))]
        assumed += [theory.indexed(run, p.olds), theory.indexed(run, between)]
        both = self.algebra.combine(f.parts, g.parts)
        parts = [run(part) for part in both]
        got = [run(part) for part in self.algebra.apply(both, p.olds)]
        # A part that is of no use, such as the value of a reset that was not, may be anything.
        if theory.promised:
            assumed.append(theory.meant(all_checks([*parts, *got])))
        checks = conj(all_checks(parts).defined, theory.meant(all_checks(got)))
        goal = (checks, theory.same(got, want, self.dtypes))
        shown = {"one after the other": want, "combined": got}
        return self._asked(assumed, goal, names, [atoms], shown)

    def identity(self) -> Question:
        """``apply(identity, h) == h``."""
        theory, p = self.theory, self.problem
        names, assumed = theory.carries()
        atoms = theory.atoms()
        run = theory.translator(atoms, names)
        assumed.append(theory.indexed(run, p.olds))
        got = [run(part) for part in self.algebra.apply(self.algebra.identity(), p.olds)]
        want = [names[old] for old in p.olds]
        goal = (theory.meant(all_checks(got)), theory.same(got, want, self.dtypes))
        return self._asked(assumed, goal, names, [atoms], {"applied": got})

    def extension(self, facts: tuple[Fact, ...]) -> Question | None:
        """``extend(f, step)`` acts as ``f`` followed by the lifted step.

        None where it is ``combine``, of which the composition speaks.
        """
        f, g = self.element("f", facts), self.element("g", facts)
        pairs = zip(
            self.algebra.extend(f.parts, g.parts),
            self.algebra.combine(f.parts, g.parts),
            strict=True,
        )
        if all(tir.structurally_equal(left, right) for left, right in pairs):
            return None
        theory, p = self.theory, self.problem
        f, _, names, assumed = self.pair(facts)
        atoms = theory.atoms()
        run = theory.translator(atoms, names)
        lifted = self.algebra.lift()
        between = self.algebra.apply(f.parts, p.olds)
        want = [run(part) for part in self.algebra.apply(lifted, between)]
        assumed += [theory.meant(all_checks([*want, *(run(part) for part in between)]))]
        assumed += [theory.indexed(run, p.olds), theory.indexed(run, between)]
        extended = self.algebra.extend(f.parts, lifted)
        got = [run(part) for part in self.algebra.apply(extended, p.olds)]
        goal = (theory.meant(all_checks(got)), theory.same(got, want, self.dtypes))
        return self._asked(assumed, goal, names, [atoms], {"want": want, "extended": got})

    def plain(self, facts: tuple[Fact, ...]) -> Question | None:
        """The cheaper formulas are the same where their condition says so."""
        cheaper = self.algebra.plainly()
        if cheaper is None:
            return None
        theory, p = self.theory, self.problem
        f, g, names, assumed = self.pair(facts)
        atoms = theory.atoms()
        run = theory.translator(atoms, names)
        want = [
            run(part) for part in self.algebra.apply(self.algebra.combine(f.parts, g.parts), p.olds)
        ]
        assumed.append(theory.meant(all_checks(want)))
        total = cheaper.combine(f.parts, g.parts)
        got = [run(part) for part in cheaper.apply(total, p.olds)]
        exact: Bool = True if cheaper.exact is None else run(cheaper.exact(total)).value
        after_identity = [run(part) for part in cheaper.apply(cheaper.identity, p.olds)]
        before = [names[old] for old in p.olds]
        same = implies(exact, theory.same(got, want, self.dtypes))
        goal = (True, conj(same, theory.same(after_identity, before, self.dtypes)))
        return self._asked(assumed, goal, names, [atoms], {"combined": want, "plainly": got})

    def numbers_of_step(self) -> Question:
        """Nothing of 32 or 64 bits overflows in an element and its application but in the loop."""
        theory, p = self.theory, self.problem
        names, assumed = theory.carries()
        atoms = theory.atoms()
        run = theory.translator(atoms, names)
        loop = all_checks([run(step) for step in p.steps])
        assumed += [theory.loop_defined(loop), loop.stays]
        lifted = self.algebra.lift()
        values: Element = (*lifted, *self.algebra.apply(lifted, p.olds))
        goal = all_checks([run(part) for part in values]).stays
        return self._asked(assumed, (goal, True), names, [atoms], {})

    def numbers(self, facts: tuple[Fact, ...]) -> Question:
        """Nothing of 32 or 64 bits overflows in a combination that does not one after the other."""
        theory, p = self.theory, self.problem
        f, g, names, assumed = self.pair(facts)
        atoms = theory.atoms()
        run = theory.translator(atoms, names)
        between = self.algebra.apply(f.parts, p.olds)
        want = all_checks([run(part) for part in self.algebra.apply(g.parts, between)])
        assumed += [theory.meant(want), want.stays]
        both = self.algebra.combine(f.parts, g.parts)
        values: Element = (*both, *self.algebra.apply(both, p.olds))
        goal = all_checks([run(part) for part in values]).stays
        return self._asked(assumed, (goal, True), names, [atoms], {})

    # ---- facts --------------------------------------------------------------------------------

    def alone(self) -> list[Alone]:
        """Elements that are made of no other: of a step, of step 0, of no steps."""
        theory = self.theory
        elements: list[tuple[Element, int]] = [(self.algebra.lift(), 1)]
        if theory.neutral is not None and isinstance(self.algebra, Forgetting):
            elements.append((self.algebra.constant((self.problem.first,)), 1))
        elements.append((self.algebra.identity(), 0))
        out = []
        for parts, steps in elements:
            atoms = theory.atoms()
            run = theory.translator(atoms, tir.VarMap())
            terms = [run(part) for part in parts]
            out.append(Alone(parts, terms, steps, [theory.meant(all_checks(terms)), *atoms.facts]))
        return out

    def combined(self, facts: tuple[Fact, ...]) -> tuple[list[Term], Any, list[Bool]]:
        """The combination of two elements of which the facts hold, its steps, assumptions."""
        f, g, names, assumed = self.pair(facts)
        atoms = self.theory.atoms()
        run = self.theory.translator(atoms, names)
        terms = [run(part) for part in self.algebra.combine(f.parts, g.parts)]
        return terms, f.steps + g.steps, [*assumed, *atoms.facts]

    def extended(self, facts: tuple[Fact, ...]) -> tuple[list[Term], Any, list[Bool]]:
        """The element that ``combined`` gives, made of an element and a step."""
        f, _, names, assumed = self.pair(facts)
        atoms = self.theory.atoms()
        run = self.theory.translator(atoms, names)
        lifted = self.algebra.lift()
        assumed.append(self.theory.meant(all_checks([run(part) for part in lifted])))
        terms = [run(part) for part in self.algebra.extend(f.parts, lifted)]
        if any(fact.each for fact in facts):
            assumed.append(f.steps + 1 <= self.problem.most_steps)
        return terms, f.steps + 1, [*assumed, *atoms.facts]

    def _asked(
        self,
        assumed: list[Bool],
        goal: tuple[Bool, Bool],
        names: tir.VarMap,
        atoms: list[Atoms],
        results: dict[str, list[Term]],
    ) -> Question:
        facts = [fact for each in atoms for fact in each.facts]
        shown = [(str(var.name), tir.dtype_of(var), term.value) for var, term in names.items()]
        for each in atoms:
            shown += [(name, dtype, term) for name, (dtype, term) in each.unknowns.items()]
        for name, terms in results.items():
            dtypes = self.dtypes
            shown += [(name, d, t.value) for t, d in zip(terms, dtypes, strict=True)]
        checks, values = goal
        return Question([*assumed, *facts], conj(checks, values), values, shown, atoms)
