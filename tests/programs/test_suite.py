"""The public suite: what must be taken is, and computes its loop; what must be refused is."""

import pytest

from tests import ROOT
from tests.programs.suite.classes import ACCEPTED, REFUSED
from tests.programs.suite.mutation import judge, mutants
from tests.programs.suite.program import arguments
from tests.programs.suite.running import TREE, agree, families_of, run_loop, run_scan
from tests.programs.suite.table import table
from tests.support.tiers import SEED, longer
from tvm_scan import Recurrence, Refusal, ScanPlan, extract

PLANS = [TREE, ScanPlan.of("cpu", "lanes", lane_block=2)]
MUTANTS = 4
PAGE = ROOT / "docs" / "suite.md"


def test_size():
    assert len(ACCEPTED) >= 120
    assert len(REFUSED) >= 60
    readme = " ".join((PAGE.parent.parent / "README.md").read_text().split())
    told = f"{len(ACCEPTED)} recurrences that are taken and {len(REFUSED)} near misses"
    assert told in readme


@pytest.mark.parametrize("name", ACCEPTED)
def test_taken_and_right(name):
    program = ACCEPTED[name]
    found = extract(program.func)
    assert isinstance(found, Recurrence), found.message()
    assert families_of(found) == program.families
    arrays = arguments(program.func, program.inputs)
    want = run_loop(program.func, arrays)
    assert any((a != w).any() for a, w in zip(arrays, want, strict=True)), "nothing is computed"
    number = list(ACCEPTED).index(name) + SEED
    for plan in longer([PLANS[number % len(PLANS)]], PLANS):
        for got, expected, param in zip(
            run_scan(program.func, arrays, plan), want, program.func.params, strict=True
        ):
            equal = agree(got, expected, rounds=program.rounds, growth=program.growth)
            assert equal, f"{param.name} by {plan}"


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_its_reason(name):
    found = extract(REFUSED[name].func)
    assert isinstance(found, Refusal), "a near miss was taken"
    assert found.kind.value == REFUSED[name].kind, str(found)
    assert "\nfix: " in found.message()


#: Programs no mutant of which is taken, of as many as are made here.
ALL_REFUSED = (
    "tribonacci",
    "fourth_order",
    "running_minimum_by_branch",
    "ring_counter",
    "position_of_the_last_minimum",
)


@pytest.mark.parametrize("name", longer(list(ACCEPTED)[SEED % 12 :: 12], list(ACCEPTED)))
def test_mutants_are_refused_or_right(name):
    program = ACCEPTED[name]
    accepted = compared = 0
    for number, mutant in enumerate(mutants(program.func, MUTANTS, name)):
        verdict = judge(program, mutant, seed=number)
        assert verdict.right, f"{mutant.change}\n{mutant.func.script()}"
        accepted += verdict.accepted
        compared += verdict.compared
    # Nothing is held against its loop otherwise.
    assert (compared > 0) == (name not in ALL_REFUSED), f"{accepted} of the mutants were taken"


def test_the_page_is_the_suite():
    assert PAGE.read_text() == table(), "python -m tests.programs.suite table --write makes it anew"
