"""A change of a database that says how many records it was about."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tvm_scan.cli.support.terminal import print_json
from tvm_scan.meta.store.database import RecordStore


def change(folder: Path, what: str, work: Callable[[], int], as_json: bool) -> None:
    """Run ``work``, and print the number that it returns as ``what``, and how many are left."""
    count = work()
    left = len(RecordStore(folder).entries())
    if as_json:
        print_json({what: count, "records": left})
    else:
        print(f"{count} {what}; {left} records in {folder}")
