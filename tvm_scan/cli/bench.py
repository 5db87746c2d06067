"""``tvm-scan bench``: the measurements of the repository's folder ``bench``."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from tvm_scan.cli.support.failure import CommandError
from tvm_scan.cli.support.options import Json
from tvm_scan.cli.support.terminal import print_json

#: What follows the name belongs to the script.
SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True}
_FOLDER = Path(__file__).resolve().parents[2] / "bench"


def command(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(help="which one; what follows it are its own arguments")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure: tvm-scan bench cpu, and the others; without a name, list them.

    They are in tvm_scan's repository, not in the installed package.

    Example: tvm-scan bench
    """
    scripts = _scripts()
    if not scripts:
        raise CommandError(
            f"bench: expected the scripts of tvm_scan's repository in {_FOLDER}, found none; clone "
            "the repository and install it with pip install -e '.[bench]'"
        )
    if name is None:
        if as_json:
            print_json(scripts)
        else:
            width = max(map(len, scripts))
            for script, line in scripts.items():
                print(f"{script:<{width}}  {line}")
        return
    if name not in scripts:
        raise CommandError(
            f"bench: expected one of {', '.join(scripts)}, got {name!r}; choose one of them"
        )
    paths = [str(_FOLDER.parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    options = ["--json"] if as_json else []
    command = [sys.executable, "-m", f"bench.{name}", *options, *context.args]
    code = subprocess.call(command, env=environment)
    if code:
        raise typer.Exit(code)


def _scripts() -> dict[str, str]:
    """First line of the text of every script that can be run, by name."""
    scripts = {}
    for path in sorted(_FOLDER.glob("*.py")):
        text = path.read_text(encoding="utf-8")
        if '__name__ == "__main__"' in text:
            said = ast.get_docstring(ast.parse(text)) or ""
            scripts[path.stem] = said.split("\n", 1)[0]
    return scripts
