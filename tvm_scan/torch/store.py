"""The on-disk cache of built kernels: what is in it, and how much may be.

Environment: ``TVM_SCAN_CACHE`` names the folder (``off`` turns the cache off),
``TVM_SCAN_CACHE_MB`` limits its size (else what `set_limit` was given, else 256; what was used
longest ago goes first). `entries` says how it is kept.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path

from tvm_scan._files import is_part, write_private
from tvm_scan.torch.entries import (
    LIMIT_FILE,
    LOCK_TIMEOUT,
    cache_folder,
    delete,
    evict,
    label_at,
    limit,
    stored,
)

__all__ = [
    "CacheEntry",
    "CacheInfo",
    "cache_folder",
    "clear",
    "entries",
    "info",
    "set_limit",
]


@dataclass(frozen=True)
class CacheInfo:
    """Contents of the cache.

    Attributes
    ----------
    folder : Path or None
        Where it is; None where it is turned off.
    entries : int
        Number of entries.
    bytes, limit : int
        What they take, and may take, in bytes.
    """

    folder: Path | None
    entries: int
    bytes: int
    limit: int


@dataclass(frozen=True)
class CacheEntry:
    """One entry of the cache.

    Attributes
    ----------
    key : str
        40 hexadecimal digits: a hash of all that the entry depends on.
    what : str
        The kernel, plan or trace.
    bytes : int
        Size of its files.
    used : float
        When it was last used, in seconds since the epoch.
    """

    key: str
    what: str
    bytes: int
    used: float


def info() -> CacheInfo:
    """Describe the cache.

    Returns
    -------
    CacheInfo
        Its folder, how many entries there are, and their bytes.

    Raises
    ------
    ValueError
        If ``TVM_SCAN_CACHE_MB`` is no number of megabytes.
    """
    folder = cache_folder()
    entries = stored(folder) if folder is not None else []
    return CacheInfo(folder, len(entries), sum(size for _, size, _ in entries), limit())


def entries() -> list[CacheEntry]:
    """List the entries.

    Returns
    -------
    list of CacheEntry
        The latest used first; empty where the cache is off.
    """
    folder, listed = cache_folder(), []
    for used, size, files in stored(folder) if folder is not None else []:
        what = ""
        with contextlib.suppress(OSError):
            what = str(label_at(files[0]).get("what", ""))
        listed.append(CacheEntry(files[0].stem, what, size, used))
    return listed[::-1]


def clear() -> int:
    """Remove every entry, and what an interrupted process left.

    Returns
    -------
    int
        How many entries there were.
    """
    folder = cache_folder()
    if folder is None:
        return 0
    stored_entries = stored(folder)
    for _, _, files in stored_entries:
        delete(*files)
    for path in filter(is_part, folder.iterdir()):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > LOCK_TIMEOUT:
                delete(path)
    return len(stored_entries)


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
        write_private(folder / LIMIT_FILE, str(megabytes).encode())
    except OSError as error:
        raise ValueError(
            f"tvm_scan: expected to write {folder / LIMIT_FILE}, got: {error.strerror}; make room"
        ) from error
    evict(folder, keep="")
