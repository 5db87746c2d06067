"""Linking a kernel by the linker itself, which a compiler takes ten times as long to call."""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import lru_cache
from typing import Any


def link(library: str, objects: list[str], **options: Any) -> None:
    """Make a shared library of object files: an ``fcompile`` of TVM's ``export_library``.

    Parameters
    ----------
    library : str
        The path to write.
    objects : list of str
        Paths of object files, of C sources where TVM has those.
    **options : object
        Of TVM's ``create_shared``, which links where there are any, where there is no GNU linker,
        and where it fails.

    Raises
    ------
    RuntimeError
        As ``create_shared``: there is no compiler, or it fails.
    """
    from tvm.support import cc

    command, support = shutil.which("ld"), _libgcc()
    if command and support and not options and all(name.endswith(".o") for name in objects):
        # What a compiler adds for C; kernels call TVM's runtime, which the process has, and these.
        words = [command, "-shared", "-o", library, *objects, support, "--as-needed", "-lm", "-lc"]
        if not subprocess.run(words, capture_output=True).returncode:
            return
    cc.create_shared(library, objects, **options)


@lru_cache(maxsize=1)
def _libgcc() -> str:
    """The functions that compilers call where the processor has no instruction; '' if unknown."""
    from tvm.support import cc

    if not sys.platform.startswith("linux"):
        return ""
    try:
        words = [cc.get_cc(), "-print-libgcc-file-name"]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
    except (OSError, TypeError, ValueError, subprocess.CalledProcessError):
        return ""  # no compiler: the message is `create_shared`'s
    return done.stdout.strip()
