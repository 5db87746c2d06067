"""Plans of the records that are shipped, by kind of machine.

The records lie in ``meta/records``, one folder for each kind of machine, with a manifest that has
what is needed here; nothing is replayed, so that a look-up costs a fraction of a millisecond.
``TVM_SCAN_RECORDS=off`` leaves them out.
"""

from __future__ import annotations

import logging
import os
from functools import lru_cache
from typing import Any

from tvm.target import Target

from tvm_scan._resources import shipped_manifests
from tvm_scan._versions import why_foreign
from tvm_scan.delta_rule import TimeLoop
from tvm_scan.errors import PlanError
from tvm_scan.schedules.choose.nearest import Known, nearest
from tvm_scan.schedules.common.sizes import sizes_of
from tvm_scan.schedules.machine.machine import Machine
from tvm_scan.schedules.plan import ScanPlan

_LOG = logging.getLogger("tvm_scan")


def shipped_plan(target: Target, recurrence: TimeLoop) -> ScanPlan | None:
    """The plan of a shipped record; None where there is none of this machine and shape.

    Parameters
    ----------
    target : tvm.target.Target
        Its kind, processor and number of cores must be the record's.
    recurrence : Recurrence or DeltaRule
        With constant lanes and steps; for others the default knows as much.
    """
    if os.environ.get("TVM_SCAN_RECORDS", "").lower() in ("off", "0") or None in sizes_of(
        recurrence
    ):
        return None
    known = _known(tuple(sorted(machine_key(target).items())))
    record = nearest(known, target, recurrence) if known else None
    if record is not None:
        _LOG.debug("shipped record %s gives %s", record.record, record.plan)
    return None if record is None else record.plan


def machine_key(target: Target) -> dict[str, Any]:
    """Facts that two machines must have in common to exchange their records.

    Parameters
    ----------
    target : tvm.target.Target
        Of a CPU or a GPU.

    Returns
    -------
    dict
        Kind, processor and number of cores.
    """
    attrs = dict(target.attrs) if target.attrs is not None else {}
    processor = str(attrs.get("mcpu") or attrs.get("arch") or "")
    machine = Machine.of(target)
    return {"kind": machine.device.name, "processor": processor, "cores": machine.cores}


@lru_cache(maxsize=8)
def _known(machine: tuple[tuple[str, Any], ...]) -> tuple[Known, ...]:
    """Shipped records of a machine."""
    plans = []
    for manifest in shipped_manifests():
        if manifest["machine"] != dict(machine):
            continue
        reason = why_foreign(manifest)
        if reason is not None:
            _LOG.info("the shipped records of this machine are not used: %s", reason)
            continue
        for digest, facts in manifest["records"].items():
            plans += _read(digest, facts)
        # Shapes for which nothing that was measured beats the default.
        shapes = filter(_is_shape, manifest["defaults"])
        plans += [Known(key, rows, length, None, 0.0) for key, rows, length in shapes]
    return tuple(plans)


def _read(digest: str, facts: Any) -> list[Known]:
    try:
        plans = [ScanPlan.parse(text) for text in facts["plans"]]
        shapes, seconds = facts["shapes"], float(facts["seconds"])
        if not all(map(_is_shape, shapes)) or len(shapes) != len(plans):
            raise PlanError(f"expected a shape for each of {len(plans)} plans, got {shapes}")
    # Of a field that this version no longer has, or damaged.
    except (PlanError, KeyError, TypeError, ValueError, AttributeError) as error:
        _LOG.info("shipped record %s is not used: %s", digest, error)
        return []
    return [
        Known(key, rows, length, plan, seconds, digest)
        for (key, rows, length), plan in zip(shapes, plans, strict=True)
    ]


def _is_shape(shape: Any) -> bool:
    """Key, lanes and steps."""
    return isinstance(shape, list) and [type(part) for part in shape] == [str, int, int]
