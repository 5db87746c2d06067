"""Files of a database on disk: locked, replaced whole, read line by line without trust.

A reader sees the file before or after a write, never between; a process that dies while it writes
leaves a ``.part`` file behind and nothing else.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import logging
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from tvm_scan.errors import ScanError

__all__ = [
    "RecordError",
    "Row",
    "locked",
    "parse_lines",
    "replace_file",
    "replace_files",
    "salvaged",
    "workload_fault",
]

_LOG = logging.getLogger("tvm_scan")
_LOCK_TIMEOUT = 60.0
_JOURNAL = "journal.json"
#: A record is some kilobytes; a line beyond this is none.
_LONGEST_LINE = 64 << 20


class RecordError(ScanError):
    """A database of records cannot be read or written; nothing that was in it is lost."""


@dataclass(frozen=True)
class Row:
    """A line of a file: its number from 1, its text, and its value or what is wrong with it."""

    number: int
    text: str
    value: Any = None
    fault: str | None = None


@contextlib.contextmanager
def locked(folder: Path, timeout: float = _LOCK_TIMEOUT) -> Iterator[None]:
    """Hold the folder's lock; other tuners wait.

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
    lock = FileLock(str(folder / ".lock"), timeout=timeout)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise RecordError(
            f"database: expected the lock of {folder} within {timeout:.0f} s, found it held by "
            "another process; wait for it, or end it"
        ) from None
    except OSError as error:
        raise RecordError(
            f"database: expected a folder to write to at {folder}, got {error}; choose another"
        ) from error
    try:
        for left in folder.glob("*.part"):  # of a writer that died; the lock is ours
            left.unlink(missing_ok=True)
        _finish(folder)
        yield
    finally:
        lock.release()


def replace_file(path: Path, text: str) -> None:
    """Write a file whole, or leave it as it was.

    Parameters
    ----------
    path : Path
        In a folder that is ``locked``.
    text : str
        Its new content.

    Raises
    ------
    RecordError
        If the disk is full or the file cannot be written.
    """
    name = None
    try:
        handle, name = tempfile.mkstemp(prefix=path.name, suffix=".part", dir=path.parent)
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except OSError as error:
        raise RecordError(
            f"database: expected to write {len(text)} bytes to {path}, got: {error.strerror}; "
            "make room; every earlier record is still there"
        ) from error
    finally:
        if name is not None:
            Path(name).unlink(missing_ok=True)


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
        path = folder / name
        if not path.is_file() or path.read_bytes() != text.encode():
            replace_file(path, text)


def _finish(folder: Path) -> None:
    """Carry out the journal of a writer that died."""
    journal = folder / _JOURNAL
    if not journal.is_file():
        return
    try:
        texts = json.loads(journal.read_text(encoding="utf-8"))
        whole = isinstance(texts, dict) and all(
            re.fullmatch(r"[\w.]+\.json", name) and isinstance(text, str)
            for name, text in texts.items()
        )
    except (ValueError, RecursionError):
        whole = False
    if not whole:  # a writer makes it whole or not at all: this one is of something else
        aside = journal.with_name(f"{_JOURNAL}.rejected")
        _LOG.warning("%s: expected what a writer left to do, got other text; moved aside", journal)
        os.replace(journal, aside)
        return
    for name, text in texts.items():
        replace_file(folder / name, text)
    journal.unlink()


def salvaged(text: str) -> dict[str, Any]:
    """The records of a manifest that is no JSON as a whole: those that are still complete.

    Parameters
    ----------
    text : str
        Of a manifest that was truncated or written over.

    Returns
    -------
    dict of str to dict
        Facts by the digest of their record.
    """
    found = {}
    for match in re.finditer(r'"([0-9a-f]{16})":\s*(?=\{)', text):
        with contextlib.suppress(ValueError, RecursionError):
            found[match[1]] = json.JSONDecoder().raw_decode(text, match.end())[0]
    return found


def parse_lines(path: Path) -> list[Row]:
    """Read a file of one JSON value to a line; what is none is kept as a fault.

    Parameters
    ----------
    path : Path
        May be missing.

    Returns
    -------
    list of Row
        Of the lines that are not blank.

    Raises
    ------
    RecordError
        If there is a file that cannot be read.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RecordError(
            f"database: expected to read {path}, got: {error.strerror}; check its permissions"
        ) from error
    rows = []
    for number, raw in enumerate(data.split(b"\n"), 1):
        if raw.strip():
            rows.append(_parsed(number, raw))
    return rows


def _parsed(number: int, raw: bytes) -> Row:
    text = raw.decode("utf-8", errors="replace")
    if len(raw) > _LONGEST_LINE:
        return Row(number, text, None, f"expected a line of at most {_LONGEST_LINE} bytes")
    try:
        return Row(number, text, json.loads(text))
    except (ValueError, RecursionError) as error:
        return Row(number, text, None, f"expected JSON, got {type(error).__name__}: {error}")


def workload_fault(value: Any) -> str | None:
    """What is wrong with a line of a workload file, as far as Python can see.

    TVM reads the length in front of a packed module without a check, so that is checked here.
    """
    if not (isinstance(value, list) and len(value) == 2 and all(isinstance(v, str) for v in value)):
        return "expected a hash and a packed module"
    if not value[0].isdigit():
        return "expected a structural hash"
    try:
        packed = base64.b64decode(value[1], validate=True)
    except (binascii.Error, ValueError):
        return "expected base64"
    if len(packed) < 8 or int.from_bytes(packed[:8], "little") != len(packed) - 8:
        return "expected a packed module of the length that it names"
    try:
        graph = json.loads(packed[8:])
        nodes, root = graph["nodes"], graph["root_index"]
        whole = isinstance(nodes, list) and 0 <= root < len(nodes)
    except (ValueError, KeyError, TypeError, RecursionError):
        whole = False
    return None if whole else "expected the graph of a module"
