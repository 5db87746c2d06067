"""What is taken is proven: all programs of the suite, random recurrences, and mutants."""

import pytest

from tests.programs.random_recurrences import FAMILIES, Shape, source_of
from tests.programs.suite.classes import ACCEPTED
from tests.programs.suite.mutation import mutants
from tests.support.proof_cases import GLANCE, UNDECIDED_FAMILIES, UNDECIDED_PROGRAMS
from tests.support.tiers import SEED, longer
from tvm_scan import Recurrence, extract, prove
from tvm_scan.proof import Verdict

#: Programs of which mutants are made: one in so many, others with another seed.
EVERY = 24
MUTANTS = 4


def check(found, what="", undecided=None, *, changed=False):
    """All is proven but what is listed; of that, nothing is refuted.

    What a program has undecided, one that was changed may have proven.
    """
    families = {group.algebra.name for group in found.groups}
    known = undecided is not None or bool(families & set(UNDECIDED_FAMILIES))
    certificate = prove(found, seconds=GLANCE if known else 5.0)
    for group in certificate.groups:
        said = {statement.name: statement.verdict for statement in group.statements}
        left = [n for n, v in said.items() if v not in (Verdict.PROVEN, Verdict.ASSUMED)]
        listed = UNDECIDED_FAMILIES.get(group.family, undecided)
        if listed is not None and (left or not changed):
            assert left == [listed], f"{what}\n{certificate}"
            assert group.verdict is Verdict.UNDECIDED, f"{what}\n{certificate}"
            continue
        assert not left, f"{what}\n{certificate}"
        assert {"step", "elements", "composition", "identity"} <= set(said)
        assert bool(group.rounding) == any("float" in dtype for dtype in group.dtypes)


@pytest.mark.parametrize("name", longer(list(ACCEPTED)[SEED % 3 :: 3], list(ACCEPTED)))
def test_the_suite(name):
    check(extract(ACCEPTED[name].func), name, UNDECIDED_PROGRAMS.get(name))


SHAPES = {
    "rows": Shape(3, 29),
    "backwards": Shape(2, 17, reverse=True, exclusive=True, symbolic=True),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", FAMILIES)
def test_random_recurrences(name, shape):
    check(extract(source_of(FAMILIES[name], SHAPES[shape])))


@pytest.mark.parametrize("name", longer(list(ACCEPTED)[SEED % EVERY :: EVERY], list(ACCEPTED)))
def test_mutants(name):
    """A changed program is refused, or what is made of it is its loop."""
    for mutant in mutants(ACCEPTED[name].func, MUTANTS, name):
        found = extract(mutant.func)
        if isinstance(found, Recurrence):
            check(found, mutant.change, UNDECIDED_PROGRAMS.get(name), changed=True)
