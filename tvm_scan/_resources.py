"""Files that are installed with the package."""

from importlib.resources import files

__all__ = ["licence_text"]


def licence_text() -> str:
    """Return the text of the Apache License 2.0, the sample text of ``tvm-scan demo``."""
    return files("tvm_scan").joinpath("data", "LICENSE.txt").read_text(encoding="utf-8")
