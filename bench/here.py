"""Building and measuring candidates in this process, for benches that measure many of them.

A search in the field gives every candidate a worker process, since one that crashes or hangs must
not end the search; that takes a second for each. Here a candidate is compiled in memory, checked
against the loop and timed: a tenth of it. A bench that a candidate ended is started again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tvm
from tvm.s_tir import meta_schedule as ms

from tvm_scan.errors import ScanError
from tvm_scan.meta.measure.workers import allocate, run_checked
from tvm_scan.schedules import expand_scans

__all__ = ["Here"]


class Here:
    """Builder and runner of ``tvm_scan.meta.tune``; ``runner`` makes the latter from the cases.

    Parameters
    ----------
    config : EvaluatorConfig
        How often a candidate runs.
    """

    at_once = 1

    def __init__(self, config: ms.runner.EvaluatorConfig) -> None:
        self.config = config
        self.programs: dict[str, Any] = {}
        self.made = 0
        self.cases = Path()

    def build(self, inputs: list[Any]) -> list[Any]:
        """Give every candidate a name; it is compiled at its first turn, those before are gone."""
        out = []
        self.programs = {}
        for item in inputs:
            name = f"/nowhere/{self.made}/a"
            self.made += 1
            self.programs[name] = item
            out.append(ms.builder.BuilderResult(name, None))
        return out

    def runner(self, cases: Path) -> Here:
        """The same object, for the cases of another function."""
        self.cases, self.programs = cases, {}
        return self

    def run(self, inputs: list[Any]) -> list[Any]:
        """Check and time."""
        return [_Done(self._measured(str(item.artifact_path))) for item in inputs]

    def _measured(self, name: str) -> Any:
        device = tvm.cpu()
        try:
            item = self.programs[name]
            if isinstance(item, ms.builder.BuilderInput):
                item = tvm.compile(expand_scans(item.mod), target=item.target).mod
                self.programs[name] = item
            module = item
            arguments = allocate(self.cases, device, None, 1)
            seconds = run_checked(self.cases, module, device, self.config, arguments)
        except (ScanError, RuntimeError, ValueError, TypeError) as error:
            return ms.runner.RunnerResult(None, str(error))
        return ms.runner.RunnerResult(seconds, None)


class _Done:
    def __init__(self, result: Any) -> None:
        self._result = result

    def result(self) -> Any:
        return self._result
