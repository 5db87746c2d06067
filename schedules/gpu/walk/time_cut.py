"""The cut of a lane into chunks of time that are walked by threads of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvm import tirx

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.ir import as_dtype, int_const, parts_of
from tvm_scan.schedules.gpu.shared.walk_layout import walk_steps

if TYPE_CHECKING:
    from tvm_scan.schedules.gpu.thread.plans import WalkPlan


class TimeCut:
    """``plan.chunks`` chunks of equal length, a multiple of ``walk_steps``; the last is shorter.

    Of a known length there are as many chunks as have steps, at least one. Of a symbolic one
    there are always ``plan.chunks``, and the last ones may be empty.

    Parameters
    ----------
    recurrence, plan
        What is cut, and how.
    """

    def __init__(self, recurrence: Recurrence, plan: WalkPlan) -> None:
        extent = recurrence.time.extent
        self.extent, self.steps = extent, walk_steps(plan)
        known = tir.as_int(extent)
        self.count: int = plan.chunks
        if known is not None:
            units = -(-known // self.steps)
            units = max(1, -(-units // plan.chunks))
            self.count = max(1, -(-known // (units * self.steps)))
            self.length: Any = int_const(units * self.steps, extent)
        else:
            whole = self.steps * plan.chunks
            units = (extent + whole - 1) // whole
            self.length = tir.simplify(units * self.steps)

    def first(self, chunk: Any) -> Any:
        """The first step of a chunk."""
        return as_dtype(chunk, tir.dtype_of(self.extent)) * self.length

    def steps_of(self, chunk: Any, *, not_last: bool = False) -> Any:
        """Steps of a chunk; ``not_last`` says that another one with steps follows."""
        known = tir.as_int(self.extent)
        whole = known is not None and (not_last or known == self.count * int(self.length))
        if whole:
            return self.length
        left = self.extent - self.first(chunk)
        return tirx.Max(tirx.Min(self.length, left), tir.zero_like(self.extent))

    def units(self, chunk: Any, unit: int, *, not_last: bool = False) -> tuple[Any, Any]:
        """The first unit of ``unit`` steps of a chunk, and how many it has."""
        steps = self.steps_of(chunk, not_last=not_last)
        return tir.simplify(self.first(chunk) // unit), parts_of(steps, unit)
