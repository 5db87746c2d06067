"""Records as tables show them: by their manifest where that is enough, else by TVM."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tvm_scan.cli.support.failure import BAD_INPUT, NO_RECORD, CommandError
from tvm_scan.cli.support.paths import check_database
from tvm_scan.meta.store.summary import Summary, read_summaries


class _Named(Protocol):
    @property
    def digest(self) -> str: ...


T = TypeVar("T", bound=_Named)


@dataclass(frozen=True)
class Listing:
    """The records of a folder, and what in it is none.

    Attributes
    ----------
    records : list of Summary
        By function, target, shapes and time.
    rejected : list of str
        Lines that are no records, with file and line; of many the first.
    bad_lines : int
        How many there are.
    """

    records: list[Summary]
    rejected: list[str]
    bad_lines: int


def read_listing(folder: Path) -> Listing:
    """Read a folder; TVM is imported where a record was not described by who wrote it.

    Raises
    ------
    CommandError
        If there is no database in it.
    """
    check_database(folder)
    summaries, rejected, bad_lines = read_summaries(folder), list[str](), 0
    if summaries is None:
        from tvm_scan.meta import RecordStore

        store = RecordStore(folder)
        summaries = store.summaries()
        rejected, bad_lines = store.rejected, store.bad_lines
    summaries.sort(key=lambda r: (r.name, str(r.target.get("kind")), r.shapes, r.seconds))
    return Listing(summaries, rejected, bad_lines)


def row_of(record: Summary) -> dict[str, Any]:
    """Return what is printed of a record as data."""
    return {
        "id": record.digest,
        "function": record.name,
        "shapes": record.shapes,
        "target": str(record.target.get("kind", "?")),
        "plans": record.plans,
        "seconds": record.seconds,
        "date": str(record.facts.get("date", "?")),
        "host": str(record.facts.get("host", "?")),
        "unusable": record.reason,
    }


def one_of(records: list[Summary], digest: str) -> Summary:
    """The record whose id begins so.

    Raises
    ------
    CommandError
        If there is not exactly one, or it cannot be read.
    """
    record = by_id(records, digest)
    if not record.plans:
        drop = "--bad" if record.facts else "--foreign"
        raise CommandError(f"{record.reason}; drop the record with tvm-scan prune {drop}")
    return record


def by_id(records: Iterable[T], digest: str) -> T:
    """The record whose id begins so, readable or not.

    Raises
    ------
    CommandError
        If there is not exactly one.
    """
    matching = [record for record in records if record.digest.startswith(digest)]
    if len(matching) != 1 or not digest:
        raise CommandError(
            f"expected the id of one record, got {digest!r}, which {len(matching)} records have; "
            "tvm-scan list prints them",
            NO_RECORD if not matching else BAD_INPUT,
        )
    return matching[0]
