"""mypy over tvm_scan, schedules and meta, as one package. Arguments go to mypy.

python -m tests.types

Its settings are in pyproject.toml. A run without changes takes a second, the first one, which reads
torch's annotations, some twenty.
"""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from tests import ROOT

SUBPACKAGES = ("schedules", "meta")  # folders beside tvm_scan/ that setup.py puts inside of it


def main(arguments: list[str], root: Path = ROOT) -> int:
    code, text = report(arguments, root)
    sys.stdout.write(text)
    return code


def report(arguments: list[str], root: Path = ROOT) -> tuple[int, str]:
    """The exit code of mypy and what it says."""
    cache = root / ".mypy_cache"
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml")]
    command += ["--cache-dir", str(cache), "--package", "tvm_scan", *arguments]
    if tuple(map(int, version("numpy").split(".")[:2])) < (2, 3):
        command.append("--allow-any-generics")  # np.ndarray had to say of what, as in Python 3.10
    # From the folder of links: mypy looks for a package in its working directory first.
    folder = linked_package(root, cache / "installed")
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    return done.returncode, in_checkout(done.stdout)


def linked_package(root: Path, folder: Path) -> Path:
    """Lay the package out in a folder as it is installed, by links to the checkout.

    mypy does not read the import hook of an editable installation. Links that are right are left
    alone, so that two runs do not disturb each other.
    """
    package = folder / "tvm_scan"
    package.mkdir(parents=True, exist_ok=True)
    wanted = {path.name: path for path in (root / "tvm_scan").iterdir()}
    wanted |= {name: root / name for name in SUBPACKAGES}
    for link in package.iterdir():
        if wanted.get(link.name) != link.readlink():
            link.unlink(missing_ok=True)
    for name, path in wanted.items():
        if not os.path.lexists(package / name):
            (package / name).symlink_to(path)
    return folder


def in_checkout(report: str) -> str:
    """The report with the paths of the checkout, which an editor opens."""
    inside = tuple(f"tvm_scan/{name}/" for name in SUBPACKAGES)
    return "".join(
        line.removeprefix("tvm_scan/") if line.startswith(inside) else line
        for line in report.splitlines(keepends=True)
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
