"""Measurements that an earlier search made of a function on this machine: none is repeated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import tirx
from tvm.target import Target

from tvm_scan.meta.store.database import RecordStore
from tvm_scan.meta.store.entry import Entry
from tvm_scan.schedules.plan import ScanPlan

#: Facts of a measurement without which its time says nothing of this search.
_SAME = ("host", "machine", "processor", "cores", "gpu")


def earlier_records(
    store: RecordStore, func: tirx.PrimFunc, target: Target, facts: Mapping[str, Any]
) -> dict[tuple[ScanPlan, ...], Entry]:
    """Records of a function that were measured here, by their plans.

    Parameters
    ----------
    store : RecordStore
        A database that is there.
    func : PrimFunc
        Compared without its name and marks.
    target : tvm.target.Target
        Must be the records' own.
    facts : mapping
        Provenance of what would be measured now.

    Returns
    -------
    dict of tuple of ScanPlan to Entry
        Of several with the same plans, the last.
    """
    return {
        tuple(entry.plans): entry
        for entry in store.usable_of(func, target)
        if all((entry.facts or {}).get(name) == facts.get(name) for name in _SAME)
    }
