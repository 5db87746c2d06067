"""``tvm-scan bench``: the measurements of the repository's folder ``bench``."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

from tvm_scan.cli.support.failure import CommandError
from tvm_scan.cli.support.terminal import print_json

__all__ = ["run_benchmark"]

_FOLDER = Path(__file__).resolve().parents[2] / "bench"


def run_benchmark(name: str | None, arguments: list[str], as_json: bool) -> int:
    """Run one, or list all; returns the exit code.

    Parameters
    ----------
    name : str or None
        Name of the script; None lists them.
    arguments : list of str
        Its own arguments.
    as_json : bool
        Whether to print the list as data.
    """
    found = _scripts()
    if not found:
        raise CommandError(
            f"bench: expected the scripts of tvm_scan's repository in {_FOLDER}, found none; clone "
            "the repository and install it with pip install -e '.[bench]'"
        )
    if name is None:
        if as_json:
            print_json(found)
        else:
            width = max(map(len, found))
            for one, line in found.items():
                print(f"{one:<{width}}  {line}")
        return 0
    if name not in found:
        raise CommandError(
            f"bench: expected one of {', '.join(found)}, got {name!r}; choose one of them"
        )
    paths = [str(_FOLDER.parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-m", f"bench.{name}", *arguments]
    return subprocess.call(command, env=environment)


def _scripts() -> dict[str, str]:
    """First line of the text of every script that can be run, by name."""
    found = {}
    for path in sorted(_FOLDER.glob("*.py")):
        text = path.read_text(encoding="utf-8")
        if '__name__ == "__main__"' in text:
            said = ast.get_docstring(ast.parse(text)) or ""
            found[path.stem] = said.split("\n", 1)[0]
    return found
