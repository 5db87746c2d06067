"""Sums over the states of a lane whose states several threads share; each step's for its owner.

Of four owners' steps every thread has its part of each sum. Threads that differ in the first bit of
their number exchange those of owners that do: each sends one, keeps the other, and adds what it
gets. So for the second bit: three shuffles for four sums, after which a thread has one of them, the
one of the owner with its two bits. For the other bits of S threads, log2(S / 4) shuffles.

A sum alone takes log2(S) shuffles, whose result all threads have, and only one needs. In shared
memory (``exchange``) every thread leaves its parts for each owner, who reads them all and adds them
in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.ir import Var
from tvm.ir.expr import TensorLoad

from tvm_scan import tir
from tvm_scan.schedules.common.ir import int_const, local
from tvm_scan.schedules.gpu.thread.banks import WARP
from tvm_scan.schedules.gpu.thread.barriers import wait
from tvm_scan.schedules.gpu.thread.registers import cell_of, set_cell
from tvm_scan.schedules.gpu.walk.exchange import TOGETHER, SharedItems
from tvm_scan.schedules.gpu.warp.shuffles import shuffled


class OwnerSums:
    """A thread's registers for the sums of the steps of several owners.

    Parameters
    ----------
    sums : sequence of TensorLoad
        What the loops over the states add to.
    owner : Expr
        Number of the thread among those of its lane.
    threads : int
        Threads of a lane.
    items : int
        Steps that a thread owns.
    shared : sequence of SharedItems
        Of every sum, where it is in shared memory; none where they are shuffled.
    """

    def __init__(
        self,
        sums: Sequence[TensorLoad],
        owner: Any,
        threads: int,
        items: int,
        shared: Sequence[SharedItems] = (),
    ) -> None:
        self.owner, self.threads, self.items = owner, threads, items
        #: Owners whose steps are written out one after another.
        self.together = min(TOGETHER, threads)
        size = self.together * items
        self._parts = [_registers(cell, "part", size) for cell in sums]
        #: Sums of the thread's own steps.
        self.results = [_registers(cell, "sum", items) for cell in sums]
        self._shared = list(shared)
        self._theirs = [
            [local(f"part{i}_{j}", [items], part.part.dtype) for j in range(threads)]
            for i, part in enumerate(self._shared)
        ]

    @property
    def are_left(self) -> bool:
        """Return whether sums are left in shared memory, after all that was sent is read."""
        return bool(self._shared)

    @property
    def buffers(self) -> list[Var]:
        """Registers to allocate."""
        theirs = [register for of_sum in self._theirs for register in of_sum]
        return [*self._parts, *self.results, *theirs]

    def hold(self, number: int, step: int, value: Any) -> Any:
        """The thread's part of a sum, in step ``step`` of the owners together."""
        return set_cell(self._parts[number], value, step)

    def exchanged(self, done: int) -> list[Any]:
        """Exchange the parts of owners that differ in a bit, when ``done`` have their steps."""
        stmts: list[Any] = []
        distance = 1
        if self._shared:
            return stmts
        while done % (2 * distance) == 0 and 2 * distance <= self.together:
            bit = tirx.bitwise_and(self.owner, int_const(distance, self.owner))
            upper = tirx.NE(bit, int_const(0, self.owner))
            low, high = (done - 2 * distance) * self.items, (done - distance) * self.items
            for part in self._parts:
                for k in range(self.items):
                    a, b = cell_of(part, low + k), cell_of(part, high + k)
                    sent = shuffled("_xor", tirx.Select(upper, a, b), distance)
                    stmts.append(set_cell(part, tirx.Select(upper, b, a) + sent, low + k))
            distance *= 2
        return stmts

    def totals(self, block: Any) -> list[Any]:
        """Add up what is left, and give the owners of ``block`` their sums."""
        if self._shared:
            return self._read()
        stmts = []
        mine = tirx.EQ(self.owner // self.together, block)
        for part, result in zip(self._parts, self.results, strict=True):
            for k in range(self.items):
                distance = self.together
                while distance < self.threads:
                    rest = shuffled("_xor", cell_of(part, k), distance)
                    stmts.append(set_cell(part, cell_of(part, k) + rest, k))
                    distance *= 2
                total = set_cell(result, cell_of(part, k), k)
                alone = self.together == self.threads
                stmts.append(total if alone else tirx.IfThenElse(mine, total, None))
        return stmts

    def _read(self) -> list[Any]:
        """Leave the parts of all owners, and add up those of the thread's own steps."""
        stmts: list[Any] = []
        for part, shared in zip(self._parts, self._shared, strict=True):
            stmts += [shared.leave(part, owner) for owner in range(self.threads)]
        stmts.append(wait(WARP))
        for shared, theirs, result in zip(self._shared, self._theirs, self.results, strict=True):
            stmts += [shared.take(register, j) for j, register in enumerate(theirs)]
            for k in range(self.items):
                stmts.append(set_cell(result, tir.sum_by_pairs([cell_of(r, k) for r in theirs]), k))
        return stmts


def _registers(cell: TensorLoad, suffix: str, size: int) -> Var:
    return local(f"{cell.source.name}_{suffix}", [size], tir.dtype_of(cell))
