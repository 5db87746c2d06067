"""``Cost``: what a plan is predicted to take, whatever it runs on."""

from __future__ import annotations

from dataclasses import asdict, astuple, dataclass
from math import log2
from typing import Any


@dataclass(frozen=True)
class Cost:
    """A prediction; a kind of device adds what it is made of.

    Attributes
    ----------
    seconds : float
        Of the whole run.
    bytes : float
        From and to main memory and caches.
    work : float
        Cycles, or instructions of warps, of all tasks together.
    tasks : float
        Independent tasks, or threads.
    waits : float
        Joins of the pool, or barriers that a block passes.
    """

    seconds: float
    bytes: float
    work: float
    tasks: float
    waits: float

    @property
    def ranked(self) -> float:
        """The seconds by which plans are compared."""
        return self.seconds

    def features(self) -> list[float]:
        """Logarithms, as many for every plan, for a model that learns times."""
        nanoseconds, *rest = astuple(self)[:5]
        return [log2(1.0 + value) for value in (nanoseconds * 1e9, *rest)]

    def as_data(self) -> dict[str, Any]:
        """Return every number by its name."""
        return asdict(self)
