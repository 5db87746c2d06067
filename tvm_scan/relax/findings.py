"""``FindScans``: which functions of a module have recurrences, which are refused, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import GlobalVar, IRModule

from tvm_scan import tir
from tvm_scan.annotations import IS_SCHEDULED
from tvm_scan.arguments import as_module
from tvm_scan.delta_rule import DeltaRule
from tvm_scan.extraction import extract_nest, root_nests
from tvm_scan.recurrence import Recurrence, Refusal, RefusalKind
from tvm_scan.relax.calls import global_vars
from tvm_scan.schedules.delta.rule import as_delta, describe_delta
from tvm_scan.schedules.splice import ensure_blocks

__all__ = ["FindScans", "Findings", "ScanReport"]

#: Refusals of loops that TVM's own rules handle; they are no news.
_ORDINARY = (RefusalKind.NO_RECURRENCE, RefusalKind.REDUCTION)


@dataclass(frozen=True)
class ScanReport:
    """The recurrences and refusals found in one function.

    Attributes
    ----------
    name : str
        Name of the function in the module.
    found : tuple of Recurrence, DeltaRule or Refusal
        One per loop nest, in order.
    """

    name: str
    found: tuple[Recurrence | DeltaRule | Refusal, ...]

    @property
    def recurrences(self) -> list[Recurrence]:
        """The nests that will be scheduled as scans."""
        return [item for item in self.found if isinstance(item, Recurrence)]

    @property
    def deltas(self) -> list[DeltaRule]:
        """The nests that are delta rules, which run in chunks of matrix products."""
        return [item for item in self.found if isinstance(item, DeltaRule)]

    @property
    def refused(self) -> list[Refusal]:
        """Ordered loops that are not taken, less those that TVM's own rules handle."""
        return [
            item for item in self.found if isinstance(item, Refusal) and item.kind not in _ORDINARY
        ]

    def __str__(self) -> str:
        lines = [self.name]
        for item in self.found:
            if isinstance(item, Refusal):
                lines.append(f"  refused: {item}")
                continue
            if isinstance(item, DeltaRule):
                lines.append(f"  {describe_delta(item)}")
                continue
            families = ", ".join(algebra.name for algebra in item.algebras)
            lanes = " x ".join(_size(lane.extent) for lane in item.lanes) or "1"
            lines.append(f"  {families} scan over {_size(item.time.extent)} steps, {lanes} lanes")
        return "\n".join(lines)


def _size(extent: Any) -> str:
    known = tir.as_int(extent)
    return str(extent if known is None else known)


def called_functions(mod: IRModule) -> list[GlobalVar]:
    """Functions that Relax functions name, and public ones that nobody scheduled, each once."""
    found = {str(name.name_hint): name for name in global_vars(mod)}
    for name, func in mod.functions_items():
        attrs = func.attrs or {}
        if "global_symbol" in attrs and not attrs.get(IS_SCHEDULED, False):
            found.setdefault(str(name.name_hint), name)
    return list(found.values())


class Findings:
    """The findings in functions, so that passes in a row look into each function once."""

    def __init__(self) -> None:
        self._found: dict[
            int, tuple[tirx.PrimFunc, tuple[Recurrence | DeltaRule | Refusal, ...]]
        ] = {}

    def of(self, func: tirx.PrimFunc) -> tuple[Recurrence | DeltaRule | Refusal, ...]:
        """One recurrence, delta rule or refusal per loop nest of a function."""
        key = func.__hash__()  # by identity; the function is kept, so that it stays its own
        if key not in self._found:
            blocked = ensure_blocks(func)
            found = tuple(
                _found(blocked, nest) if _reads_what_it_writes(nest) else _independent(nest)
                for nest in root_nests(blocked)
            )
            self._found[key] = (func, found)
        return self._found[key][1]

    def reports(self, mod: IRModule) -> list[ScanReport]:
        """Reports of a module, as `FindScans` gives them."""
        reports = []
        for name in called_functions(mod):
            func = mod[name]
            if not isinstance(func, tirx.PrimFunc):
                continue
            report = ScanReport(str(name.name_hint), self.of(func))
            if report.recurrences or report.deltas or report.refused:
                reports.append(report)
        return reports

    def forget(self) -> None:
        """Let go of the functions."""
        self._found.clear()


def _found(func: tirx.PrimFunc, nest: Any) -> Recurrence | DeltaRule | Refusal:
    found = extract_nest(func, nest)
    return as_delta(func, nest, found) if isinstance(found, Refusal) else found


def _reads_what_it_writes(nest: Any) -> bool:
    """Return whether it can be a recurrence; most nests of a model cannot, and this is cheap."""
    written = tir.buffers_stored(nest)
    return any(buffer in written for buffer in tir.buffers_loaded(nest).keys())


def _independent(nest: Any) -> Refusal:
    return Refusal(
        RefusalKind.NO_RECURRENCE,
        nest,
        "expected a loop in which a step reads what an earlier step wrote, found none",
        "nothing to do: TVM's own rules already run this loop in parallel",
    )


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
    return Findings().reports(as_module(mod, "FindScans"))
