"""What runs on which kind of GPU: schedules times families on software drivers, counts of kernels.

    python -m bench.targets [--quick] [--json bench/results/targets.json] \\
        [--markdown docs/targets.md]

No times: a software driver says nothing of a GPU's.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from tvm.target import Target

from bench.origin import origin
from bench.timing import machine
from tests.devices.table import ALGEBRAS, BUILDERS, DRIVERS, listed, problem, program
from tests.devices.test_table import LACKED, lengths
from tests.support.drivers import emit, run
from tests.support.drivers.amdgpu import resources_of, without_tools
from tvm_scan import ScanPlan, default_plan, extract, library, parallelize
from tvm_scan.arguments import as_target
from tvm_scan.errors import PlanError
from tvm_scan.schedules.machine.device import DEVICES, Device

__all__ = ["main", "page"]

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
    "opencl": "barrier(CLK_LOCAL_MEM_FENCE)",
    "webgpu": "workgroupBarrier()",
    "metal": "threadgroup_barrier(mem_flags::mem_threadgroup)",
    "rocm": "s_barrier\n",
}
_WHERE = {
    "cuda": ("the simulated device of the tests, in several orders, under a race detector", "nvcc"),
    "opencl": ("{opencl}", ""),
    "webgpu": ("{webgpu}, by wgpu; pages in Chromium", ""),
    "vulkan": (
        "the WGSL of `webgpu`, which wgpu hands to a Vulkan driver as SPIR-V",
        "TVM's wheels have no generator of SPIR-V",
    ),
    "metal": ("nowhere", "text, held against its structure"),
    "rocm": ("nowhere", "code objects of gfx90a by the LLVM in TVM: no scratch memory, no spills"),
}


def outcomes(quick: bool = False) -> dict[str, dict[str, dict[str, str]]]:
    """Run every triple of the tests' table: device, builder, algebra -> what became of it.

    With ``quick``, two algebras.
    """
    found: dict[str, dict[str, dict[str, str]]] = {}
    for device in DRIVERS:
        for builder in BUILDERS:
            row = found.setdefault(device, {}).setdefault(builder, {})
            for algebra in list(ALGEBRAS)[: 2 if quick else None]:
                row[algebra] = _outcome(device, builder, algebra)
            print(device, builder, dict(Counter(row.values())), flush=True)
    return found


def _outcome(device: str, builder: str, algebra: str) -> str:
    if listed(device, builder, algebra) is not None:
        return "refused"
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
    with without_tools():
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


def page(found: dict[str, Any]) -> str:
    """The page of a result."""
    lines = [_HEAD.format(origin=origin(found["machine"]), **found["drivers"])]
    lines += ["| target | run on | compiled |", "|---|---|---|"]
    for kind, (ran, compiled) in _WHERE.items():
        lines.append(f"| `{kind}` | {ran.format(**found['drivers'])} | {compiled} |")
    lines += ["", "## What a device has", "", _ROWS]
    lines += ["| | " + " | ".join(f"`{kind}`" for kind in _WHERE) + " |"]
    lines.append("|---|" + "---|" * len(_WHERE))
    rows = [DEVICES[kind] for kind in _WHERE]
    for label, value in _FACTS.items():
        lines.append(f"| {label} | " + " | ".join(str(value(row)) for row in rows) + " |")
    lines += ["", "## Schedules and families on the drivers", "", _MATRIX]
    devices = list(found["outcomes"])
    lines.append("| schedule | " + " | ".join(f"`{d}`" for d in devices) + " |")
    lines.append("|---|" + "---|" * len(devices))
    total = {device: Counter[str]() for device in devices}
    for builder in BUILDERS:
        cells = []
        for device in devices:
            told = Counter(found["outcomes"][device][builder].values())
            total[device] += told
            cells.append(_told(told))
        lines.append(f"| {builder} | " + " | ".join(cells) + " |")
    lines.append("| all | " + " | ".join(_told(total[d]) for d in devices) + " |")
    lines += ["", "## Counts of kernels", "", _COUNTS]
    lines.append("| recurrence | target | plan | barriers | shared bytes | buffers | registers |")
    lines.append("|---|---|---|---|---:|---:|---|")
    for row in found["counts"]:
        marks = " (default)" if row["default"] else ""
        registers = ", ".join(f"{v} + {s}" for v, s, _ in row["registers"])
        lines.append(
            f"| {row['recurrence']} | `{row['target']}` | `{row['plan']}`{marks} | "
            f"{', '.join(map(str, row['barriers']))} | {row['shared']} | {row['buffers']} | "
            f"{registers} |"
        )
    return "\n".join(lines) + "\n"


def _told(outcomes: Counter[str]) -> str:
    return ", ".join(f"{outcomes[o]} {o}" for o in _OUTCOMES if outcomes[o]) or "none"


_OUTCOMES = ("right", "wrong", "refused", "driver lacks it")


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _lacks(row: Device) -> str:
    return ", ".join(sorted(row.lacks)) or "none"


_FACTS = {
    "threads of a block": lambda row: row.threads,
    "shared memory of a block": lambda row: row.shared_bytes,
    "blocks of a grid": lambda row: row.blocks,
    "buffers of a kernel": lambda row: row.buffers,
    "threads of a warp": lambda row: row.warp,
    "barriers of a warp": lambda row: _yes(row.warp_barrier),
    "shuffles that are used": lambda row: _yes(bool(row.shuffles) and row.warp == 32),
    "asynchronous copies": lambda row: _yes(row.async_copies),
    "look-back (release, acquire)": lambda row: _yes(row.ordered_memory),
    "bits of a load": lambda row: row.vector_bits,
    "dtypes that it lacks": _lacks,
}

_HEAD = """# Targets

Every kind of GPU that TVM speaks to has one row
([device.py](../schedules/machine/device.py)); plans, their checks, the default, the search and
the builders ask it and nothing else, so that another kind is another row. The functions are the
same for all: `parallelize(func, "webgpu")`, `get_pipeline("opencl")`,
`tvm-scan explain FILE --target metal`. A plan's string begins with `cuda` for every GPU. Kernels of
`webgpu` run in a browser, in a page that `tvm-scan compile` writes: [browser.md](browser.md).

Run by `python -m bench.targets` ({origin}), with the limits that every implementation has: 256
threads, 16 KiB of shared memory, 8 buffers for WebGPU. There are no times here, since a driver in
software says nothing of a GPU's.
"""
_ROWS = """A plan that a device cannot have is refused with the device, the limit and a plan that
works. Where the threads of a warp cannot wait for one another alone, those of the block do; a grid
of WebGPU beyond 65,535 blocks is packed by TVM into a second dimension; indices of 64 bits are
narrowed to 32 there. Warps that are not of 32 threads shuffle nothing. A target of WebGPU with
`"supports_subgroups": true` has warps of 32 threads that shuffle, and its text says
`enable subgroups;`; halves say `enable f16;`, and need an adapter with `shader-f16`.
"""
_MATRIX = """Each cell: how many of the families of the tests' table gave the sequential loop's
results, on exact inputs (the sums of exponentials within their rounding), at lengths of 0, 1, odd,
prime, and around a tile. What is refused is listed with its reasons in
[tests/devices/table.py](../tests/devices/table.py): 64-bit and half-width numbers in WGSL, more
than 8 buffers in one of its kernels, elements of 64 bits there (an automaton's, outside of
`lanes`), and on both the plans that shuffle, copy ahead, or look back.
"""
_COUNTS = """Barriers in the text of each kernel (several kernels follow one another in
`three_phase`), shared memory of a block, buffers of the widest kernel, and for `rocm` vector and
scalar registers of each kernel; no kernel has scratch memory.
"""


def main() -> int:
    """Run all, and write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="where the result is written")
    parser.add_argument("--markdown", type=Path, help="where the page is written")
    parser.add_argument("--quick", action="store_true", help="two families")
    asked = parser.parse_args()
    missing = [why for d in DRIVERS.values() if (why := d.why_unavailable())]
    if missing:
        print("\n".join(missing), file=sys.stderr)
        return 1
    drivers = {kind: module.driver().name for kind, module in DRIVERS.items()}
    found = {
        "machine": machine(Target.from_device("cpu")),
        "drivers": drivers,
        "outcomes": outcomes(asked.quick),
        "counts": counts(),
    }
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    text = page(found)
    if asked.markdown:
        asked.markdown.write_text(text, encoding="utf-8")
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
