"""What runs on which kind of GPU: schedules times families on software drivers, counts of kernels.

    python -m bench.targets [--quick] [--json bench/results/targets.json] [--pages]

No times: a software driver says nothing of a GPU's.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from tvm.target import Target

from bench.targets_pages import PAGES, page
from bench.timing import machine
from tests.devices.table import (
    ALGEBRAS,
    BUILDERS,
    DRIVERS,
    READ,
    TARGETS,
    faults,
    listed,
    problem,
    program,
    refusal,
)
from tests.devices.test_table import LACKED, lengths
from tests.support.drivers import emit, metal, run
from tests.support.drivers.amdgpu import resources_of
from tvm_scan import ScanPlan, default_plan, extract, library, parallelize
from tvm_scan.arguments import as_target, host_target
from tvm_scan.errors import PlanError
from tvm_scan.schedules.launch import opencl

__all__ = ["main"]

_RECURRENCES = {
    "linear_recurrence(4, 4096)": lambda: library.linear_recurrence(4, 4096),
    "cummax(4, 4096)": lambda: library.cummax(4, 4096),
}
_PLANS = (
    "",
    "cuda/serial_tiles(threads_per_block=128, items_per_thread=4)",
    "cuda/three_phase(threads_per_block=128, items_per_thread=4, block_tree=kogge_stone)",
)
_OPTIONS = {"cuda": {"arch": "sm_90"}, "rocm": {"mcpu": "gfx90a"}}
_BARRIER = {
    "cuda": "__syncthreads()",
    "opencl": opencl.BARRIER,
    "webgpu": "workgroupBarrier()",
    "vulkan": "workgroupBarrier()",
    "metal": metal.BARRIER,
    "rocm": "s_barrier\n",
}


def outcomes(quick: bool = False) -> dict[str, dict[str, dict[str, str]]]:
    """Try every triple of the tests' table: device, builder, algebra -> what became of it.

    With ``quick``, two algebras.
    """
    found: dict[str, dict[str, dict[str, str]]] = {}
    for device in TARGETS:
        for builder in BUILDERS:
            row = found.setdefault(device, {}).setdefault(builder, {})
            for algebra in list(ALGEBRAS)[: 2 if quick else None]:
                row[algebra] = _outcome(device, builder, algebra)
            print(device, builder, dict(Counter(row.values())), flush=True)
    return found


def _outcome(device: str, builder: str, algebra: str) -> str:
    if listed(device, builder, algebra) is not None:
        return "refused"
    if device in READ and (said := faults(device, builder, algebra)):
        return f"faulty: {said[0]}"
    if device not in DRIVERS:
        return "well-formed"
    driver = DRIVERS[device].driver()
    lacked = LACKED.get((device, algebra))
    if lacked and lacked not in driver.extensions:
        return "driver lacks it"
    kernels = program(device, builder, algebra)
    for length in lengths(builder):
        inputs, want, tolerance = problem(algebra, length)
        got = run(kernels, driver, [*inputs, *(np.full_like(a, 77) for a in want)])[len(inputs) :]
        for array, expected in zip(got, want, strict=True):
            if not np.allclose(array, expected, rtol=tolerance, atol=tolerance):
                return "wrong"
    return "right"


def refusals(quick: bool = False) -> dict[str, dict[str, int]]:
    """Count the plans of the table that each device refuses, by what is said of them."""
    found: dict[str, dict[str, int]] = {}
    for device in TARGETS:
        told = Counter[str]()
        for builder in BUILDERS:
            for algebra in list(ALGEBRAS)[: 2 if quick else None]:
                said = refusal(device, builder, algebra)
                if said is not None:
                    told[_without_plan(said)] += 1
        found[device] = dict(told.most_common())
    return found


def _without_plan(said: str) -> str:
    """A refusal without the check's name and the plan's, which stand at its ends."""
    return re.sub(r" \(cuda/.*\)$", "", said.removeprefix("ScanPlan.check: "))


def counts() -> list[dict[str, Any]]:
    """Kernels, barriers, shared memory and registers of some plans on every target."""
    rows = []
    for name, make in _RECURRENCES.items():
        for kind in _BARRIER:
            target = as_target({"kind": kind, **_OPTIONS.get(kind, {})}, "bench.targets")
            assert target is not None
            for text in _PLANS:
                rows.append(_count(name, make(), target, text))
    return [row for row in rows if row]


def _count(name: str, func: Any, target: Target, text: str) -> dict[str, Any] | None:
    kind, recurrence = str(target.kind.name), extract(func)
    plan = ScanPlan.parse(text) if text else default_plan(target, recurrence)
    try:
        scheduled = parallelize(func, target, plan)
    except PlanError:
        return None
    kernels = list(emit(scheduled, target).kernels.values())
    taken = [resources_of(k.source) for k in kernels] if kind == "rocm" else []
    return {
        "recurrence": name,
        "target": kind,
        "plan": str(plan),
        "default": not text,
        "kernels": len(kernels),
        "barriers": [k.source.count(_BARRIER[kind]) for k in kernels],
        "shared": plan.smem_bytes(recurrence),
        "buffers": max(k.parameters.count("buffer") for k in kernels),
        "registers": [[t.vector_registers, t.scalar_registers, t.scratch] for t in taken],
    }


def main() -> int:
    """Run all, and write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="where the result is written")
    parser.add_argument("--pages", action="store_true", help="write the figures of the pages")
    parser.add_argument("--quick", action="store_true", help="two families")
    asked = parser.parse_args()
    missing = [why for d in DRIVERS.values() if (why := d.why_unavailable())]
    if missing:
        print("\n".join(missing), file=sys.stderr)
        return 1
    drivers = {kind: module.driver().name for kind, module in DRIVERS.items()}
    found = {
        "machine": machine(host_target()),
        "drivers": drivers,
        "outcomes": outcomes(asked.quick),
        "refusals": refusals(asked.quick),
        "counts": counts(),
    }
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if asked.pages:
        for name in PAGES:
            path = Path(name)
            path.write_text(page(path, found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
