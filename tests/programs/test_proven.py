"""Every program that is taken is proven: the suite, random recurrences, and mutants that are taken."""

import pytest

from tests.programs.random_recurrences import FAMILIES, Shape, source_of
from tests.programs.suite.classes import ACCEPTED
from tests.programs.suite.mutation import mutants
from tests.support.proof_cases import UNDECIDED
from tests.support.tiers import SEED, longer
from tvm_scan import Recurrence, extract, prove
from tvm_scan.proof import Verdict

#: Programs of which mutants are made: one in so many, others with another seed.
EVERY = 12
MUTANTS = 4


def check(found, name):
    """Nothing is refuted, and what has no answer is listed."""
    assert isinstance(found, Recurrence), found.message()
    open_questions = {statement for program, statement in UNDECIDED if program == name}
    certificate = prove(found, seconds=0.5 if open_questions else 5.0)
    assert certificate.verdict is not Verdict.REFUTED, certificate
    said = [statement for group in certificate.groups for statement in group.statements]
    undecided = {s.name for s in said if s.verdict is Verdict.UNDECIDED}
    assert undecided == open_questions, certificate
    for group in certificate.groups:
        names = {statement.name for statement in group.statements}
        assert undecided or {"step", "elements", "composition", "identity"} <= names
        assert bool(group.rounding) == any("float" in dtype for dtype in group.dtypes)


@pytest.mark.parametrize("name", ACCEPTED)
def test_the_suite(name):
    check(extract(ACCEPTED[name].func), name)


SHAPES = {"rows": Shape(3, 29), "symbolic": Shape(3, 29, symbolic=True)}
SHAPES |= longer([], [("reverse", Shape(2, 17, reverse=True, exclusive=True))])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", FAMILIES)
def test_random_recurrences(name, shape):
    check(extract(source_of(FAMILIES[name], SHAPES[shape])), name)


@pytest.mark.parametrize("name", longer(list(ACCEPTED)[SEED % EVERY :: EVERY], list(ACCEPTED)))
def test_mutants(name):
    """A changed program is refused, or what is made of it is its loop."""
    for mutant in mutants(ACCEPTED[name].func, MUTANTS, name):
        found = extract(mutant.func)
        if not isinstance(found, Recurrence):
            continue
        certificate = prove(found, seconds=2.0)
        told = f"{mutant.change}\n{certificate}"
        assert certificate.verdict is not Verdict.REFUTED, told
        if not any(program == name for program, _ in UNDECIDED):
            assert certificate.verdict is Verdict.PROVEN, told


def test_what_is_undecided_is_of_this_suite():
    from tests.support.proof_cases import FLOATS, INTEGERS, steps_of

    steps = {name for dtype in ("bool", *INTEGERS, *FLOATS) for name in steps_of(dtype)}
    assert {name for name, _ in UNDECIDED} <= steps | set(ACCEPTED) | set(FAMILIES)
