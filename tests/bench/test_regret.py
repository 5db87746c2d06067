"""What looks bad is timed again, in a process of its own."""

import mmap
import random
from dataclasses import replace

import numpy as np
import pytest

from bench.regret import Prepared, _turns, measure, summary, timed_anew
from bench.regret_cases import Case
from tvm_scan import ScanPlan
from tvm_scan.arguments import host_target


def test_plans_are_timed_in_another_process():
    plans = [ScanPlan.parse(f"cpu/{plan}") for plan in ("sequential()", "lanes(lane_block=2)")]
    times, apart = timed_anew(Case("cumsum", (4, 300)), host_target(), plans, 0.01, 1)
    assert times.keys() == set(plans)
    assert all(0 < seconds < 1 for seconds in times.values())
    assert isinstance(apart, bool)


@pytest.mark.parametrize("family", ["narrow", "clamped"])
def test_a_loop_of_other_numbers_is_not_compared(family):
    """Halves are rounded by the loop at every step, and by no other plan."""
    row, times = measure(Case(family, (3, 40)), host_target(), random.Random(0), 2, 0.01, 1)
    assert row.same_numbers == (family != "narrow")
    assert "cpu/sequential()" in map(str, times)
    assert row.same_numbers or row.best != "cpu/sequential()"
    late = replace(row, plan="cpu/lanes()", default_us=2 * row.loop_us)
    assert len(summary([late])["slower_than_loop"]) == row.same_numbers


def test_what_is_guessed_gets_other_numbers_at_every_call():
    """A processor learns its guesses of the same ones: maxima of integers, and resets."""
    learnt = Prepared(Case("cummax", (3, 400), {"dtype": "float32"}), host_target())
    assert [len(calls) for calls in learnt.calls.values()] == [1, 1]
    flags = Prepared(Case("resets", (3, 400), {}), host_target())
    for calls in flags.calls.values():
        assert len(calls) > 2 and all(len(call) == 4 for call in calls)
        assert len({id(call[1]) for call in calls}) == len(calls)
        assert all(call[i].same_as(calls[0][i]) for call in calls for i in (0, 2, 3))
    prepared = Prepared(Case("cummax", (3, 4000), {"dtype": "int64"}), host_target())
    for calls in prepared.calls.values():
        inputs = [arguments[0].numpy() for arguments in calls]
        assert sum(x.size for x in inputs) >= 1 << 17
        assert all(sorted(x.flat) == sorted(inputs[0].flat) for x in inputs)
        assert not any((x == inputs[0]).all() for x in inputs[1:])
        assert all(arguments[1].same_as(calls[0][1]) for arguments in calls)


@pytest.mark.parametrize("family", ["cumsum", "resets"])
def test_plans_find_arrays_that_begin_alike_and_others(family):
    """Rows whole pages apart meet in a set of the nearest cache where arrays begin alike."""
    prepared = Prepared(Case(family, (3, 400)), host_target())
    for alike, calls in prepared.calls.items():
        for tensors in calls[:3]:
            begins = {np.from_dlpack(t).ctypes.data % mmap.PAGESIZE for t in tensors}
            assert len(begins) == (1 if alike else len(tensors))
            assert not any(begin % 64 for begin in begins)


def test_no_plan_brings_the_arrays_of_a_round_to_the_caches_for_the_others():
    """Each begins its round with others, and goes through all of them."""
    calls = [[number] for number in range(55)]
    begun = [next(_turns(calls, plan / 16)) for plan in range(16)]
    assert len({call[0] for call in begun}) == 16
    turns = _turns(calls, 15 / 16)
    assert sorted(next(turns)[0] for _ in calls) == list(range(55))
    alone = _turns(calls[:1], 0.9)
    assert [next(alone), next(alone)] == [[0], [0]]
