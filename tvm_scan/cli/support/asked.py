"""The words by which a function of the library was asked for, kept with its records."""

from __future__ import annotations

import hashlib
from pathlib import Path

__all__ = ["words_of"]

_LIBRARY = Path(__file__).parents[2] / "library"


def words_of(what: str, shape: str | None, dtype: str, target: str) -> str | None:
    """The words that name a function and a target for good.

    Parameters
    ----------
    what, shape, dtype, target : str
        As the command was given them.

    Returns
    -------
    str or None
        With a digest of the library's text, so that a function which was changed has other words;
        None for a file, which may say something else tomorrow.
    """
    if not what.startswith("library:"):
        return None
    texts = b"".join(path.read_bytes() for path in sorted(_LIBRARY.rglob("*.py")))
    digest = hashlib.sha256(texts).hexdigest()[:16]
    return " ".join((what, shape or "-", dtype, target, digest))
