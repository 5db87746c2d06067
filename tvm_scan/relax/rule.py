"""The scheduling pass as a dlight rule, to stand in front of TVM's own rules."""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from tvm_scan.errors import PlanError, RefusalError
from tvm_scan.schedules import parallelize


class ScanScheduleRule(ScheduleRule):
    """Schedules functions with a recurrence; None ("not mine") for every other function."""

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule | None:
        """Schedule ``func`` with its default plan.

        Parameters
        ----------
        func : PrimFunc
            Any function.
        target : tvm.target.Target
            What it is compiled for.
        tunable : bool
            Ignored: the default plan has nothing to sample.

        Returns
        -------
        Schedule or None
        """
        try:
            return s_tir.Schedule(parallelize(func, target))
        except (RefusalError, PlanError):
            return None
