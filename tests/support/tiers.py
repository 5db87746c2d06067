"""Which tests run: tiers, what a folder says of its own, and covering subsets of parameters.

``quick`` answers in minutes, ``default`` is what CI runs, ``full`` is everything. A folder's
``conftest.py`` holds one `Folder`; nothing is marked test by test.
"""

from __future__ import annotations

import itertools
import os
import random
import zlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

TIERS = ("quick", "default", "full")
#: Set by ``python -m tests``; pytest on its own runs the default tier.
TIER = os.environ.get("TVM_SCAN_TEST_TIER", "default")
#: Draws which of equally good parameters a covering subset has; printed by each run.
SEED = int(os.environ.get("TVM_SCAN_TEST_SEED", "0"))

Item = TypeVar("Item")
Other = TypeVar("Other")


@dataclass(frozen=True)
class Folder:
    """What a folder's tests need, and the tiers they are in.

    A pattern is a file (``test_a.py``), a test (``test_a.py::test_b``), one of its cases
    (``test_a.py::test_b[c]``), or how the names of several begin (``test_a.py::test_b[c*``).

    Attributes
    ----------
    quick
        In the quick tier.
    full
        In the full tier alone.
    alike
        By pattern, one of how many cases of a test the default tier takes: of cases that go the
        same way through what is tested, with other values. Another part of them for each seed.
    gpu
        Run kernels on the simulated device or a GPU; `everything` for all.
    """

    quick: tuple[str, ...] = ()
    full: tuple[str, ...] = ()
    alike: Mapping[str, int] = field(default_factory=dict)
    gpu: tuple[str, ...] = ()

    def has(self, kind: str, name: str) -> bool:
        """Whether a test, such as ``test_a.py::test_b[c]``, is of the kind."""
        return any(matches(pattern, name) for pattern in getattr(self, kind))

    def stale(self, tier: str, names: Iterable[str]) -> list[str]:
        """Patterns that name no test of the folder: renamed, or gone."""
        kinds = ("quick",) if tier == "quick" else ("quick", "full", "alike", "gpu")
        patterns = {p for kind in kinds for p in getattr(self, kind)}
        every = list(names)
        return sorted(p for p in patterns if not any(matches(p, name) for name in every))

    def takes(self, name: str, tier: str) -> bool:
        """Whether a test runs in the tier."""
        if tier == "quick":
            return self.has("quick", name)
        return tier == "full" or not self.has("full", name)

    def share(self, name: str) -> tuple[str, int]:
        """Return the pattern of `alike` that a case is of, and one of how many of them is taken."""
        found = ((p, n) for p, n in self.alike.items() if matches(p, name))
        return next(found, ("", 1))


#: The pattern of all tests of a folder.
everything = ("",)


def matches(pattern: str, name: str) -> bool:
    """Whether a pattern names the test, its file, or one of its cases."""
    if pattern.endswith("*"):
        return name.startswith(pattern[:-1])
    return name == pattern or not pattern or name.startswith((f"{pattern}::", f"{pattern}["))


def longer(default: Item, full: Item) -> Item:
    """Return the second of two in the full tier, else the first."""
    return full if TIER == "full" else default


def paired(
    first: Sequence[Item], second: Sequence[Other], times: int = 1
) -> list[tuple[Item, Other]]:
    """Return pairs in which each value of both occurs; all pairs in the full tier.

    For two things that do not look at each other: a form of loop, and a plan for what is found.

    Parameters
    ----------
    first, second
        Their values.
    times
        How many others each value of the longer one meets.
    """
    if TIER == "full":
        return list(itertools.product(first, second))
    n, m = len(first), len(second)
    if n >= m:
        return [(a, second[(i + k + SEED) % m]) for k in range(times) for i, a in enumerate(first)]
    return [(first[(i + k + SEED) % n], b) for k in range(times) for i, b in enumerate(second)]


def drawn(what: str, share: int) -> bool:
    """Return whether one of ``share`` things that are alike is this one; all are in the full tier.

    For a check beside a test's own that many tests make: another part of them for each seed.
    """
    return TIER == "full" or zlib.crc32(f"{SEED} {what}".encode()) % share == 0


def one_of(several: Sequence[Item], number: int) -> Sequence[Item]:
    """Return one of several, another for each number and seed; all in the full tier.

    For what a loop inside a test goes through, where the test's parameters go through the rest.
    """
    return longer([several[(number + SEED) % len(several)]], several)


def covering(
    combinations: Iterable[Item],
    features: Callable[[Item], Mapping[str, Hashable]],
    hub: str | None = None,
) -> list[Item]:
    """Return enough of the combinations to have every pair of features; all in the full tier.

    Parameters
    ----------
    combinations
        All that have a meaning, in order.
    features
        What a combination decides, by name; a pair is two names with their values.
    hub
        The one feature whose pairs count, where another test has those of the others.

    Returns
    -------
    list
        In the given order. Chosen greedily: each next one has the most pairs that are new.
    """
    every = list(combinations)
    if TIER == "full":
        return every
    pairs = [
        {
            p
            for p in itertools.combinations(sorted(features(c).items()), 2)
            if hub in (None, *dict(p))
        }
        for c in every
    ]
    order = list(range(len(every)))
    random.Random(SEED).shuffle(order)
    missing, chosen = set().union(*pairs), []
    while missing:
        best = max(order, key=lambda i: len(pairs[i] & missing))
        chosen.append(best)
        missing -= pairs[best]
    return [every[i] for i in sorted(chosen)]


def part(what: str, count: int, share: int) -> set[int]:
    """Return which of ``count`` cases are one of ``share``: evenly, at least one.

    Parameters
    ----------
    what
        Names the test, so that two tests of the same values take different ones.
    count
        How many cases there are.
    share
        One of how many is taken.

    Returns
    -------
    set of int
        Indices of cases.
    """
    first = (zlib.crc32(what.encode()) + SEED) % min(share, max(1, count))
    return set(range(first, count, share))


def parameters_of(item: Any) -> dict[str, Hashable]:
    """Return the parameters of a case; those that one ``parametrize`` gives together are one.

    Values are compared by identity, since they may be unhashable. pytest's own indices are no
    help: before 9 they number the values of a parameter, from 9 on the cases.
    """
    call = getattr(item, "callspec", None)
    if call is None:
        return {}
    values = {name: id(value) for name, value in call.params.items()}
    found: dict[str, Hashable] = {}
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0] if mark.args else mark.kwargs["argnames"]
        names = [n.strip() for n in names.split(",")] if isinstance(names, str) else names
        found[",".join(names)] = tuple(values.pop(name) for name in names if name in values)
    return {**found, **values}


def meeting(cases: Sequence[Mapping[str, Hashable]]) -> set[int]:
    """Return which cases of a test suffice for each value of each parameter to occur.

    Parameters
    ----------
    cases
        The parameters of each case, by name.

    Returns
    -------
    set of int
        Indices into ``cases``. Chosen greedily: each next one has the most values that are wanted.
    """
    values = [set(case.items()) for case in cases]
    wanted = set(itertools.chain.from_iterable(values))
    order = list(range(len(values)))
    random.Random(SEED).shuffle(order)
    chosen: set[int] = set()
    while wanted:
        best = max(order, key=lambda i: len(values[i] & wanted))
        chosen.add(best)
        wanted -= values[best]
    return chosen
