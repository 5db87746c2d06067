"""Every family in every form of loop: taken and named; each form equal to its loop in some."""

import pytest

from tests.programs.suite.forms import FORMS, STEPS, make
from tests.programs.suite.program import arguments
from tests.programs.suite.running import agree, families_of, run_loop, run_scan
from tests.support.tiers import paired
from tvm_scan import Recurrence, extract

#: A first step of its own restarts families that cannot forget by a product with zero.
RESTARTING = "branch on the first step"


@pytest.mark.parametrize("form", FORMS)
def test_taken(form):
    """All families, in one test: what they are taken as is a question of milliseconds."""
    for step, chosen in STEPS.items():
        found = extract(make(form, step))
        assert isinstance(found, Recurrence), f"{step}: {found.message()}"
        assert families_of(found) in {chosen.family, "segmented" * (form == RESTARTING)}, step


@pytest.mark.parametrize(("form", "step"), paired(list(FORMS), list(STEPS), times=2))
def test_right(form, step):
    func, chosen = make(form, step), STEPS[step]
    arrays = arguments(func, dict.fromkeys("XG", chosen.inputs))
    want = run_loop(func, arrays)
    for got, expected in zip(run_scan(func, arrays), want, strict=True):
        assert agree(got, expected, rounds=chosen.rounds)
