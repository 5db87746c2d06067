"""``Entry``: one record of a database, and when two functions are the same."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from statistics import median
from typing import Any

import tvm_ffi
from tvm import IRModule, tirx
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from tvm_scan import tir
from tvm_scan._versions import why_foreign
from tvm_scan.annotations import DECLARED
from tvm_scan.delta_rule import TimeLoop
from tvm_scan.extraction import root_nests
from tvm_scan.meta.store.failure import RecordError
from tvm_scan.meta.store.rows import Record, program_digest
from tvm_scan.schedules.analysis import analyse, finding_at
from tvm_scan.schedules.annotated import annotated_plans
from tvm_scan.schedules.choose.unfit import why_unfit
from tvm_scan.schedules.plan import ScanPlan
from tvm_scan.schedules.splice import blocks_in, nest_of

#: TVM writes this many seconds for a candidate that did not run; in less than a few cycles nothing
#: runs.
_FAILED, _LEAST = 1e9, 1e-9


@dataclass(frozen=True, eq=False)
class Entry(Record):
    """One record of a database, with what TVM makes of it."""

    @property
    def seconds(self) -> float:
        """Median time."""
        return median(float(t) for t in self.json[1])

    @cached_property
    def target(self) -> Target:
        """The target that it was tuned for."""
        return Target(_plain(self.json[2]))

    @cached_property
    def mod(self) -> IRModule:
        """The sequential program.

        Raises
        ------
        RecordError
            If its text has changed since it was tuned: TVM reads one without checks, and can end
            the process over a damaged one.
        """
        self._check_program()
        return ms.database.Workload.from_json(self.workload).mod

    @property
    def func(self) -> tirx.PrimFunc:
        """The sequential function."""
        return self.mod["main"]

    @cached_property
    def record(self) -> ms.database.TuningRecord:
        """The record as TVM's own object."""
        self._check_program()
        return ms.database.TuningRecord.from_json(
            self.json, ms.database.Workload.from_json(self.workload)
        )

    @property
    def unknown(self) -> str | None:
        """The reason why it is used nowhere, and not even read: no manifest vouches for it."""
        return why_foreign(None) if self.facts is None else None

    @cached_property
    def fault(self) -> str | None:
        """The fault for which it is used nowhere; None where its plans fit its program."""
        if self.seconds >= _FAILED:
            return "expected a time, found the mark of a failed measurement"
        if self.seconds < _LEAST:
            return f"expected a time of at least {_LEAST:g} s, found {self.seconds:g} s"
        try:
            return self._unfit()
        except RecordError as error:
            return str(error)
        except Exception as error:  # whatever TVM's readers raise for a text that is damaged
            text = str(error).strip().splitlines() or [type(error).__name__]
            return f"expected a record that TVM can read, got: {text[-1]}"

    def _check_program(self) -> None:
        known = (self.facts or {}).get("program")
        if known is not None and known != program_digest(self.workload):
            raise RecordError("expected the program that was tuned, found that its text changed")

    def _unfit(self) -> str | None:
        """Return why its plans do not fit its own program and target; None where they do."""
        if self.record.target is None or not isinstance(self.func, tirx.PrimFunc):
            return "expected a function and a target"
        planned = annotated_plans(self._replayed)
        if not planned:
            return "expected a trace that replays to a plan, got one without"
        for block, plan in planned:
            recurrence = self._recurrence_at(block)
            if recurrence is None:
                return f"expected plans for recurrences, found {plan} for {block.name_hint}"
            reason = why_unfit(plan, self.target, recurrence)
            if reason is not None:
                return reason
        return None

    def _recurrence_at(self, block: Any) -> TimeLoop | None:
        # Found once for all records of a program, unless the trace changed more than annotations.
        known = _nests(tuple(self.workload))
        func, nest = nest_of(self._replayed, block)
        if [names for names, _ in known] == [_names(n) for n in root_nests(func)]:
            return next((r for names, r in known if block.name_hint in names), None)
        recurrence = finding_at(func, nest)
        return recurrence if isinstance(recurrence, TimeLoop) else None

    @cached_property
    def _replayed(self) -> Schedule:
        sch = Schedule(self.mod)
        self.record.trace.apply_to_schedule(sch, remove_postproc=False)
        return sch

    @cached_property
    def plans(self) -> list[ScanPlan]:
        """The plans that its trace annotates; empty where it has a fault."""
        return [] if self.fault else [plan for _, plan in annotated_plans(self._replayed)]

    @property
    def about(self) -> dict[str, Any]:
        """Facts that the manifest's summary holds of it; it must have no fault."""
        return {
            "shapes": shapes_text(self.func),
            "plans": [str(plan) for plan in self.plans],
            "function": str(canonical(self.func)[0]),
            "loop": all(plan.keeps_loop for plan in self.plans),
        }


def canonical(func: tirx.PrimFunc) -> tuple[int, tirx.PrimFunc]:
    """A function without its name and marks, and its structural hash.

    Parameters
    ----------
    func : PrimFunc
        As a user, a library or a Relax pipeline made it.

    Returns
    -------
    hash : int
        Equal for equal functions.
    func : PrimFunc
        To be compared with ``tvm_ffi.structural_equal``.
    """
    bare = analyse(func).func
    for key in list((func.attrs or {}).keys()):
        if str(key) != DECLARED:
            bare = bare.without_attr(key)
    return tvm_ffi.structural_hash(bare), bare


def shapes_text(func: tirx.PrimFunc) -> str:
    """Shapes of a function's parameters, each once: ``4x4096 4``."""
    shapes = (tir.shape_of(param) for param in func.params)
    return " ".join(dict.fromkeys("x".join(str(tir.as_int(e) or "?") for e in s) for s in shapes))


@lru_cache(maxsize=256)
def _nests(workload: tuple[str, ...]) -> list[tuple[list[str], TimeLoop | None]]:
    """Names of the blocks of every nest of a program, and the recurrence that it is."""
    analysis = analyse(ms.database.Workload.from_json(list(workload)).mod["main"])
    nests = zip(analysis.nests, analysis.findings, strict=True)
    return [(_names(nest), r if isinstance(r, TimeLoop) else None) for nest, r in nests]


def _names(nest: Any) -> list[str]:
    return [str(block.name_hint) for block in blocks_in(nest)]


def _plain(target: dict[str, Any]) -> dict[str, Any]:
    """A target's JSON in the form that its constructor takes."""
    out = {key: value for key, value in target.items() if value != ""}
    if isinstance(out.get("host"), dict):
        out["host"] = _plain(out["host"])
    return out
