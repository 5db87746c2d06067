"""Files that are installed with the package."""

import json
from functools import lru_cache
from importlib.resources import files
from typing import Any

__all__ = ["licence_text", "shipped_manifests", "shipped_text"]


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
    found = sorted(folder.iterdir(), key=lambda one: one.name)
    manifests = [one.joinpath("manifest.json") for one in found if one.is_dir()]
    return tuple(one.read_text(encoding="utf-8") for one in manifests if one.is_file())


def shipped_manifests() -> list[dict[str, Any]]:
    """Return them read; each has the records of one kind of machine."""
    return [json.loads(text) for text in shipped_text()]
