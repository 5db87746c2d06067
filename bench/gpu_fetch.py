"""``python -m bench.gpu_fetch FOLDER``: bring peers as source, where there is a network.

``python -m bench.gpu --peers FOLDER`` then compiles there what it needs and imports the rest, on a
machine that has none. Nothing of it belongs into the repository.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

__all__ = ["fetch", "unpack"]

#: Package -> options of pip. Of mamba-ssm the sources are wanted; their metadata needs torch, any.
PACKAGES = {
    "mamba-ssm": ["--no-binary", "mamba-ssm", "--no-build-isolation"],
    "accelerated-scan": [],
    "flash-linear-attention": [],
    "fla-core": [],
    "einops": [],
}


def fetch(folder: Path) -> dict[str, str]:
    """Download and unpack the packages.

    Parameters
    ----------
    folder : Path
        Gets ``archives``, ``packages`` (to import) and ``sources`` (to compile).

    Returns
    -------
    dict
        Package -> why it could not be had; empty where all are there.
    """
    archives = folder / "archives"
    archives.mkdir(parents=True, exist_ok=True)
    # Its setup looks for a GPU's compiler unless told not to build.
    environment = {**os.environ, "MAMBA_SKIP_CUDA_BUILD": "TRUE"}
    failed = {}
    for name, options in PACKAGES.items():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *options]
        done = subprocess.run(
            [*command, "--dest", str(archives), name],
            capture_output=True,
            text=True,
            env=environment,
        )
        if done.returncode != 0:
            failed[name] = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
    unpack(folder)
    return failed


def unpack(folder: Path) -> None:
    """Unpack the archives of a folder: wheels to be imported, the others to be compiled."""
    for path in sorted((folder / "archives").iterdir()):
        if path.suffix == ".whl":
            with zipfile.ZipFile(path) as wheel:
                wheel.extractall(folder / "packages")
        elif path.name.endswith(".tar.gz"):
            with tarfile.open(path) as archive:
                archive.extractall(folder / "sources", filter="data")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="outside of the repository")
    folder = parser.parse_args().folder
    failed = fetch(folder)
    for name, reason in failed.items():
        print(f"{name}: {reason}")
    print(f"there: {', '.join(p.name for p in sorted((folder / 'archives').iterdir()))}")
    print(f"on the machine with the GPU: python -m bench.gpu --peers {folder}")
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
