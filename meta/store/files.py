"""Files of a database on disk: locked, replaced whole, read line by line without trust.

A reader sees the file before or after a write, never between, and changes nothing; a process that
dies while it writes leaves a file of a name that only ours have, which the next writer removes.
Nothing here imports TVM before something fails.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from tvm_scan._files import is_part, write_file
from tvm_scan.meta.store.names import MANIFEST, RECORDS, WORKLOADS

_LOG = logging.getLogger("tvm_scan")
_LOCK, _LOCK_TIMEOUT = ".lock", 60.0
_JOURNAL = "journal.json"
#: Bytes beyond which a file is no database.
_LONGEST = 1 << 30


def _failure(message: str) -> Exception:
    from tvm_scan.meta.store.failure import RecordError  # it is TVM's kind of error, as all of ours

    return RecordError(message)


@contextlib.contextmanager
def locked(folder: Path, timeout: float = _LOCK_TIMEOUT) -> Iterator[None]:
    """Hold the folder's lock to write; other tuners wait.

    Parameters
    ----------
    folder : Path
        Made if need be.
    timeout : float
        Seconds to wait.

    Raises
    ------
    RecordError
        If the folder cannot be made or the lock is not to be had.
    """
    path = folder / _LOCK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # By the umask, which FileLock does not ask: colleagues of a shared folder lock it, too.
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        lock = _acquired(path, timeout)
    except OSError as error:
        raise _failure(
            f"database: expected a folder to write to at {folder}, got {error}; choose another"
        ) from error
    try:
        for left in filter(is_part, folder.iterdir()):  # of a writer that died; the lock is ours
            left.unlink(missing_ok=True)
        _finish(folder)
        yield
    finally:
        lock.release()


def is_database(folder: Path) -> bool:
    """Return whether there are records in a folder."""
    return (folder / RECORDS).is_file()


@contextlib.contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Hold the folder's lock to read, where there is one that can be taken.

    Files are replaced whole, so that a folder which cannot be written to, or whose disk is full, is
    read without it.

    Parameters
    ----------
    folder : Path
        Nothing is made or changed in it.

    Raises
    ------
    RecordError
        If another process keeps the lock.
    """
    path, lock = folder / _LOCK, None
    with contextlib.suppress(OSError):
        lock = _acquired(path, _LOCK_TIMEOUT) if path.is_file() else None
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


def _acquired(path: Path, timeout: float) -> FileLock:
    lock = FileLock(str(path), timeout=timeout)
    try:
        lock.acquire()
    except Timeout:
        raise _failure(
            f"database: expected the lock of {path.parent} within {timeout:.0f} s, found it held "
            "by another process; wait for it, or end it"
        ) from None
    return lock


def replace_file(path: Path, content: str | bytes) -> None:
    """Write a file whole, or leave it as it was.

    Parameters
    ----------
    path : Path
        In a folder that is ``locked``.
    content : str or bytes
        Its new content.

    Raises
    ------
    RecordError
        If the disk is full or the file cannot be written.
    """
    from tvm_scan.errors import WriteError

    try:
        write_file(path, content)
    except WriteError as error:
        cause = error.__cause__
        raise _failure(
            f"database: expected to write {len(content)} bytes to {path}, got: "
            f"{getattr(cause, 'strerror', None) or cause}; make room; every earlier record is "
            "still there"
        ) from error


def replace_files(folder: Path, texts: dict[str, str], *, together: bool) -> None:
    """Write several files, one after the other.

    Parameters
    ----------
    folder : Path
        A folder that is ``locked``.
    texts : dict of str to str
        Content by file name, in the order of writing.
    together : bool
        Whether all of them must change or none: then they are written to a journal first, which
        whoever takes the lock next carries out, should this process die.

    Raises
    ------
    RecordError
        If the disk is full or a file cannot be written.
    """
    if together:
        replace_file(folder / _JOURNAL, json.dumps(texts))
        _finish(folder)
        return
    for name, text in texts.items():
        if _bytes_of(folder / name) != text.encode():
            replace_file(folder / name, text)


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a database, as they are once the journal of a writer that died is carried out.

    Parameters
    ----------
    folder : Path
        A folder that is ``locked``, or read under ``reading``.

    Returns
    -------
    dict of str to bytes
        By file name; what is not there is left out.

    Raises
    ------
    RecordError
        If there is a file that cannot be read.
    """
    by_name = {}
    # Records name workloads and facts, which are written before them, so they are read first.
    for name in (RECORDS, WORKLOADS, MANIFEST):
        data = _bytes_of(folder / name)
        if data is not None:
            by_name[name] = data
    journal = _journal(folder)
    if journal is None and (folder / _JOURNAL).exists():
        _LOG.warning("%s: %s; left out", folder / _JOURNAL, _NO_JOURNAL)
    return {**by_name, **(journal or {})}


def _bytes_of(path: Path) -> bytes | None:
    """Content of a file; None where there is none."""
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            raise _failure(
                f"database: expected a file at {path}, found a folder or a device; move it away"
            )
        if about.st_size > _LONGEST:
            raise _failure(
                f"database: expected a file of at most {_LONGEST} bytes at {path}, found "
                f"{about.st_size}; give the folder of a tuning run"
            )
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _failure(
            f"database: expected to read {path}, got: {error.strerror}; check its permissions"
        ) from error


_NO_JOURNAL = "expected what a writer left to do, got other text"


def _journal(folder: Path) -> dict[str, bytes] | None:
    """Work that a writer that died left: a journal is made whole, so any other text is none."""
    try:
        texts = json.loads(_bytes_of(folder / _JOURNAL) or b"")
        if not all(name in (RECORDS, WORKLOADS, MANIFEST) for name in texts):
            return None
        return {name: text.encode() for name, text in texts.items()}
    except (ValueError, RecursionError, TypeError, AttributeError):
        return None


def _finish(folder: Path) -> None:
    """Carry out the journal of a writer that died."""
    journal = folder / _JOURNAL
    if not journal.exists():
        return
    texts = _journal(folder)
    if texts is None:
        aside = journal.with_name(f"{_JOURNAL}.rejected")
        _LOG.warning("%s: %s; moved aside", journal, _NO_JOURNAL)
        os.replace(journal, aside)
        return
    for name, text in texts.items():
        replace_file(folder / name, text)
    journal.unlink()
