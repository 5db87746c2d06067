"""Origin of a record: versions, machine, date, seed; and whether it may be used here."""

from __future__ import annotations

import subprocess
from datetime import datetime, timezone
from typing import Any

from tvm.target import Target

import tvm_scan
from tvm_scan._versions import tvm_version
from tvm_scan.meta.store.host import host_facts
from tvm_scan.schedules.machine.device import device_of
from tvm_scan.schedules.machine.machine import Machine


def provenance(target: Target, seed: int) -> dict[str, Any]:
    """Facts about this process and machine, for the manifest of a database.

    Parameters
    ----------
    target : tvm.target.Target
        What was tuned for.
    seed : int
        Of the search.

    Returns
    -------
    dict
        Strings and numbers only.
    """
    facts: dict[str, Any] = {
        "tvm": tvm_version(),
        "tvm_scan": tvm_scan.__version__,
        **host_facts(),
        "cores": Machine.of(target).cores,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "seed": seed,
    }
    if device_of(target).is_gpu:
        facts |= _gpu()
    return facts


def _gpu() -> dict[str, str]:
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
        name, driver = done.stdout.splitlines()[0].split(", ")
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return {"gpu": "none", "driver": "none"}
    return {"gpu": name, "driver": driver}
