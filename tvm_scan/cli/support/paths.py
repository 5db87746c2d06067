"""Files and folders that a command is given, looked for before TVM is imported."""

from __future__ import annotations

from pathlib import Path

from tvm_scan.cli.support.failure import CommandError

#: Endings of model files that are no Python text.
MODELS = (".pt2", ".onnx")


def check_file(path: Path, kind: str) -> None:
    """Look for a file.

    Parameters
    ----------
    path : Path
        What was given.
    kind : str
        What it is to be, with its article.

    Raises
    ------
    CommandError
        If there is none.
    """
    if not path.is_file():
        found = "a directory" if path.is_dir() else "nothing"
        raise CommandError(f"expected {kind}, found {found} at {path}; check the path")


def check_program(what: str) -> None:
    """Look for a program: a file, unless it is ``library:NAME``.

    Raises
    ------
    CommandError
        If there is none.
    """
    if not what.startswith("library:"):
        path = Path(what)
        check_file(path, "a model file" if path.suffix in MODELS else "a Python file")


def check_folder(path: Path | None) -> None:
    """Look for the folder that a file is to be written into; None is written nowhere.

    Raises
    ------
    CommandError
        If there is none.
    """
    if path is not None and not path.parent.is_dir():
        raise CommandError(f"expected a folder at {path.parent}, found none; create it")


def check_database(folder: Path) -> None:
    """Look for records in a folder; one that may not be read is left to who reads it.

    Raises
    ------
    CommandError
        If there are none.
    """
    from tvm_scan.meta.store.names import RECORDS

    try:
        missing = not (folder / RECORDS).exists()
        kind = "a folder without one" if folder.is_dir() else "nothing"
    except OSError:
        return
    if missing:
        raise CommandError(
            f"database: expected {RECORDS} in {folder}, found {kind}; give the folder of a tuning "
            "run (tvm-scan tune)"
        )
