"""The exchange of one process with the others, whatever its function is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Exchange:
    """One process among the others: its own."""

    gather: Callable[[Tensor], Tensor]
    rank: int
    size: int
    reverse: bool

    def carry(
        self, part: Tensor, start: Tensor, combine: Callable[[Tensor, Tensor], Tensor]
    ) -> Tensor:
        """Combine what comes before this slice: ``combine(combine(start, first), second) ..``."""
        parts, carry = self.gather(part), start
        # Every part takes part, so that no process has a gather without an adjoint.
        for other in self.order():
            before = torch.full((), self.is_before(other), device=part.device)
            # Through the part also where it is not used, without its numbers, and without those of
            # the carry: they may be infinite.
            entering = torch.where(before, carry, start.detach())
            carry = torch.where(before, combine(entering, parts[other]), carry)
        return carry

    def order(self) -> Sequence[int]:
        """The processes in the order of the scan."""
        return range(self.size)[::-1] if self.reverse else range(self.size)

    def is_before(self, other: int) -> bool:
        """Return whether the scan reaches the slice of another process before this one."""
        return other > self.rank if self.reverse else other < self.rank
