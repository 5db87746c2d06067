"""The block tree of Kogge and Stone: fewest levels, in two buffers of shared memory.

Source: P. M. Kogge and H. S. Stone, "A parallel algorithm for the efficient solution of a general
class of recurrence equations", IEEE Trans. Computers C-22, 1973.

For T threads: work T log2 T combines, span log2 T, one barrier per level and one for the exclusive
prefix: a level reads one buffer and the next one writes the other. Neighbouring threads access
neighbouring places, so that no two of a warp meet in a bank.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.elements import Elements
from tvm_scan.schedules.ir import int_const
from tvm_scan.schedules.replica import Replica
from tvm_scan.schedules.rows import ALONE, Row

__all__ = ["KoggeStoneTree"]


class KoggeStoneTree:
    """Inclusive scan by doubling distances, then a look at the neighbour.

    The prefix of a thread is left in its own registers.
    """

    def __init__(
        self,
        recurrence: Recurrence,
        replica: Replica,
        thread: Var,
        threads: int,
        row: Row = ALONE,
    ) -> None:
        self.row = row
        self.replica, self.thread, self.threads = replica, thread, threads
        stages = range(recurrence.stages)
        self.ping = [
            Elements(recurrence, "ping", [*row.lead, threads], "shared", s) for s in stages
        ]
        self.pong = [
            Elements(recurrence, "pong", [*row.lead, threads], "shared", s) for s in stages
        ]
        self.left = [Elements(recurrence, "left", [], "local", s) for s in stages]

    #: Whether a scan makes every thread wait for every other one.
    has_barriers = True

    @property
    def buffers(self) -> list[Var]:
        """Two buffers of shared memory, and registers for the earlier operand."""
        parts = (self.ping, self.pong, self.left)
        return [b for stages in parts for elements in stages for b in elements.buffers]

    def scan(self, stage: int, mine: Elements, total: Elements) -> list[Any]:
        """Statements of one scan; see ``BlockTree``."""
        last = self._last(stage)
        return [
            *self.fold(stage, mine, total),
            tirx.IfThenElse(
                tirx.EQ(self.thread, tir.zero_like(self.thread)),
                self.replica.set_identity(mine, []),
                self.replica.copy(mine, [], last, [*self.row.at, self.thread - 1]),
            ),
        ]

    def _last(self, stage: int) -> Elements:
        """Where the inclusive prefixes are in the end."""
        return (self.ping[stage], self.pong[stage])[(self.threads - 1).bit_length() % 2]

    def fold(self, stage: int, mine: Elements, total: Elements) -> list[Any]:
        """Statements of a scan of which only the aggregate is wanted."""
        buffers, left = (self.ping[stage], self.pong[stage]), self.left[stage]
        here, stmts = [*self.row.at, self.thread], []
        distances = [1 << k for k in range((self.threads - 1).bit_length())]
        for level, distance in enumerate(distances):
            shared = buffers[level % 2]
            stmts.append(self.replica.copy(shared, here, mine, []))
            stmts.append(self._combine(shared, left, mine, distance))
        last = self._last(stage)
        stmts.append(self.replica.copy(last, here, mine, []))
        end = int_const(self.threads - 1, self.thread)
        stmts.append(self.replica.copy(total, [], last, [*self.row.at, end]))
        return stmts

    def _combine(self, shared: Elements, left: Elements, mine: Elements, distance: int) -> Any:
        replica = self.replica

        def one(i: int, place: list[Any]) -> Any:
            algebra = replica.recurrence.groups[i].algebra
            earlier, later = left.load(i, [], place), mine.load(i, [], place)
            return mine.store(i, [], place, algebra.combine(earlier, later))

        far = int_const(distance, self.thread)
        body = [
            replica.copy(left, [], shared, [*self.row.at, self.thread - far]),
            replica.for_each_element(shared.stage, one),
        ]
        return tirx.IfThenElse(self.thread >= far, tir.seq(body), None)

    def prefix(self, stage: int, mine: Elements) -> tuple[Elements, list[Any]]:
        """In the thread's registers."""
        return mine, []
