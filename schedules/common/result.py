"""What a builder returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from tvm.ir import Var

from tvm_scan.schedules.common.elements import Elements

__all__ = ["Built", "Phases"]


class Phases(Protocol):
    """Chunks or tiles that are reduced, scanned, and replayed from their carries."""

    elements: list[Elements]
    carries: list[Var]

    def reduce(self, stage: int) -> Any:
        """Every part to its element."""

    def scan(self, stage: int) -> Any:
        """The elements to the carries before the parts."""

    def replay(self) -> Any:
        """Every part from its carry."""


@dataclass(frozen=True, eq=False)
class Built:
    """Statements that take the place of the user's nest.

    Attributes
    ----------
    nests : list of Stmt
        One after another; each a loop nest over one block.
    allocs : list of Var
        Buffers to allocate in the root block.
    """

    nests: list[Any]
    allocs: list[Var]

    @classmethod
    def of_phases(cls, phases: Phases, stages: int) -> Built:
        """Reduction and scan for each stage of the carries, the replay last."""
        nests = [
            nest for stage in range(stages) for nest in (phases.reduce(stage), phases.scan(stage))
        ]
        scratch = [buffer for elements in phases.elements for buffer in elements.buffers]
        return cls([*nests, phases.replay()], [*scratch, *phases.carries])
