"""The figures of docs/targets.md and of the pages of each kind of GPU, from a result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench.origin import origin
from bench.torch_page import with_part
from tvm_scan.arguments import as_target
from tvm_scan.schedules.machine.machine import Machine

__all__ = ["PAGES", "page"]

#: Targets that have a page; CUDA has several.
_KINDS = ("opencl", "webgpu", "vulkan", "metal", "rocm")
_INDEX = "docs/targets.md"
PAGES = (_INDEX, *(f"docs/targets/{kind}.md" for kind in _KINDS))
_PART = "bench_targets"


def page(path: Path, found: Mapping[str, Any]) -> str:
    """A page with the figures of a result.

    Parameters
    ----------
    path : Path
        One of ``PAGES``, in the repository.
    found : mapping
        The result.
    """
    lines = _index(found) if path.match(_INDEX) else _figures(path.stem, found)
    return with_part(path, _PART, "\n".join(lines))


def _index(found: Mapping[str, Any]) -> list[str]:
    outcomes, kinds = found["outcomes"], ("cuda", *_KINDS)
    lines = [f"Figures are of `python -m bench.targets` ({origin(found['machine'])})."]
    lines += ["", "## What a device has", "", _ROWS]
    lines += _table(["", *(f"`{kind}`" for kind in kinds)], _facts(kinds))
    lines += ["", "## Schedules and families", "", _MATRIX]
    rows = [[b, *(_told(outcomes[d][b]) for d in outcomes)] for b in next(iter(outcomes.values()))]
    rows.append(["all", *(_told(_all(outcomes[d])) for d in outcomes)])
    return lines + _table(["schedule", *(f"`{d}`" for d in outcomes)], rows)


def _figures(kind: str, found: Mapping[str, Any]) -> list[str]:
    lines = [f"Figures are of `python -m bench.targets` ({origin(found['machine'])})."]
    driver = found["drivers"].get(kind)
    if driver:
        lines += [f"The driver was {driver}."]
    lines += ["", "## What a device has", "", *_table(["", f"`{kind}`"], _facts((kind,)))]
    if kind in found["outcomes"]:
        told = found["outcomes"][kind]
        rows = [[builder, _told(row)] for builder, row in told.items()]
        lines += ["", "## Schedules and families", ""]
        lines += _table(["schedule", "families"], [*rows, ["all", _told(_all(told))]])
        refused = sorted(found["refusals"][kind].items(), key=lambda pair: (-pair[1], pair[0]))
        lines += ["", "## What is refused, and what is said", "", _REFUSED]
        lines += _table(["plans", "message"], [[count, f"`{said}`"] for said, count in refused])
    counts = [row for row in found["counts"] if row["target"] == kind]
    if counts:
        heads = ["recurrence", "plan", "barriers", "shared bytes", "buffers"]
        heads += ["registers"] * (kind == "rocm")
        lines += ["", "## Counts of kernels", "", _COUNTS[kind == "rocm"]]
        lines += _table(heads, map(_count, counts))
    return lines


def _count(row: Mapping[str, Any]) -> list[Any]:
    marks = " (default)" if row["default"] else ""
    barriers = ", ".join(map(str, row["barriers"]))
    registers = ", ".join(f"{v} + {s}" for v, s, _ in row["registers"])
    cells = [row["recurrence"], f"`{row['plan']}`{marks}", barriers, row["shared"], row["buffers"]]
    return [*cells, registers] if registers else cells


def _table(heads: list[str], rows: Any) -> list[str]:
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    return lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows]


def _facts(kinds: tuple[str, ...]) -> list[list[str]]:
    machines = [Machine.of(as_target(kind, "bench.targets")) for kind in kinds]
    return [[label, *(str(value(one)) for one in machines)] for label, value in _FACTS.items()]


def _all(told: Mapping[str, Mapping[str, str]]) -> dict[tuple[str, str], str]:
    return {(b, a): outcome for b, row in told.items() for a, outcome in row.items()}


def _told(outcomes: Mapping[Any, str]) -> str:
    """Counts of outcomes, the good ones first."""
    counted = Counter(outcomes.values())
    order = sorted(counted, key=lambda one: (one not in _GOOD, one == "refused", one))
    return ", ".join(f"{counted[one]} {one}" for one in order)


_GOOD = ("right", "well-formed")


def _yes(value: bool) -> str:
    return "yes" if value else "no"


_FACTS: dict[str, Callable[[Machine], object]] = {
    "threads of a block": lambda one: one.threads,
    "shared memory of a block": lambda one: one.shared_bytes,
    "blocks of a grid": lambda one: one.device.blocks,
    "buffers of a kernel": lambda one: one.device.buffers,
    "threads of a warp": lambda one: one.warp,
    "barriers of a warp": lambda one: _yes(one.device.warp_barrier),
    "shuffles, where a warp has 32 threads": lambda one: _yes(
        bool(one.device.shuffles | one.device.subgroups)
    ),
    "asynchronous copies": lambda one: _yes(one.async_copies),
    "look-back (release, acquire)": lambda one: _yes(one.device.ordered_memory),
    "bits of a load": lambda one: one.device.vector_bits,
    "dtypes that it lacks": lambda one: ", ".join(sorted(one.device.lacks)) or "none",
}

_ROWS = """This is what a target has that is a name alone. A plan that a device cannot have is
refused with the device, the limit and a plan that works. Where the threads of a warp cannot wait
for one another alone, those of the block do.
"""
_MATRIX = """Each cell: of how many families of the tests' table the kernels gave the sequential
loop's results, on exact inputs (sums of exponentials within their rounding), at lengths of 0, 1,
odd, prime, and around a tile. *Well-formed* code was read, and not run. What is refused stands in
[tests/devices/table.py](../tests/devices/table.py) with its reasons, and on the target's page.
"""
_REFUSED = """Of the plans of the table above: what was expected, what was found, and what works.
"""
_COUNT = """Barriers in the text of each kernel (several kernels follow one another in
`three_phase`), shared memory of a block, buffers of the widest kernel"""
_COUNTS = (
    f"{_COUNT}.\n",
    f"{_COUNT}, vector and\nscalar registers of each kernel; no kernel has scratch memory.\n",
)
