"""What is taken is proven: all programs of the suite, random recurrences, and mutants."""

import pytest

from tests.programs.random_recurrences import FAMILIES, Shape, source_of
from tests.programs.suite.classes import ACCEPTED
from tests.programs.suite.mutation import mutants
from tests.support.tiers import SEED, longer
from tvm_scan import Recurrence, extract, prove
from tvm_scan.proof import Verdict

#: Programs of which mutants are made: one in so many, others with another seed.
EVERY = 12
MUTANTS = 4
#: Program -> its mutants that the solver has no answer for.
UNDECIDED_MUTANTS: dict[str, tuple[str, ...]] = {}


def check(found):
    assert isinstance(found, Recurrence), found.message()
    certificate = prove(found)
    assert certificate.verdict is Verdict.PROVEN, certificate
    for group in certificate.groups:
        names = {statement.name for statement in group.statements}
        assert {"step", "elements", "composition", "identity"} <= names
        assert bool(group.rounding) == any("float" in dtype for dtype in group.dtypes)


@pytest.mark.parametrize("name", ACCEPTED)
def test_the_suite(name):
    check(extract(ACCEPTED[name].func))


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
        if not isinstance(found, Recurrence):
            continue
        certificate = prove(found, seconds=2.0)
        assert certificate.verdict is not Verdict.REFUTED, f"{mutant.change}\n{certificate}"
        if mutant.change not in UNDECIDED_MUTANTS.get(name, ()):
            assert certificate.verdict is Verdict.PROVEN, f"{mutant.change}\n{certificate}"
