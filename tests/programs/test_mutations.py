"""Zero wrong accepts: one change to an accepted loop is refused, or still computes its own loop."""

import pytest

from tests.programs.accepted_programs import PROGRAMS
from tests.programs.suite.mutation import judge, mutants
from tests.programs.suite.program import Program
from tests.support.tiers import SEED, longer

PER_PROGRAM = 8
#: Not mutated: its extents are not known here; it overflows, which TVM's LLVM code takes for
#: undefined in the loop as in the scan, so that no mutant of it has a value to be held to.
LEFT_OUT = ("symbolic", "affine_wraps")
MUTATED = [name for name in PROGRAMS if name not in LEFT_OUT]


@pytest.mark.parametrize("name", longer(MUTATED[SEED % 4 :: 4], MUTATED))
def test_mutants_are_refused_or_right(name):
    program = Program(PROGRAMS[name][0], "")
    accepted = compared = 0
    for number, mutant in enumerate(mutants(program.func, PER_PROGRAM, name)):
        verdict = judge(program, mutant, seed=number)
        assert verdict.right, f"{mutant.change}\n{mutant.func.script()}"
        accepted += verdict.accepted
        compared += verdict.compared
    # Nothing is held against its loop otherwise.
    assert compared, f"{accepted} of the mutants were taken"
