"""mypy over tvm_scan, schedules and meta, as one package. Arguments go to mypy.

python -m tests.types

Its settings are in pyproject.toml. A run without changes takes about a second; the first one,
which reads torch's annotations, takes about twenty.
"""

import os
import subprocess
import sys
from pathlib import Path

from tests import ROOT

CACHE = ROOT / ".mypy_cache"
SUBPACKAGES = ("schedules", "meta")  # folders beside tvm_scan/ that setup.py puts inside of it


def main(arguments: list[str]) -> int:
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml")]
    command += ["--cache-dir", str(CACHE), "--package", "tvm_scan", *arguments]
    # From the folder of links: mypy looks for a package in its working directory first.
    done = subprocess.run(command, cwd=linked_package(), stdout=subprocess.PIPE, text=True)
    sys.stdout.write(in_checkout(done.stdout))
    return done.returncode


def linked_package() -> Path:
    """A folder that holds the package as it is installed, as links to the checkout.

    mypy does not read the import hook of an editable installation. Links that are right are left
    alone, so that two runs do not disturb each other.
    """
    folder = CACHE / "installed"
    package = folder / "tvm_scan"
    package.mkdir(parents=True, exist_ok=True)
    wanted = {path.name: path for path in (ROOT / "tvm_scan").iterdir()}
    wanted |= {name: ROOT / name for name in SUBPACKAGES}
    for link in package.iterdir():
        if wanted.get(link.name) != link.readlink():
            link.unlink(missing_ok=True)
    for name, path in wanted.items():
        if not os.path.lexists(package / name):
            (package / name).symlink_to(path)
    return folder


def in_checkout(report: str) -> str:
    """The report with the paths of the checkout, which an editor opens."""
    lines = report.splitlines(keepends=True)
    for name in SUBPACKAGES:
        inside = f"tvm_scan/{name}/"
        lines = [
            line.removeprefix("tvm_scan/") if line.startswith(inside) else line for line in lines
        ]
    return "".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
