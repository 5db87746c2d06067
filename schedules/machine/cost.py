"""``Cost``: what a plan is predicted to take, whatever it runs on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from math import log2
from typing import Any

__all__ = ["Cost"]


@dataclass(frozen=True)
class Cost(ABC):
    """A prediction; the cost of a schedule adds what it is made of.

    Attributes
    ----------
    seconds : float
        Of the whole run.
    """

    seconds: float

    @property
    def ranked(self) -> float:
        """What plans are compared by, in seconds."""
        return self.seconds

    @property
    @abstractmethod
    def bytes(self) -> float:
        """Bytes from and to main memory."""

    @property
    @abstractmethod
    def work(self) -> float:
        """Cycles or instructions of all tasks together."""

    @property
    @abstractmethod
    def tasks(self) -> float:
        """Independent tasks or threads."""

    @property
    @abstractmethod
    def waits(self) -> float:
        """Barriers that a block passes, or joins of the pool."""

    def features(self) -> list[float]:
        """Logarithms, as many for every plan, for a model that learns times."""
        values = (self.seconds * 1e9, self.bytes, self.work, self.tasks, self.waits)
        return [log2(1.0 + value) for value in values]

    def as_data(self) -> dict[str, Any]:
        """Return every number by its name."""
        shared = {name: getattr(self, name) for name in ("bytes", "work", "tasks", "waits")}
        return {**shared, **asdict(self)}
