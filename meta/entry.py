"""``Entry``: one record of a database, and when two functions are the same."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from statistics import median
from typing import Any

import tvm_ffi
from tvm import IRModule, tirx
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from tvm_scan.annotations import DECLARED
from tvm_scan.meta.expand import annotated_plans
from tvm_scan.schedules.plan import ScanPlan
from tvm_scan.schedules.splice import ensure_blocks

__all__ = ["Entry", "canonical", "digest_of", "record_fault"]


@dataclass(frozen=True, eq=False)
class Entry:
    """One record of a database.

    Attributes
    ----------
    digest : str
        Name of the record: SHA-256 of its workload's hash and its text.
    workload : list
        The workload's line.
    json : list
        Trace, seconds, target and arguments, as TVM writes them.
    facts : dict or None
        Provenance from the manifest.
    """

    digest: str
    workload: list[str]
    json: list[Any]
    facts: dict[str, Any] | None

    @property
    def seconds(self) -> float:
        """Median time."""
        return median(float(t) for t in self.json[1])

    @cached_property
    def target(self) -> Target:
        """What it was tuned for."""
        return Target(_plain(self.json[2]))

    @cached_property
    def mod(self) -> IRModule:
        """The sequential program."""
        return ms.database.Workload.from_json(self.workload).mod

    @property
    def func(self) -> tirx.PrimFunc:
        """The sequential function."""
        return self.mod["main"]

    @cached_property
    def record(self) -> ms.database.TuningRecord:
        """As TVM's own object."""
        return ms.database.TuningRecord.from_json(
            self.json, ms.database.Workload.from_json(self.workload)
        )

    @cached_property
    def fault(self) -> str | None:
        """What TVM finds wrong with it; None where it can be used."""
        try:
            if self.record.target is None or not isinstance(self.func, tirx.PrimFunc):
                return "expected a function and a target"
        except (RuntimeError, ValueError, TypeError, KeyError, AttributeError) as error:
            text = str(error).strip().splitlines() or [type(error).__name__]
            return f"expected a record that TVM can read, got: {text[-1]}"
        return None if self.plans else "expected a trace that replays to a plan"

    @cached_property
    def plans(self) -> list[ScanPlan]:
        """The plans that its trace annotates; empty where it does not replay."""
        sch = Schedule(self.mod)
        try:
            self.record.trace.apply_to_schedule(sch, remove_postproc=False)
        except (RuntimeError, ValueError, TypeError):
            return []
        return [plan for _, plan in annotated_plans(sch)]


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
    bare = ensure_blocks(func)
    for key in list((func.attrs or {}).keys()):
        if str(key) != DECLARED:
            bare = bare.without_attr(key)
    return tvm_ffi.structural_hash(bare), bare


def digest_of(workload: list[str], record: list[Any]) -> str:
    """Name of a record, which does not depend on where in a file it stands."""
    text = json.dumps([workload[0], record], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def record_fault(value: Any, workloads: list[Any]) -> str | None:
    """What is wrong with a line of a record file; None where it is a record.

    Parameters
    ----------
    value : object
        The line's JSON.
    workloads : list
        The workloads by number; None where one cannot be read.

    Returns
    -------
    str or None
    """
    if not (isinstance(value, list) and len(value) == 2 and isinstance(value[0], int)):
        return "expected the number of a workload and a record"
    if not 0 <= value[0] < len(workloads) or workloads[value[0]] is None:
        return f"expected one of {len(workloads)} workloads, got number {value[0]}"
    body = value[1]
    if not (isinstance(body, list) and len(body) == 4):
        return "expected trace, seconds, target and arguments"
    trace, seconds, target, arguments = body
    if not (
        isinstance(trace, list) and len(trace) == 2 and all(isinstance(t, list) for t in trace)
    ):
        return "expected a trace"
    numbers = isinstance(seconds, list) and all(
        isinstance(t, int | float) and not isinstance(t, bool) and isfinite(t) and t > 0
        for t in seconds
    )
    if not numbers or not seconds:
        return "expected positive seconds"
    if not isinstance(target, dict) or not isinstance(arguments, list):
        return "expected a target and arguments"
    return None


def _plain(target: dict[str, Any]) -> dict[str, Any]:
    """A target's JSON in the form that its constructor takes."""
    out = {key: value for key, value in target.items() if value != ""}
    if isinstance(out.get("host"), dict):
        out["host"] = _plain(out["host"])
    return out
