"""Loops that look like what they are not: refused, or computed as their own loop computes them."""

import numpy as np
import pytest
import tvm

from tests.programs.deceptive_programs import PROGRAMS
from tests.programs.test_extraction import CPU, arguments, sequential
from tests.support.compiled import compile_cached
from tests.support.tiers import one_of
from tvm_scan import Recurrence, ScanPlan, extract, parallelize

PLANS = [
    ScanPlan.of("cpu", "three_phase", chunks=4),
    ScanPlan.of("cpu", "three_phase", chunks=8, lane_block=4),
    ScanPlan.of("cpu", "lanes", lane_block=2),
]


@pytest.mark.parametrize("name", PROGRAMS)
def test_refused_or_right(name):
    func = PROGRAMS[name]
    found = extract(func)
    if not isinstance(found, Recurrence):
        assert found.message()
        return
    args = arguments(func)
    want = sequential(func, args)
    for plan in (*one_of(PLANS[:2], list(PROGRAMS).index(name)), PLANS[2]):
        tensors = [tvm.runtime.tensor(a) for a in args]
        compile_cached(parallelize(func, CPU, plan), target=CPU, plainly=True)(*tensors)
        for tensor, expected in zip(tensors, want, strict=True):
            np.testing.assert_array_equal(tensor.numpy(), expected, str(plan))


def test_both_answers_occur():
    answers = {isinstance(extract(func), Recurrence) for func in PROGRAMS.values()}
    assert answers == {True, False}
