"""The schedule that leaves the loop as it was written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.branch import Branch
from tvm_scan.schedules.common.result import Built
from tvm_scan.schedules.cpu.cost.loop import loop_work
from tvm_scan.schedules.cpu.cost.step import Step
from tvm_scan.schedules.cpu.plans import CpuPlan
from tvm_scan.schedules.machine.cpu_chip import CpuChip
from tvm_scan.schedules.machine.cpu_cost import CpuWork
from tvm_scan.schedules.machine.machine import Machine
from tvm_scan.schedules.picture import Picture, Serial

__all__ = ["Sequential"]


@dataclass(frozen=True)
class Sequential(CpuPlan):
    """The loop as it was written, on one core.

    A carry kept in halves is rounded at every step, as written; the other schedules round once.
    """

    algorithm: ClassVar[str] = "sequential"
    keeps_loop: ClassVar[bool] = True

    def check_fit(self, recurrence: Recurrence, machine: Machine) -> None:
        """Accept every recurrence."""

    def build(self, recurrence: Recurrence) -> Built | None:
        """Return None: the nest stays as it is."""
        return None

    def work(self, step: Step, chip: CpuChip) -> CpuWork:
        """Count what the plan does."""
        return loop_work(step, chip)

    @classmethod
    def space(cls, recurrence: Recurrence, machine: Machine) -> Iterator[Branch]:
        """Yield the loop, but where it rounds a carry of halves: those are other numbers."""
        if not any(tir.is_half(tir.dtype_of(c.register.buffer)) for c in recurrence.carries):
            yield Branch(cls())

    def picture(self, recurrence: Recurrence) -> Picture:
        """Return steps one after another."""
        return Picture((), (Serial("lane", "core", "(the loop as it was written)"),))
