"""Where a result comes from: its commit, its command line, and both in words."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["command", "commit", "origin"]


def origin(about: Mapping[str, Any]) -> str:
    """What a page says of its result's origin, or that the result does not say it.

    Parameters
    ----------
    about : mapping
        What the result says of its machine.
    """
    if "command" not in about:
        return "neither its commit nor its command is known: it is older than that rule"
    return f"commit {about['commit'] or 'unknown'}, `{about['command']}`"


def commit() -> str | None:
    """The commit that is measured, with a plus where files differ from it; None without git."""
    found = _git("rev-parse", "--short=12", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", *_MEASURED)
    return found and found + ("+" if changed else "")


#: Folders whose changes change what is measured.
_MEASURED = ("tvm_scan", "schedules", "meta", "bench", ":!bench/results")
_ROOT = Path(__file__).resolve().parents[1]


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=_ROOT, capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def command() -> str:
    """The command line of this process; of files outside of the repository the names alone."""
    told = [_told(argument) for argument in sys.argv[1:]]
    return " ".join(["python -m", f"bench.{Path(sys.argv[0]).stem}", *told])


def _told(argument: str) -> str:
    path = Path(argument)
    if not path.is_absolute():
        return argument
    return str(path.relative_to(_ROOT)) if path.is_relative_to(_ROOT) else path.name
