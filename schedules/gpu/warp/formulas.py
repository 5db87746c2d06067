"""Cheaper formulas of a tree, and whether they have done damage.

Where an algebra has such formulas and sees whether they were exact (``Plain.intact``), a warp takes
them, and does its part of the scan again where a thread sees that they were not. What a thread
holds in the end has come from all that it combined: if it is intact, all that was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm_scan import tir
from tvm_scan.algebra import Algebra
from tvm_scan.algebra.base import Plain
from tvm_scan.recurrence import Group, Recurrence
from tvm_scan.schedules.common.elements import Elements
from tvm_scan.schedules.common.replica import Replica
from tvm_scan.schedules.machine.terms import checked

#: What has ``combine`` and ``apply`` for the elements of an algebra.
Formulas = Callable[[Algebra], Any]


def exact(algebra: Algebra) -> Algebra:
    """The formulas that are exact wherever the loop is."""
    return algebra


def cheaper(algebra: Algebra) -> Algebra | Plain:
    """Formulas that show where they were not exact; the algebra's own where it has none."""
    plain = algebra.plainly()
    return algebra if plain is None or plain.intact is None else plain


def _watched_groups(recurrence: Recurrence, level: int) -> list[tuple[int, Group, Any]]:
    groups = [(i, g, cheaper(g.algebra)) for i, g in enumerate(recurrence.groups)]
    return [(i, g, p) for i, g, p in groups if g.level == level and isinstance(p, Plain)]


def watched(recurrence: Recurrence, level: int) -> bool:
    """Return whether a level has cheaper formulas, of one cell each."""
    groups = _watched_groups(recurrence, level)
    return bool(groups) and not any(recurrence.state_axes(group) for _, group, _ in groups)


def with_care(
    recurrence: Recurrence,
    level: int,
    make: Callable[[Formulas], Any],
    results: list[Elements | Replica],
    again: Any = None,
) -> Any:
    """``make(formulas)`` with cheaper ones, and once more by a warp that finds damage.

    Parameters
    ----------
    recurrence : Recurrence
        Whose level.
    level : int
        Of the elements.
    make : callable
        Gives a statement that all threads of a warp execute.
    results : list of Elements or Replica
        Registers of elements, or of carries, that have come from all that it made.
    again : Stmt, optional
        What comes before ``make`` the second time.
    """
    if not watched(recurrence, level):
        return make(exact)
    held = []
    for number, group, plain in _watched_groups(recurrence, level):
        for result in results:
            if isinstance(result, Elements):
                values = result.load(number, [], [])
            else:
                values = tuple(result.get_carry(c, []) for c in group.carries)
            held.append(plain.intact(values))
    return checked(make(cheaper), tir.all_of(held), tir.seq([again, make(exact)]))
