"""Theorems that are kept on disk: found again by all of the question, and only if they hold."""

import pytest

z3 = pytest.importorskip("z3")

from tests.support import quick_proofs  # noqa: E402


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """Ask through a cache of its own: whether it follows, and the questions that were decided."""
    monkeypatch.setenv("TVM_SCAN_TEST_CACHE", str(tmp_path))
    decided = []

    def decide(assumed, goal, seconds):
        decided.append(goal)
        solver = z3.Solver()
        solver.add(*assumed, z3.Not(goal))
        return solver.check() == z3.unsat, None

    ask = quick_proofs._looked_up(decide)
    return lambda assumed, goal: (ask(assumed, goal, 1.0)[0], len(decided))


def test_a_theorem_is_proven_once(asked):
    a, b = z3.BitVecs("a b", 8)
    assert asked([], a + b == b + a) == (True, 1)
    assert asked([], a + b == b + a) == (True, 1)


def test_every_part_of_a_question_counts(asked):
    a, b = z3.BitVecs("a b", 8)
    assert asked([a == 0], a + b == b) == (True, 1)
    assert asked([], a + b == b) == (False, 2)
    assert asked([a == 1], a + b == b) == (False, 3)
    # The same text over another width, and over integers.
    a, b = z3.BitVecs("a b", 16)
    assert asked([a == 0], a + b == b) == (True, 4)
    a, b = z3.Ints("a b")
    assert asked([a == 0], a + b == b) == (True, 5)


def test_what_does_not_follow_is_asked_anew(asked):
    a = z3.BitVec("a", 8)
    assert asked([], a + 1 > a) == (False, 1)
    assert asked([], a + 1 > a) == (False, 2)
