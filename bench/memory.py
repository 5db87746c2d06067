"""The memory that a call needs beside what is there before it."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["peak_bytes"]


def peak_bytes(call: Callable[[], Any]) -> int | None:
    """Bytes by which the resident memory of this process rises at most during a call.

    Parameters
    ----------
    call : callable
        Called twice: the second call is looked at, which finds its threads and code there. What
        a library holds on to from the first call is counted as there before.

    Returns
    -------
    int or None
        None where the kernel does not tell (other systems than Linux).
    """
    call()
    try:
        # Memory that was freed but kept by the allocator would hide what the call takes.
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmRSS")
        call()
        return max(0, _status("VmHWM") - before)
    except (OSError, AttributeError):
        return None


def _status(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.M)
    if found is None:
        raise OSError(f"/proc/self/status has no {name}")
    return int(found[1]) << 10
