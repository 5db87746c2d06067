"""Every family in every form of loop: taken, named, and equal to its own loop."""

import pytest

from tests.programs.suite.forms import FORMS, STEPS, make
from tests.programs.suite.program import arguments
from tests.programs.suite.running import agree, families_of, run_loop, run_scan
from tvm_scan import Recurrence, extract

#: A first step of its own restarts families that cannot forget by a product with zero.
RESTARTING = "branch on the first step"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("step", STEPS)
def test_taken_and_right(form, step):
    func, chosen = make(form, step), STEPS[step]
    found = extract(func)
    assert isinstance(found, Recurrence), found.message()
    assert families_of(found) in {chosen.family, "segmented" * (form == RESTARTING)}
    arrays = arguments(func, dict.fromkeys("XG", chosen.inputs))
    want = run_loop(func, arrays)
    for got, expected in zip(run_scan(func, arrays), want, strict=True):
        assert agree(got, expected, rounds=chosen.rounds)
