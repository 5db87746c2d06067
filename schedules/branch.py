"""``Branch``: a plan and what is left to decide in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvm_scan.schedules.plan import ScanPlan


#: Name of a decision and its values in ascending order; neighbours in the order are alike.
Choices = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True)
class Branch:
    """One schedule, and what is left to decide in it.

    Attributes
    ----------
    base : ScanPlan
        The plan whose open decisions are to be replaced.
    choices : tuple of (str, tuple of int)
        Field name and its values in ascending order; neighbours in the order are alike.
    """

    base: ScanPlan
    choices: Choices = ()

    @property
    def size(self) -> int:
        """Combinations, those included that do not fit."""
        return prod(len(values) for _, values in self.choices)

    def plans(self) -> Iterator[ScanPlan]:
        """Every combination, fitting or not."""
        names = [name for name, _ in self.choices]
        for values in product(*(values for _, values in self.choices)):
            yield self._with(dict(zip(names, values, strict=True)))

    def holds(self, plan: ScanPlan) -> bool:
        """Return whether ``plan`` is one of the combinations."""
        if type(plan) is not type(self.base):
            return False
        changed = {name: getattr(plan, name) for name, _ in self.choices}
        same = self._with(changed) == plan
        return same and all(int(changed[name]) in values for name, values in self.choices)

    def _with(self, values: dict[str, Any]) -> ScanPlan:
        kinds = self.base.decisions()
        return self.base.with_(**{name: kinds[name](value) for name, value in values.items()})


def powers(first: int, last: int) -> list[int]:
    """Powers of two from ``first`` to ``last``."""
    return [1 << k for k in range(first.bit_length() - 1, last.bit_length())]
