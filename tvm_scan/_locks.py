"""Locks that a forked child may take, whoever held them in the parent."""

from __future__ import annotations

import os
import weakref
from threading import RLock
from typing import Any


class ForkSafeLock:
    """A re-entrant lock, for ``with``, that is new in a forked child.

    Threads other than the one that forks do not exist in the child, and never let go there of
    what they held.
    """

    def __init__(self) -> None:
        self._lock = RLock()
        # What was taken, the latest last: a thread that forks while it holds the lock lets go
        # of the old one in the child.
        self._taken: list[Any] = []
        _locks.add(self)

    def __enter__(self) -> None:
        """Wait for the lock."""
        lock = self._lock
        lock.acquire()
        self._taken.append(lock)

    def __exit__(self, *_: object) -> None:
        """Let go of it."""
        self._taken.pop().release()

    def renew(self) -> None:
        """Forget who holds it."""
        self._lock = RLock()


_locks: weakref.WeakSet[ForkSafeLock] = weakref.WeakSet()


def _after_fork() -> None:
    for lock in list(_locks):
        lock.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
