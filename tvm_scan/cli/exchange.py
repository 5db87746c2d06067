"""``tvm-scan merge``, ``prune``, ``export`` and ``import``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tvm_scan.cli.records import open_store
from tvm_scan.cli.support.failure import CommandError
from tvm_scan.cli.support.terminal import print_json
from tvm_scan.errors import ScanError
from tvm_scan.meta.store import exchange
from tvm_scan.meta.store.database import RecordStore

__all__ = ["export_records", "import_records", "merge_records", "prune_records"]


def _run(as_json: bool, what: str, work: Callable[[], int], folder: Path) -> None:
    try:
        count = work()
        left = len(RecordStore(folder).entries())
    except ScanError as error:
        raise CommandError(str(error)) from error
    if as_json:
        print_json({what: count, "records": left})
    else:
        print(f"{count} {what}; {left} records in {folder}")


def merge_records(into: Path, sources: list[Path], as_json: bool) -> None:
    """Print; see ``tvm-scan merge --help``."""
    stores = [open_store(source) for source in sources]
    _run(as_json, "added", lambda: exchange.merge(RecordStore(into), stores), into)


def prune_records(folder: Path, top: int, foreign: bool, bad: bool, as_json: bool) -> None:
    """Print; see ``tvm-scan prune --help``."""
    store = open_store(folder)
    work: Any = lambda: exchange.prune(store, top=top, foreign=foreign, bad=bad)  # noqa: E731
    _run(as_json, "dropped", work, folder)


def export_records(folder: Path, output: Path, as_json: bool) -> None:
    """Print; see ``tvm-scan export --help``."""
    store = open_store(folder)
    _run(as_json, "exported", lambda: exchange.export_archive(store, output), folder)


def import_records(archive: Path, folder: Path, as_json: bool) -> None:
    """Print; see ``tvm-scan import --help``."""
    _run(as_json, "added", lambda: exchange.import_archive(RecordStore(folder), archive), folder)
