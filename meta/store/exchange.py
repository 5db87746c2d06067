"""Records from one folder to another: merge, prune, and one file to send."""

from __future__ import annotations

import logging
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

from tvm_scan._files import replacing
from tvm_scan.meta.store.database import RecordStore
from tvm_scan.meta.store.entry import Entry, canonical
from tvm_scan.meta.store.failure import RecordError
from tvm_scan.meta.store.files import contents, reading
from tvm_scan.meta.store.names import MANIFEST, RECORDS, WORKLOADS

_LOG = logging.getLogger("tvm_scan")
_MEMBERS = (WORKLOADS, MANIFEST, RECORDS)
#: Unpacked size beyond which an archive is refused.
_LARGEST = 1 << 30


def merge(into: RecordStore, sources: Iterable[RecordStore]) -> int:
    """Add the records of other folders, with their provenance.

    Parameters
    ----------
    into : RecordStore
        Made if need be; what it has stays.
    sources : iterable of RecordStore
        Left as they are.

    Returns
    -------
    int
        Number of records that were new. What has a fault is not spread.

    Raises
    ------
    RecordError
        If a source is no database, or ``into`` cannot be written.
    """
    return _add(into, [entry for source in sources for entry in _sound(source)])


def _sound(store: RecordStore) -> list[Entry]:
    """Records without a fault; the others stay where they are."""
    entries = store.entries()
    bad = [entry for entry in entries if not entry.unknown and entry.fault is not None]
    if bad:
        _LOG.warning(
            "%d records of %s are left out, the first since: %s",
            len(bad),
            store.folder,
            bad[0].fault,
        )
    return [entry for entry in entries if entry not in bad]


def _add(into: RecordStore, new: list[Entry]) -> int:
    before = 0

    def change(entries: list[Entry]) -> list[Entry]:
        nonlocal before
        before = len(entries)
        known = {entry.digest for entry in entries}
        return entries + [entry for entry in new if entry.digest not in known]

    return len(into.update(change)) - before


def prune(store: RecordStore, *, top: int = 1, foreign: bool = False, bad: bool = False) -> int:
    """Drop slow records; keep the fastest of each function and target.

    Parameters
    ----------
    store : RecordStore
        Changed on disk.
    top : int
        How many to keep of each function and target.
    foreign : bool
        Whether to drop records of other versions, too.
    bad : bool
        Whether to drop records with a fault: those that can be used nowhere.

    Returns
    -------
    int
        Number of records that were dropped.

    Raises
    ------
    RecordError
        If it is no database, or cannot be written.
    """
    store.entries()
    dropped = 0

    def change(entries: list[Entry]) -> list[Entry]:
        nonlocal dropped
        usable, others = store.split(entries)
        groups: dict[tuple[int, str], list[Entry]] = {}
        for entry in usable:
            groups.setdefault((canonical(entry.func)[0], str(entry.target)), []).append(entry)
        keep = {
            entry.digest
            for group in groups.values()
            for entry in sorted(group, key=lambda e: e.seconds)[:top]
        }
        for entry, _ in others:
            if not (bad if not entry.unknown and entry.fault is not None else foreign):
                keep.add(entry.digest)
        dropped = sum(entry.digest not in keep for entry in entries)
        return [entry for entry in entries if entry.digest in keep]

    store.update(change, compact=True)
    return dropped


def export_archive(store: RecordStore, path: Path) -> int:
    """Write a database into one zip file.

    Parameters
    ----------
    store : RecordStore
        What to send.
    path : Path
        The file; replaced if it is there.

    Returns
    -------
    int
        Number of records in it.

    Raises
    ------
    RecordError
        If it is no database.
    WriteError
        If the file cannot be written.
    """
    count = len(store.entries())
    with (
        reading(store.folder),
        replacing(path) as part,
        zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for name, content in contents(store.folder).items():
            archive.writestr(name, content)
    return count


def import_archive(store: RecordStore, path: Path) -> int:
    """Add the records of an exported file; nothing else of it is looked at.

    Parameters
    ----------
    store : RecordStore
        Made if need be; what it has stays.
    path : Path
        What ``export_archive`` wrote.

    Returns
    -------
    int
        Number of records that were new.

    Raises
    ------
    RecordError
        If the file is no such archive.
    """
    if not Path(path).is_file():
        raise RecordError(
            f"import: expected a file of tvm-scan export, found nothing at {path}; check the path"
        )
    with tempfile.TemporaryDirectory(prefix="tvm-scan-import-") as folder:
        try:
            with zipfile.ZipFile(path) as archive:
                sizes = {info.filename: info.file_size for info in archive.infolist()}
                if RECORDS not in sizes or sum(sizes.get(n, 0) for n in _MEMBERS) > _LARGEST:
                    raise ValueError(f"no {RECORDS} in it, or too large a one")
                for name in _MEMBERS:  # by name, so that no path in it leads elsewhere
                    if name in sizes:
                        (Path(folder) / name).write_bytes(archive.read(name))
        except Exception as error:  # of a damaged or encrypted one, whatever its decoder raises
            raise RecordError(
                f"import: expected a file of tvm-scan export at {path}, got: "
                f"{str(error) or type(error).__name__}; export again"
            ) from error
        return _add(store, _sound(RecordStore(folder)))
