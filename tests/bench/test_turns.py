"""Methods take turns undisturbed, and are timed awake."""

import time

import psutil
import pytest

from bench.timing import interleaved
from bench.turns import in_turns, tools
from tests.bench.turning import prepare


class Sleeper:
    """Threads that sleep after 2 ms without a call, and take 8 ms to wake."""

    def __init__(self):
        self.last = 0.0

    def __call__(self):
        if time.perf_counter() - self.last > 2e-3:
            time.sleep(8e-3)
        time.sleep(1.5e-3)  # longer than what counted as short
        self.last = time.perf_counter()


def test_who_was_found_asleep_at_first_is_woken():
    """By the best time so far: the first one of all is that of a sleeper."""
    found = interleaved({"sleeper": Sleeper()}, seconds=0, least=9, gap=4e-3)["sleeper"]
    assert found.median < 5e-3


class Tool:
    """Answers like a process; asleep unless it is woken."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.asked = []

    def sample(self, name, count, *, wake):
        self.asked.append((count, wake))
        return self.seconds if wake else self.seconds + 8e-3


@pytest.mark.parametrize("seconds", [1e-7, 1e-4, 6e-3, 5e-2])
def test_tools_are_woken_before_their_turn(seconds):
    tool = Tool(seconds)
    times = in_turns({"call": tool}, seconds=0, least=5)["call"]
    assert times.median == seconds
    assert len(tool.asked) == 6
    assert (tool.asked[-1][0] > 1) == (seconds < 1e-5), "short calls are timed in batches"


def test_all_are_timed_over_as_many_calls():
    """A quick call is not warmer because more of it are made; a long one is made once."""
    found = {name: Tool(seconds) for name, seconds in [("a", 2e-6), ("b", 3e-5), ("c", 2e-3)]}
    in_turns(found, seconds=0, least=2)
    assert [tool.asked[-1][0] for tool in found.values()] == [10, 10, 1]


def test_a_call_of_a_second_is_not_made_twice():
    tool = Tool(2.0)
    in_turns({"call": tool}, seconds=0, least=3)
    assert [wake for _, wake in tool.asked] == [True, False, False, False]


def test_processes_are_stopped_while_it_is_not_their_turn():
    with tools(prepare, ["one", "other"]) as (one, other):
        names, facts = one.prepare("kind", (3, 4))
        assert names == ["short", "long", "fails", "dies"]
        assert (facts["name"], facts["workload"]) == ("one", ("kind", (3, 4)))
        process = psutil.Process(facts["process"])
        assert process.status() == psutil.STATUS_STOPPED
        _, facts = other.prepare()
        assert other.sample("long", 2, wake=False) >= 0.01
        assert process.status() == psutil.STATUS_STOPPED
        times = in_turns({"short": one, "long": other}, seconds=0.1, least=3)
        assert times["short"].median < 1e-3 < 0.01 <= times["long"].median
        with pytest.raises(RuntimeError, match="one: IndexError: list index out of range"):
            one.sample("fails", 1, wake=True)
        assert one.sample("short", 1, wake=True) < 1
        with pytest.raises(RuntimeError, match=r"one: expected an answer, got the end .*\(7\)"):
            one.sample("dies", 1, wake=False)
        assert other.peak("short") is not None
    assert not psutil.pid_exists(facts["process"])
