"""The page of ``bench.machine_code``."""

from __future__ import annotations

from typing import Any

from bench.origin import origin

__all__ = ["page"]

#: Pipe of ``bench.sass`` -> its column.
_PIPES = {
    "fma": "FMA",
    "alu": "ALU",
    "special": "special",
    "shared": "shared",
    "global": "global",
    "shuffle": "shuffle",
    "uniform": "uniform",
    "control": "control",
}
#: Case -> why the figures are as they are.
_WHY = {
    "selective 8 x 2048 x 2048 x 16": (
        "Five instructions are the least: a product, its power of two, B times what all "
        "states share, and two multiply-adds. Ours adds the loads of B and C, what four "
        "threads exchange, and a step's softplus, gate, loads and copies. mamba-ssm's scans "
        "the tile of each state by a tree, with two barriers, and loads B and C again for "
        "every channel. Special functions bind ours nearly as much as instructions do: "
        "without fewer of them, no more than the difference of the two bounds is left to "
        "gain."
    ),
    "affine 12288 x 65536": (
        "Memory binds all but one. accelerated-scan is compiled without multiply-adds and "
        "scans all four elements of a thread at every level. The functor by which CUB's "
        "look-back keeps rows apart (`bench/gpu_peers.cu`) has a remainder of 64 bits, and reads "
        "cells one by one."
    ),
    "cumsum 2048 x 4096": ("Memory binds both."),
    "cumsum 1 x 2^28": (
        "Ours counts the kernel that reduces and the one that replays: the row is read twice, "
        "which is what the time is lost by."
    ),
    "rwkv6 32 x 1024 x 64 x 64": (
        "No published kernel of RWKV-6 is among the peers that are compiled."
    ),
}
_HEAD = """# CUDA: machine code

What nvcc makes of our default kernels and of published ones for the same work, compiled for
sm_90 by the same tools (nvcc {nvcc}). **Nothing here is measured.** Instructions are counted in
the machine code by `python -m bench.machine_code` ({origin}); the bounds are those of [the
model](model.md) for an H200, with what was counted in the place of estimates.

*How it counts.* `bench/sass.py` reads nvdisasm's output and finds the loops by dominators. Of
the ways through a pass it takes the one that moves most bytes, then has most special functions,
then the fewest instructions: that of a whole tile. What a pass of a loop does follows from the
plan (ours), the template arguments (peers') or what it stores. Instructions are a thread's, for
an element: a step of a lane, and of one of its states where it has states. Loops inside that do
not go over elements (a look-back that waits) count once. Occupancy is by registers and static
shared memory. A figure of ours that is worse than the best peer's is **bold**.
"""
_TAIL = """## What is not there

fla's kernels and mamba-ssm's SSD work in chunks by products of matrices on tensor cores:
another algorithm, whose instructions do not compare with those of a scan. The shared memory
that mamba-ssm's kernel is given at its launch is not in its machine code.
"""


def page(found: dict[str, Any]) -> str:
    """The page of a result.

    Parameters
    ----------
    found : dict
        What ``bench.machine_code`` writes.
    """
    lines = [_HEAD.format(nvcc=found["nvcc"], origin=origin(found["machine"]))]
    for name, rows in found["cases"].items():
        lines += [f"## {name}", "", *_table(rows), ""]
        lines += [f"Missing: {row['who']}: {row['missing']}." for row in rows if "missing" in row]
        lines += [_WHY[name], ""]
    return "\n".join([*lines, _TAIL])


def _table(rows: list[dict[str, Any]]) -> list[str]:
    there = [row for row in rows if "missing" not in row]
    ours, others = there[0], there[1:]
    columns = ["per element", "ours", *(row["who"] for row in others)]
    lines = ["| " + " | ".join(columns) + " |", "|---|" + "---:|" * len(there)]

    def add(name: str, value: Any, form: str, *, more_is_worse: bool = True) -> None:
        values = [value(row) for row in there]
        cells = [form.format(v) for v in values]
        best = min(values[1:], default=None) if more_is_worse else max(values[1:], default=None)
        if best is not None and cells[0] != form.format(best):
            worse = values[0] > best if more_is_worse else values[0] < best
            cells[0] = f"**{cells[0]}**" if worse else cells[0]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")

    add("instructions", lambda row: row["instructions"], "{:.2f}")
    for pipe, title in _PIPES.items():
        if any(pipe in row["pipes"] for row in there):
            add(f"- {title}", lambda row, pipe=pipe: row["pipes"].get(pipe, 0.0), "{:.2f}")
    add("barriers of a thread", lambda row: row["barriers"], "{:.3f}")
    add("bytes of memory", lambda row: row["bytes"], "{:.2f}")
    add("registers", lambda row: row["registers"], "{}")
    add("shared memory, bytes of a block", lambda row: row["shared"], "{}")
    add("occupancy", lambda row: row["occupancy"], "{:.2f}", more_is_worse=False)
    for bound in ("memory", "exp", "issue", "seconds"):
        title = "predicted" if bound == "seconds" else f"bound: {bound}"
        add(f"{title}, us", lambda row, bound=bound: row["predicted"][bound], "{:.1f}")
    return [*lines, "", f"Ours: `{ours['plan']}`."]
