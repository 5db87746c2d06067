"""Databases that callers of public functions hand over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tvm.s_tir.meta_schedule.database import Database

from tvm_scan.errors import ScanError
from tvm_scan.meta.store.database import RecordStore


def as_database(value: Any, caller: str) -> RecordStore | Database | None:
    """The records that a caller gave, or those in the folder that he named.

    Parameters
    ----------
    value : RecordStore, Database, path or None
        What was given.
    caller : str
        Name of the public function, for the message.

    Returns
    -------
    RecordStore, Database or None
        None where the caller gave none.

    Raises
    ------
    ScanError
        If it is something else.
    """
    if value is None or isinstance(value, RecordStore | Database):
        return value
    if isinstance(value, str | Path):
        return RecordStore(value)
    raise ScanError(
        f"{caller}: expected a database of records, got {type(value).__name__}; pass its folder, a "
        "tvm_scan.meta.RecordStore, or a database of TVM's MetaSchedule"
    )
