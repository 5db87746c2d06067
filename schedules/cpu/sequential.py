"""The schedule that leaves the loop as it was written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from tvm_scan.delta_rule import DeltaRule, TimeLoop
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.branch import Branch
from tvm_scan.schedules.common.result import Built
from tvm_scan.schedules.cpu.cost.delta_loop import delta_loop_work
from tvm_scan.schedules.cpu.cost.loop import loop_work
from tvm_scan.schedules.cpu.cost.step import Step
from tvm_scan.schedules.cpu.plans import CpuPlan
from tvm_scan.schedules.machine.cpu_chip import CpuChip
from tvm_scan.schedules.machine.cpu_cost import CpuCost, CpuWork, cpu_cost
from tvm_scan.schedules.machine.machine import Machine
from tvm_scan.schedules.picture import Picture, Serial


@dataclass(frozen=True)
class Sequential(CpuPlan):
    """The loop as it was written, on one core.

    A carry kept in halves is rounded at every step, as written; the other schedules round once.
    """

    algorithm: ClassVar[str] = "sequential"
    keeps_loop: ClassVar[bool] = True
    takes: ClassVar[tuple[type[TimeLoop], ...]] = (Recurrence, DeltaRule)

    def check_fit(self, recurrence: TimeLoop, machine: Machine) -> None:
        """Accept every recurrence."""

    def build(self, recurrence: TimeLoop) -> Built | None:
        """Return None: the nest stays as it is."""
        return None

    def work(self, step: Step, chip: CpuChip) -> CpuWork:
        """Count what the plan does."""
        return loop_work(step, chip)

    def cost(self, recurrence: TimeLoop, machine: Machine, steps: int | None = None) -> CpuCost:
        """Predict the time."""
        if isinstance(recurrence, Recurrence):
            return super().cost(recurrence, machine, steps)
        return cpu_cost(delta_loop_work(recurrence, steps), machine)

    @classmethod
    def space(cls, recurrence: TimeLoop, machine: Machine) -> Iterator[Branch]:
        """Yield the loop, but where it rounds a carry of halves: those are other numbers."""
        if not recurrence.carries_halves:
            yield Branch(cls())

    def picture(self, recurrence: TimeLoop) -> Picture:
        """Return steps one after another."""
        return Picture((), (Serial("lane", "core", "(the loop as it was written)"),))
