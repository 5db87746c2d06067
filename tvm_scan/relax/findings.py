"""``FindScans``: which functions of a module have recurrences, which are refused, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import GlobalVar, IRModule

from tvm_scan import tir
from tvm_scan.annotations import IS_SCHEDULED
from tvm_scan.arguments import as_module
from tvm_scan.delta_rule import DeltaRule, TimeLoop
from tvm_scan.recurrence import Recurrence, Refusal, RefusalKind
from tvm_scan.relax.calls import global_vars
from tvm_scan.schedules.analysis import Finding, analyse
from tvm_scan.schedules.delta.rule import describe_delta

#: Refusals of loops that TVM's own rules handle; they are no news.
_ORDINARY = (RefusalKind.NO_RECURRENCE, RefusalKind.REDUCTION)


@dataclass(frozen=True)
class ScanReport:
    """The recurrences and refusals found in one function.

    Attributes
    ----------
    name : str
        Name of the function in the module.
    findings : tuple of Recurrence, DeltaRule or Refusal
        One per loop nest, in order.
    """

    name: str
    findings: tuple[Finding, ...]

    @property
    def accepted(self) -> list[TimeLoop]:
        """The nests that plans are made for, in order."""
        return [item for item in self.findings if not isinstance(item, Refusal)]

    @property
    def recurrences(self) -> list[Recurrence]:
        """The nests that will be scheduled as scans."""
        return [item for item in self.findings if isinstance(item, Recurrence)]

    @property
    def deltas(self) -> list[DeltaRule]:
        """The nests that are delta rules, which run in chunks of matrix products."""
        return [item for item in self.findings if isinstance(item, DeltaRule)]

    @property
    def refused(self) -> list[Refusal]:
        """Ordered loops that are not taken, less those that TVM's own rules handle."""
        return [
            item
            for item in self.findings
            if isinstance(item, Refusal) and item.kind not in _ORDINARY
        ]

    def __str__(self) -> str:
        lines = [self.name]
        for item in self.findings:
            if isinstance(item, Refusal):
                lines.append(f"  refused: {item}")
                continue
            if isinstance(item, DeltaRule):
                lines.append(f"  {describe_delta(item)}")
                continue
            families = ", ".join(algebra.name for algebra in item.algebras)
            lanes = " x ".join(str(number_or_text(lane.extent)) for lane in item.lanes) or "1"
            steps = number_or_text(item.time.extent)
            lines.append(f"  {families} scan over {steps} steps, {lanes} lanes")
        return "\n".join(lines)


def number_or_text(extent: Any) -> int | str:
    """An extent as a number; as text where it is symbolic."""
    known = tir.as_int(extent)
    return str(extent) if known is None else known


def called_functions(mod: IRModule) -> list[GlobalVar]:
    """Functions that Relax functions name, and public ones that nobody scheduled, each once."""
    by_name = {str(name.name_hint): name for name in global_vars(mod)}
    for name, func in mod.functions_items():
        attrs = func.attrs or {}
        if "global_symbol" in attrs and not attrs.get(IS_SCHEDULED, False):
            by_name.setdefault(str(name.name_hint), name)
    return list(by_name.values())


def FindScans(mod: IRModule) -> list[ScanReport]:
    """Report the recurrences of a module.

    Parameters
    ----------
    mod : IRModule
        A Relax module.

    Returns
    -------
    list of ScanReport
        One for each function with a recurrence, or with an ordered loop that is refused, among
        those that Relax functions call and those that have a public name and no schedule yet.

    Raises
    ------
    ScanError
        If it is no module.
    """
    reports = []
    for name in called_functions(as_module(mod, "FindScans")):
        func = mod[name]
        if not isinstance(func, tirx.PrimFunc):
            continue
        report = ScanReport(str(name.name_hint), analyse(func).findings)
        if report.accepted or report.refused:
            reports.append(report)
    return reports
