"""The on-disk cache of built kernels.

One folder per user, one pair of files per entry: the library, and a small JSON file with its
size and SHA-256 that is written last. Loading a library runs its code, so nothing is read from a
folder or file that another user owns or may write to. Files of other names than an entry's, in a
folder that was not made for this, are never touched.

Environment: ``TVM_SCAN_CACHE`` names the folder (``off`` turns the cache off),
``TVM_SCAN_CACHE_MB`` limits its size (else what `set_limit` was given, else 256; what was used
longest ago goes first).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from tvm_scan._files import is_part, write_private

__all__ = [
    "CacheEntry",
    "CacheInfo",
    "cache_folder",
    "clear",
    "entries",
    "fetch",
    "info",
    "insert",
    "locked",
    "remove",
    "set_limit",
]

_DEFAULT_MEGABYTES = 256
_LOCK_TIMEOUT = 300.0
_LIMIT_FILE = "limit.txt"
#: Files of an entry: a key of `hashlib` and what it is.
_NAME = re.compile(r"([0-9a-f]{40})\.(json|so|txt|lock)")


@dataclass(frozen=True)
class CacheInfo:
    """Contents of the cache: its folder (None: turned off), entries, and bytes."""

    folder: Path | None
    entries: int
    bytes: int
    limit: int


@dataclass(frozen=True)
class CacheEntry:
    """One entry: its key, what it is, its bytes, and when it was last used (seconds, epoch)."""

    key: str
    what: str
    bytes: int
    used: float


def cache_folder() -> Path | None:
    """Return the folder of the cache, made if need be; None where the cache is off or unusable.

    A folder that somebody else owns, or that others may write to, is not used, nor one whose name
    is no text, which TVM could not load a library from.
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
        return folder if _is_private(folder) and os.access(folder, os.W_OK) else None
    except (OSError, UnicodeEncodeError):
        return None


def _limit() -> int:
    named = os.environ.get("TVM_SCAN_CACHE_MB", "")
    if not named:
        folder = cache_folder()
        with contextlib.suppress(OSError, ValueError):
            if folder is not None and _is_private(folder / _LIMIT_FILE):
                return _megabytes((folder / _LIMIT_FILE).read_text(encoding="utf-8")) << 20
        return _DEFAULT_MEGABYTES << 20
    try:
        return _megabytes(named) << 20
    except ValueError:
        raise ValueError(
            f"tvm_scan: expected a number of megabytes in TVM_SCAN_CACHE_MB, got {named!r}; "
            "set it to 256, for instance"
        ) from None


def _megabytes(text: str) -> int:
    if re.fullmatch(r"[0-9]{1,12}", text.strip()) is None:
        raise ValueError(f"expected a number of megabytes, got {text!r}")
    return int(text)


def set_limit(megabytes: int) -> None:
    """Limit the size of the cache from now on, in every process; evict what is too much.

    ``TVM_SCAN_CACHE_MB`` comes before it where it is set.

    Parameters
    ----------
    megabytes : int
        At least 0.

    Raises
    ------
    ValueError
        If the number is negative, or there is no cache to limit.
    """
    folder = cache_folder()
    if megabytes < 0 or folder is None:
        found = f"{megabytes} megabytes" if folder else "a cache that is off or not writable"
        raise ValueError(
            f"tvm_scan: expected a cache and a limit of at least 0 megabytes, got {found}; "
            "unset TVM_SCAN_CACHE, or pass a limit such as 256"
        )
    try:
        write_private(folder / _LIMIT_FILE, str(megabytes).encode())
    except OSError as error:
        raise ValueError(
            f"tvm_scan: expected to write {folder / _LIMIT_FILE}, got: {error.strerror}; make room"
        ) from error
    _evict(folder, keep="")


def _is_private(path: Path) -> bool:
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
    lock = FileLock(folder / f"{key}.lock", timeout=_LOCK_TIMEOUT, mode=0o600)
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
        if not (_is_private(path) and _is_private(label)):
            return None
        expected = _label_at(label)
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
        _remove(*(folder / f"{key}.{kind}" for kind in ("json", "so", "txt")))


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
    _evict(folder, keep=key)
    return path


def info() -> CacheInfo:
    """Describe the cache."""
    folder = cache_folder()
    entries = _entries(folder) if folder is not None else []
    return CacheInfo(folder, len(entries), sum(size for _, size, _ in entries), _limit())


def entries() -> list[CacheEntry]:
    """List the entries, the latest used first."""
    folder, found = cache_folder(), []
    for used, size, files in _entries(folder) if folder is not None else []:
        what = ""
        with contextlib.suppress(OSError):
            what = str(_label_at(files[0]).get("what", ""))
        found.append(CacheEntry(files[0].stem, what, size, used))
    return found[::-1]


def clear() -> int:
    """Remove every entry, and what an interrupted process left; return how many there were."""
    folder = cache_folder()
    if folder is None:
        return 0
    found = _entries(folder)
    for _, _, files in found:
        _remove(*files)
    for path in filter(is_part, folder.iterdir()):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _LOCK_TIMEOUT:
                _remove(path)
    return len(found)


def _label(content: bytes, what: str) -> dict[str, object]:
    return {"size": len(content), "sha256": hashlib.sha256(content).hexdigest(), "what": what}


def _label_at(path: Path) -> dict[str, Any]:
    """The text of a label as data; empty where it says nothing that can be read."""
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _entries(folder: Path) -> list[tuple[float, int, list[Path]]]:
    """Time of last use, bytes and files of every entry, oldest first; the label leads."""
    groups: dict[str, list[os.DirEntry[str]]] = {}
    with os.scandir(folder) as files:  # once: there may be thousands
        for file in files:
            named = _NAME.fullmatch(file.name)
            if named is not None:
                groups.setdefault(named[1], []).append(file)
    found = []
    for key, members in groups.items():
        members.sort(key=lambda file: file.name != f"{key}.json")
        if members[0].name == f"{key}.json":
            with contextlib.suppress(OSError):
                sizes = [file.stat().st_size for file in members]
                paths = [Path(file.path) for file in members]
                found.append((members[0].stat().st_mtime, sum(sizes), paths))
    return sorted(found, key=lambda entry: entry[0])


def _evict(folder: Path, keep: str) -> None:
    entries = _entries(folder)
    total, limit = sum(size for _, size, _ in entries), _limit()
    for _, size, files in entries:
        if total <= limit:
            return
        if files[0].stem != keep:
            _remove(*files)
            total -= size


def _remove(*paths: Path) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()
