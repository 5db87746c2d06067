"""Databases of records, their entries, and what is said of one."""

from __future__ import annotations

from typing import Any

from tvm_scan.cli.support.failure import CommandError
from tvm_scan.cli.support.summaries import by_id
from tvm_scan.meta.store.database import RecordStore
from tvm_scan.meta.store.entry import Entry


def find_entry(store: RecordStore, digest: str) -> Entry:
    """The record whose id begins so.

    Raises
    ------
    CommandError
        If there is not exactly one.
    """
    entry = by_id(store.entries(), digest)
    if entry.unknown is not None:
        raise CommandError(f"{entry.unknown}; drop the record with tvm-scan prune --foreign")
    if entry.fault is not None:
        raise CommandError(f"{entry.fault}; drop the record with tvm-scan prune --bad")
    return entry


def none_for(store: RecordStore, target: Any, missing: list[str]) -> str:
    """Say that no record is for these functions, why others were passed over, and the fix."""
    reasons = sorted({reason for _, reason in store.usable(target)[1]})
    passed = f" (passed over: {'; '.join(reasons)})" if reasons else ""
    return (
        f"expected a record of {', '.join(missing)} for this target in {store.folder}, found none"
        f"{passed}; run tvm-scan tune with the same shapes and target"
    )
