"""The classes of the suite, and their programs."""

from __future__ import annotations

from tests.programs.suite import (
    automata,
    extrema,
    filters,
    frontends,
    higher_order,
    linear,
    models,
    near_misses,
    near_misses_of_form,
    solvers,
    statistics,
)
from tests.programs.suite.program import Program, Refused

__all__ = ["ACCEPTED", "CLASSES", "NEAR_MISSES", "REFUSED"]

#: Title -> programs that must be taken.
CLASSES: dict[str, list[Program]] = {
    "First-order linear recurrences, generators, hashes": linear.PROGRAMS,
    "Higher order and small systems": higher_order.PROGRAMS,
    "Extrema, queues, alignment rows: (max, +) and (min, +)": extrema.PROGRAMS,
    "Finite state: text, brackets, flip-flops, adders": automata.PROGRAMS,
    "Digital filters": filters.PROGRAMS,
    "Running statistics, segments": statistics.PROGRAMS,
    "Sweeps, Kalman filters, money, returns": solvers.PROGRAMS,
    "Sequence models": models.PROGRAMS,
    "Loops of front ends and other projects": frontends.PROGRAMS,
}

#: Title -> programs that must be refused.
NEAR_MISSES: dict[str, list[Refused]] = {
    "Steps that are in no family": near_misses.REFUSED,
    "Loops that break the order": near_misses_of_form.REFUSED,
}

ACCEPTED = {p.name: p for programs in CLASSES.values() for p in programs}
REFUSED = {p.name: p for programs in NEAR_MISSES.values() for p in programs}
