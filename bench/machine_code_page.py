"""The page of ``bench.machine_code``."""

from __future__ import annotations

from typing import Any

from bench.origin import origin

__all__ = ["EQUAL_STEPS", "page"]

#: Whose the rows of the other way through a loop are.
EQUAL_STEPS = "ours, A in equal steps"

#: Pipe of ``bench.sass`` -> its column.
_PIPES = {
    "fma": "FMA",
    "alu": "ALU",
    "matrix": "tensor cores",
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
        "Five instructions are the least where exponents are any: a product, its power of two, B "
        "times what all states share, and two multiply-adds. Where those of a thread lie in equal "
        "steps, as Mamba's first A, the first two are one product. Ours adds the loads of B and C, "
        "what two threads exchange, and a step's softplus, gate, loads and copies. mamba-ssm's "
        "scans the tile of each state by a tree, with two barriers, and loads B and C again for "
        "every channel; its shared memory is given at the launch and not in its machine code. With "
        "any exponents the special functions bind ours."
    ),
    "selective 64 x 2048 x 2048 x 16": (
        "With more channels than the chip has threads to spare, a thread has all states of its "
        "own, and exchanges nothing. Its registers leave room for few threads."
    ),
    "selective 8 x 2048 x 2048 x 16, bfloat16": (
        "The block converts B and C once for all its channels, which is a barrier more."
    ),
    "affine 12288 x 65536": (
        "Memory binds all but one. Ours has more instructions than CUB's rows, which take 16 steps "
        "of a thread through shared memory; and a third of those of its tree say that an infinite "
        "gate keeps a zero. accelerated-scan is compiled without multiply-adds and "
        "scans all four elements of a thread at every level. The functor by which CUB's "
        "look-back keeps rows apart (`bench/gpu_peers.cu`) has a remainder of 64 bits, and reads "
        "cells one by one. fla's walks time by a thread for each row, with time as the first axis: "
        "no exchange, but as many threads as rows; its gate is the exponential of its input."
    ),
    "cumsum 2048 x 4096": ("Memory binds all."),
    "cumsum 1 x 2^28": (
        "Ours counts the kernel that reduces and the one that replays: the row is read twice, "
        "which is what the time is lost by."
    ),
    "rwkv6 32 x 1024 x 64 x 64": (
        "fla's recurrent kernel divides a head among four programs, two of which have the same "
        "columns: another kernel adds up their sums, which is not counted, where ours exchanges "
        "sums in this one. Its gate is an exponential."
    ),
    "ssd 8 x 2048 x 32 x 64 x 64": (
        "mamba-ssm's works in chunks of 256 steps by products of matrices on tensor cores, another "
        "algorithm, in which a step of a state is a small part of an instruction; the bounds have "
        "none for tensor cores. Ours and fla's recurrent kernel take step after step."
    ),
}
_HEAD = """# CUDA: machine code

What nvcc makes of our default kernels and of published ones for the same work, compiled for
sm_90 by the same tools (nvcc {nvcc}). **Nothing here is measured.** Instructions are counted in
the machine code by `python -m bench.machine_code` ({origin}); the bounds are those of [the
model](model.md) for an H200, with what was counted in the place of estimates.

*How it counts.* `bench/sass.py` reads nvdisasm's output and finds the loops by dominators. Of
the ways through a pass it takes the one that moves most bytes, then has most special functions
(with A in equal steps, fewest), then the fewest instructions: that of a whole tile. What a branch
skips and nothing replaces counts: some thread of a warp executes it. What a pass of a loop does
follows from the plan (ours), the template arguments (peers'), the tiles that a kernel of Triton is
compiled for, or what it stores. Instructions are a thread's, for an element: a step of a lane,
and of one of its states where it has states. Loops inside that do not go over elements (a look-back
that waits) count once. Occupancy is by registers and static shared memory. A figure of ours that is
worse than the best peer's is **bold**.
"""
_TAIL = """## What is not there

fla's kernels in chunks (`chunk_gla`, `chunk_rwkv6`) are made like those of mamba-ssm's SSD. Kernels
in Triton are tuned on the device; the settings here are among those that they try
(`bench/machine_code_kernels.py`).
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
    ways = [row for row in there if row["who"] in ("ours", EQUAL_STEPS)]
    columns = ["per element", *(row["who"] for row in there)]
    lines = ["| " + " | ".join(columns) + " |", "|---|" + "---:|" * len(there)]

    def add(name: str, value: Any, form: str, *, more_is_worse: bool = True) -> None:
        values = [value(row) for row in there]
        cells, others = [form.format(v) for v in values], values[len(ways) :]
        best = min(others, default=None) if more_is_worse else max(others, default=None)
        for at in range(len(ways)) if best is not None else ():
            worse = values[at] > best if more_is_worse else values[at] < best
            if worse and cells[at] != form.format(best):
                cells[at] = f"**{cells[at]}**"
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
    return [*lines, "", f"Ours: `{there[0]['plan']}`."]
