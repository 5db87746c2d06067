"""Files that are installed with the package."""

import json
import logging
from functools import lru_cache
from importlib.resources import files
from typing import Any

_LOG = logging.getLogger("tvm_scan")


def licence_text() -> str:
    """Return the text of the Apache License 2.0, the sample text of ``tvm-scan demo``."""
    return files("tvm_scan").joinpath("data/LICENSE.txt").read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def shipped_text() -> tuple[str, ...]:
    """Return the manifests of the tuning records that are installed with the package."""
    # A folder of data; nothing of the package it lies in is used here.
    folder = files("tvm_scan.meta").joinpath("records")
    if not folder.is_dir():
        return ()
    folders = sorted(folder.iterdir(), key=lambda path: path.name)
    manifests = [path.joinpath("manifest.json") for path in folders if path.is_dir()]
    return tuple(_text(manifest) for manifest in manifests if manifest.is_file())


def _text(resource: Any) -> str:
    try:
        return str(resource.read_bytes().decode("utf-8", errors="replace"))
    except OSError:  # as good as none
        return ""


def shipped_manifests() -> list[dict[str, Any]]:
    """Return them read; each has the records of one kind of machine.

    One that was damaged is left out: every plan asks for them, and does without.
    """
    return [manifest for text in shipped_text() if (manifest := _manifest(text)) is not None]


def _manifest(text: str) -> dict[str, Any] | None:
    try:
        manifest = json.loads(text)
        kinds = [type(manifest[name]) for name in ("machine", "records", "defaults")]
    except (ValueError, KeyError, TypeError, RecursionError):
        kinds = []
    if kinds == [dict, dict, list]:
        return manifest  # type: ignore[no-any-return]
    _LOG.warning("a manifest of shipped records is damaged and left out; install tvm_scan again")
    return None
