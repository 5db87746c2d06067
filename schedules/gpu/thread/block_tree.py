"""The common part of the trees over the threads of a block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from tvm.ir import Var

from tvm_scan.schedules.common.elements import Elements
from tvm_scan.schedules.common.replica import Replica
from tvm_scan.schedules.common.rows import ALONE, Row
from tvm_scan.schedules.gpu.thread.banks import WARP


class BlockTree(ABC):
    """An exclusive scan over the threads of a lane, of the elements of every level.

    Parameters
    ----------
    replica : Replica
        Gives the loops over groups and cells.
    thread : Var
        Thread index.
    threads : int
        Threads of a lane.
    row : Row
        Which lane of the block the thread is in; each has shared memory of its own.

    Attributes
    ----------
    elements : list of Elements
        What the tree keeps.
    """

    def __init__(self, replica: Replica, thread: Var, threads: int, row: Row = ALONE) -> None:
        self.replica, self.thread, self.threads, self.row = replica, thread, threads, row
        self.elements: list[Elements] = []
        self.allocate()

    @abstractmethod
    def allocate(self) -> None:
        """Make what the tree keeps."""

    def keep(
        self,
        name: str,
        lead: Sequence[Any],
        scope: str,
        layout: Callable[[Any, str], Any] | None = None,
    ) -> list[Elements]:
        """Elements of every level."""
        elements = Elements.of_levels(self.replica.recurrence, name, lead, scope, layout)
        self.elements += elements
        return elements

    @property
    def has_barriers(self) -> bool:
        """Return whether a scan makes every thread wait for every other one."""
        return self.threads > WARP

    @property
    def buffers(self) -> list[Var]:
        """Buffers of the tree."""
        return self.buffers_of(range(self.replica.recurrence.levels))

    def buffers_of(self, levels: range) -> list[Var]:
        """Buffers of the tree that scans of some levels use."""
        used = [elements for elements in self.elements if elements.level in levels]
        return [buffer for elements in used for buffer in elements.buffers]

    @abstractmethod
    def scan(self, level: int, mine: Elements, total: Elements, number: Any = 0) -> list[Any]:
        """Statements of one scan.

        Given: ``mine`` (registers) holds the element of the thread. Result: ``prefix`` says
        where the exclusive prefix of the thread is, and ``total`` (registers of every thread)
        holds the aggregate of the block. The tree puts its own barriers; of scans that follow
        one another in one kernel, two in a row have a ``number`` of different parities.
        """

    def scan_from(
        self, running: Replica, level: int, mine: Elements, total: Elements, number: Any = 0
    ) -> list[Any]:
        """Statements of one scan of which carries are wanted, as ``scan``.

        Given: also the carries before the block's first step, in ``running``. Result: what
        ``restore`` and ``move_on`` take.
        """
        return self.scan(level, mine, total, number)

    def restore(self, running: Replica, level: int, mine: Elements) -> Any:
        """The carries before the thread's first step, in ``replica``."""
        prefix, index = self.prefix(level, mine)
        return self.replica.apply(prefix, index, source=running)

    def move_on(self, running: Replica, level: int, total: Elements) -> Any:
        """The carries after the block's last step, in ``running``."""
        return running.apply(total, [])

    @abstractmethod
    def reduce(self, level: int, mine: Elements, total: Elements, number: Any = 0) -> list[Any]:
        """Statements of one scan that leaves no prefixes, only ``total``."""

    @abstractmethod
    def prefix(self, level: int, mine: Elements) -> tuple[Elements, list[Any]]:
        """The prefix of the thread: its elements, and the index in them."""
