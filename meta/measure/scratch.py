"""Leftovers of a search outside its records: temporary files and worker processes.

Both go with the search. A process that is killed cannot tidy up: its workers end by themselves, and
its folder, whose lock nobody holds any more, is removed by the next search on the machine.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

_PREFIX, _LOCK = "tvm-scan-run-", ".lock"
#: Seconds within which a folder may not have its lock yet.
_YOUNG = 60.0
#: Seconds that the threads of a pool have to end, once their workers are gone.
_PATIENCE = 10.0
#: Of this process, and of those that it forked from: whose folder is not theirs.
_own: dict[int, tuple[Path, FileLock]] = {}


def scratch_folder() -> Path:
    """The folder of this process for files that nobody needs once it has ended.

    Returns
    -------
    Path
        A private folder, removed at exit.
    """
    pid = os.getpid()
    if pid not in _own or not _own[pid][0].is_dir():
        _sweep()
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        lock = FileLock(folder / _LOCK)
        lock.acquire()
        _own[pid] = folder, lock
        atexit.register(_remove, pid)
    return _own[pid][0]


def _remove(pid: int) -> None:
    # A forked child that ends has inherited this, but owns nothing.
    if pid == os.getpid() and pid in _own:
        folder, lock = _own.pop(pid)
        shutil.rmtree(folder, ignore_errors=True)
        lock.release()


def _sweep() -> None:
    """Remove what processes of this user left that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError, Timeout):
            about = folder.lstat()
            mine = not hasattr(os, "getuid") or about.st_uid == os.getuid()
            if not (mine and stat.S_ISDIR(about.st_mode)) or about.st_mode & 0o077:
                continue
            if time.time() - about.st_mtime < _YOUNG:
                continue
            with FileLock(folder / _LOCK).acquire(timeout=0):
                shutil.rmtree(folder, ignore_errors=True)


def worker_initializer(then: Callable[[], None] | None = None) -> Callable[[], None]:
    """Make what a worker process runs first: it ends with this process, and keeps its files there.

    Parameters
    ----------
    then : callable, optional
        Runs next.

    Returns
    -------
    callable
        For the ``initializer`` of TVM's builders and runners.
    """
    return partial(_prepare, os.getpid(), str(scratch_folder()), then)


def _prepare(parent: int, folder: str, then: Callable[[], None] | None) -> None:
    os.environ["TMPDIR"] = tempfile.tempdir = folder  # of the compilers that it starts, too
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    if then is not None:
        then()


def _end_with(parent: int) -> None:
    """End this process, and what it started, when its parent has ended."""
    try:
        handle = os.pidfd_open(parent)  # woken once: what is timed here is not disturbed
        if os.getppid() == parent:
            select.select([handle], [], [])
    except (AttributeError, OSError):
        while os.getppid() == parent:
            time.sleep(1.0)
    _kill_tree(os.getpid())


def close_pool(runner: Any) -> None:
    """End a runner's worker processes, and what waits for them; a runner may have none.

    Parameters
    ----------
    runner : Runner
        One of TVM's, or of a caller's own.
    """
    pool = getattr(runner, "pool", None)
    if pool is None:
        return
    # Else the threads of the pool would start a new worker for each of what is still waiting.
    threads = getattr(pool, "_threadpool", None)
    if threads is not None:
        threads.shutdown(wait=False, cancel_futures=True)
    # Its own way to end a worker begins with closing what a thread may be reading from, which waits
    # for the worker's answer: one whose machine is gone has none. A thread whose worker is gone
    # ends it in the same way, and two at once fail: the threads come first.
    until = time.monotonic() + _PATIENCE
    while any(t.is_alive() for t in getattr(threads, "_threads", ())):
        for worker in list(getattr(pool, "_worker_map", {}).values()):
            if (process := getattr(worker, "_proc", None)) is not None:
                _kill_tree(process.pid)
        if time.monotonic() > until:
            break
        time.sleep(0.02)
    pool.shutdown(wait=False)


def _kill_tree(pid: int) -> None:
    """End a process's children, theirs too, and then the process."""
    import psutil

    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for each in (*process.children(recursive=True), process):
            with contextlib.suppress(psutil.Error):
                each.kill()
