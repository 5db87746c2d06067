"""Entries of the on-disk cache of built kernels; `store` has what people ask of it.

One folder per user, one pair of files per entry: the library, and a small JSON file with its
size and SHA-256 that is written last. Loading a library runs its code, so nothing is read from a
folder or file that another user owns or may write to. Files of other names than an entry's, in a
folder that was not made for this, are never touched.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from tvm_scan._files import write_private

_DEFAULT_MEGABYTES = 256
LOCK_TIMEOUT = 300.0
LIMIT_FILE = "limit.txt"
#: Files of an entry: a key of `hashlib` and what it is.
_NAME = re.compile(r"([0-9a-f]{40})\.(json|so|txt|lock)")


def cache_folder() -> Path | None:
    """Return the folder of the cache, made if need be; None where the cache is off or unusable.

    A folder that somebody else owns, or that others may write to, is not used, nor one whose name
    is no text, which TVM could not load a library from.

    Returns
    -------
    Path or None
        The folder.
    """
    named = os.environ.get("TVM_SCAN_CACHE", "")
    if named.lower() in ("off", "0"):
        return None
    if named:
        folder = Path(named).expanduser()
    else:
        base = os.environ.get("XDG_CACHE_HOME")
        folder = (Path(base) if base else Path.home() / ".cache") / "tvm_scan" / "kernels"
    try:
        str(folder).encode()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder if is_private(folder) and os.access(folder, os.W_OK) else None
    except (OSError, UnicodeEncodeError):
        return None


def limit() -> int:
    """Return the most bytes that the entries may take."""
    named = os.environ.get("TVM_SCAN_CACHE_MB", "")
    if not named:
        folder = cache_folder()
        with contextlib.suppress(OSError, ValueError):
            if folder is not None and is_private(folder / LIMIT_FILE):
                return megabytes_in((folder / LIMIT_FILE).read_text(encoding="utf-8")) << 20
        return _DEFAULT_MEGABYTES << 20
    try:
        return megabytes_in(named) << 20
    except ValueError:
        raise ValueError(
            f"tvm_scan: expected a number of megabytes in TVM_SCAN_CACHE_MB, got {named!r}; "
            "set it to 256, for instance"
        ) from None


def megabytes_in(text: str) -> int:
    """Read a number of megabytes, at least 0."""
    if re.fullmatch(r"[0-9]{1,12}", text.strip()) is None:
        raise ValueError(f"expected a number of megabytes, got {text!r}")
    return int(text)


def is_private(path: Path) -> bool:
    """Return whether a file or folder is this user's, and nobody else may write to it."""
    if not hasattr(os, "getuid"):
        return True
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return False
    return status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


@contextlib.contextmanager
def locked(key: str) -> Iterator[None]:
    """Let one process at a time build the entry `key`; the others wait and then find it."""
    folder = cache_folder()
    if folder is None:
        yield
        return
    lock = FileLock(folder / f"{key}.lock", timeout=LOCK_TIMEOUT, mode=0o600)
    # Without the lock, on a full disk for instance, an entry may be built twice, no more.
    with contextlib.suppress(OSError, Timeout):
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def fetch(key: str, suffix: str) -> Path | None:
    """Return the file of an entry, or None; an entry that fails its checksum is removed."""
    folder = cache_folder()
    if folder is None:
        return None
    path, label = folder / f"{key}{suffix}", folder / f"{key}.json"
    try:
        if not (is_private(path) and is_private(label)):
            return None
        expected = label_at(label)
        content = path.read_bytes()
        if {**expected, "what": ""} == _label(content, ""):
            os.utime(label)  # used just now: the last to be evicted
            return path
    except FileNotFoundError:
        return None
    except OSError:
        pass
    remove(key)
    return None


def remove(key: str) -> None:
    """Remove an entry: its content is of no use."""
    if (folder := cache_folder()) is not None:
        delete(*(folder / f"{key}.{kind}" for kind in ("json", "so", "txt")))


def insert(key: str, suffix: str, content: bytes, what: str = "") -> Path | None:
    """Store an entry and evict old ones beyond the limit; None where it cannot be stored.

    `what` says what it is, to people.
    """
    folder = cache_folder()
    if folder is None:
        return None
    path = folder / f"{key}{suffix}"
    try:
        write_private(path, content)
        write_private(folder / f"{key}.json", json.dumps(_label(content, what)).encode())
    except OSError:
        return None
    _evict_in_time(folder, key, len(content))
    return path


#: By folder and limit, how many bytes this process may still store before it looks at the folder.
_ALLOWANCE: dict[tuple[Path, int], int] = {}
#: Processes that may store at a time without passing the limit: each takes a part of what is left.
_WRITERS = 16


def _evict_in_time(folder: Path, keep: str, added: int) -> None:
    """Evict if the limit may be passed: to look at thousands of files takes as long as a kernel."""
    most = limit()
    left = _ALLOWANCE.get((folder, most), 0) - added
    if left <= 0:
        left = (most - evict(folder, keep)) // _WRITERS
    _ALLOWANCE[folder, most] = left


def _label(content: bytes, what: str) -> dict[str, object]:
    return {"size": len(content), "sha256": hashlib.sha256(content).hexdigest(), "what": what}


def label_at(path: Path) -> dict[str, Any]:
    """Return the text of a label as data; empty where it says nothing that can be read."""
    try:
        label = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return {}
    return label if isinstance(label, dict) else {}


def stored(folder: Path) -> list[tuple[float, int, list[Path]]]:
    """List time of last use, bytes and files of every entry, oldest first; the label leads."""
    groups: dict[str, list[os.DirEntry[str]]] = {}
    with os.scandir(folder) as files:  # once: there may be thousands
        for file in files:
            named = _NAME.fullmatch(file.name)
            if named is not None:
                groups.setdefault(named[1], []).append(file)
    entries = []
    for key, members in groups.items():
        members.sort(key=lambda file: file.name != f"{key}.json")
        if members[0].name == f"{key}.json":
            with contextlib.suppress(OSError):
                sizes = [file.stat().st_size for file in members]
                paths = [Path(file.path) for file in members]
                entries.append((members[0].stat().st_mtime, sum(sizes), paths))
    return sorted(entries, key=lambda entry: entry[0])


def evict(folder: Path, keep: str) -> int:
    """Remove what was used longest ago, but for the entry `keep`, until the limit holds.

    Returns the bytes of what stays.
    """
    entries = stored(folder)
    total, most = sum(size for _, size, _ in entries), limit()
    for _, size, files in entries:
        if total <= most:
            break
        if files[0].stem != keep:
            delete(*files)
            total -= size
    return total


def delete(*paths: Path) -> None:
    """Delete files, as far as that can be done."""
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()
