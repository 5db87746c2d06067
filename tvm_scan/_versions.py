"""The check that what another installation measured holds for this one."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from typing import Any

import tvm_scan


def tvm_version() -> str:
    """Version of the TVM that is installed."""
    try:
        return metadata.version("apache-tvm")
    except metadata.PackageNotFoundError:
        import tvm

        return str(tvm.__version__)


def why_foreign(facts: Mapping[str, Any] | None) -> str | None:
    """Return why a record is not for this installation; None where it is.

    Parameters
    ----------
    facts : mapping or None
        Its provenance; None where the manifest has nothing.

    Returns
    -------
    str or None
        What was expected and found.
    """
    if facts is None:
        return "expected a record whose versions the manifest names, found none there"
    here = {"tvm": tvm_version(), "tvm_scan": tvm_scan.__version__}
    for name, version in here.items():
        found = str(facts.get(name, "none"))
        if found.split(".")[:2] != version.split(".")[:2]:
            return f"expected a record of {name} {version}, found one of {found}"
    return None
