"""Reduce, scan, replay: parts of a lane's time that meet in elements and carries in memory.

Parts are chunks that cores or threads scan, or tiles that blocks scan; each schedule cuts time and
scans a part in its own way. What does not depend on that is here: the scratch, the order of the
phases where carries feed later carries, what a scan reads and writes, and the scan in order. What
the phases do within a part are the methods of ``Replica``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.elements import Elements
from tvm_scan.schedules.common.ir import Kernel, when
from tvm_scan.schedules.common.lanes import (
    carry_scratch,
    decode_lanes,
    guard_of,
    lane_count,
    state_buffers,
)
from tvm_scan.schedules.common.replica import Replica
from tvm_scan.schedules.common.result import Built


class Phases(ABC):
    """Parts that are reduced, scanned, and replayed from their carries.

    Attributes
    ----------
    elements : list of Elements
        Of every part, for each level of the carries.
    carries : list of Var
        The state before every part.
    """

    def __init__(self, recurrence: Recurrence) -> None:
        self.recurrence, self.rows = recurrence, lane_count(recurrence)
        self.dtype = tir.dtype_of(self.rows)

    def allocate(self, name: str, reduced: Sequence[Any], parts: Sequence[Any]) -> None:
        """Scratch for the elements of the parts that are reduced, and for the carries of all."""
        self.elements = Elements.of_levels(self.recurrence, name, reduced, "global")
        self.carries = carry_scratch(self.recurrence, parts)

    @abstractmethod
    def reduce(self, level: int) -> Any:
        """Every part to its element."""

    @abstractmethod
    def scan(self, level: int) -> Any:
        """The elements to the carries before the parts."""

    @abstractmethod
    def replay(self) -> Any:
        """Every part from its carry."""

    def build(self) -> Built:
        """Reduction and scan for each level of the carries, the replay last.

        Earlier levels are replayed from their known carries while a later one is reduced.
        """
        levels = range(self.recurrence.levels)
        nests = [nest for level in levels for nest in (self.reduce(level), self.scan(level))]
        scratch = [buffer for elements in self.elements for buffer in elements.buffers]
        return Built([*nests, self.replay()], [*scratch, *self.carries])

    def carries_of(self, levels: range) -> list[Var]:
        """Carries of some levels."""
        groups = [group for group in self.recurrence.groups if group.level in levels]
        return [self.carries[i] for group in groups for i in group.carries]

    def is_last(self, level: int) -> bool:
        """Return whether nothing is scanned after this level."""
        return level == self.recurrence.levels - 1

    def scan_kernel(
        self, level: int, body: Any, allocs: Sequence[Var], *, has_outputs: bool
    ) -> Kernel:
        """A kernel from elements to carries; ``has_outputs`` if it writes what nobody else does."""
        recurrence = self.recurrence
        outputs = recurrence.outputs if has_outputs else []
        return Kernel(
            "scan_carries",
            [*recurrence.inputs, *self.elements[level].buffers, *state_buffers(recurrence)],
            [*self.carries_of(range(level, level + 1)), *outputs],
            body,
            allocs,
        )

    def scan_in_order(
        self,
        level: int,
        serial: Callable[[Replica, Var], Any],
        ends: Callable[[Replica], Any] = lambda replica: None,
        *,
        unroll: bool = True,
        more: Sequence[Var] = (),
    ) -> tuple[Var, Callable[[Any], Kernel]]:
        """A scan that takes the parts of a lane one after another.

        Parameters
        ----------
        level : int
            Level.
        serial, ends : callable
            ``serial(replica, row)`` from the carry before the lane, and what ``ends(replica)``
            stores in place of a replay that has no steps.
        unroll : bool
            Whether the states are in registers.
        more : sequence of Var
            What the scan allocates.

        Returns
        -------
        tuple of (Var, callable)
            The row, and ``kernel(inside)`` for the rows that exist.
        """
        row = tirx.Var("v_row", self.dtype)
        lanes = decode_lanes(self.recurrence, row)
        replica = Replica(self.recurrence, lanes, unroll=unroll)
        boundary = replica.boundary() if self.is_last(level) else None
        steps, end = serial(replica, row), ends(replica)
        body = tir.seq([replica.begin(), boundary, steps, end])
        guard = guard_of(self.recurrence, lanes)
        has_outputs = boundary is not None or end is not None

        def kernel(inside: Any) -> Kernel:
            code = when(inside, when(guard, body))
            allocs = [*replica.buffers, *more]
            return self.scan_kernel(level, code, allocs, has_outputs=has_outputs)

        return row, kernel

    def pass_part(self, replica: Replica, level: int, lead: Sequence[Any]) -> Any:
        """Keep the carry before a part, and take its element into it."""
        keep = replica.keep(self.carries, lead, level)
        return tir.seq([keep, replica.apply(self.elements[level], lead)])
