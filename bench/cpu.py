"""Scans on this CPU beside what people would pick, and beside a copy of the same bytes.

``TVM_NUM_THREADS=2 TVM_BIND_THREADS=0 python -m bench.cpu --json bench/results/cpu.json
--markdown docs/cpu.md --plot docs/images/cpu.svg``
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import Annotated, Any

import typer

from bench.cpu_page import Workload, best_peer, page, plot, table
from bench.cpu_tools import TOOLS, prepare
from bench.floors import FLOORS
from bench.timing import machine
from bench.turns import Tool, in_turns, tools
from tvm_scan.arguments import host_target

__all__ = ["main"]


LARGE = [
    Workload("cumsum", (1, 2**24)),
    Workload("cumsum", (64, 2**18)),
    Workload("cumsum", (4096, 4096)),
    Workload("cumsum rows", (4096, 4096)),
    Workload("affine", (1, 2**22)),
    Workload("affine", (64, 2**16)),
    Workload("affine", (8192, 2048)),
    Workload("affine middle", (8, 2048, 1024)),
    Workload("cummax", (64, 2**18)),
    Workload("segmented", (64, 2**18)),
    Workload("order 2", (64, 2**18)),
    Workload("logsumexp", (64, 2**16)),
    Workload("selective scan", (1, 1536, 512)),
    Workload("selective scan", (1, 1536, 2048)),
    Workload("selective scan", (2, 1536, 512)),
    Workload("selective scan", (2, 1536, 2048)),
    Workload("selective scan bfloat16", (1, 1536, 512)),
    Workload("selective scan bfloat16", (1, 1536, 2048)),
    Workload("selective scan bfloat16", (2, 1536, 512)),
    Workload("selective scan bfloat16", (2, 1536, 2048)),
]
#: Kind, leading extents, the factor from one length to the next, and the last power of it.
_GROWTH = [
    ("cumsum", (1,), 4, 12),
    ("affine", (1,), 4, 11),
    ("selective scan", (1, 64), 4, 6),
    ("selective scan bfloat16", (1, 64), 4, 6),
    ("cumsum rows", (1024,), 16, 3),
    ("cummax", (64,), 16, 4),
    ("segmented", (64,), 16, 4),
    ("order 2", (64,), 16, 4),
    ("logsumexp", (64,), 16, 4),
]
GROWING = {
    kind: [Workload(kind, (*lead, factor**k)) for k in range(most + 1)]
    for kind, lead, factor, most in _GROWTH
}


def measure(
    made: Sequence[Tool], workload: Workload, seconds: float, *, large: bool
) -> dict[str, Any]:
    """Medians of one run in turns, in seconds, and with ``large`` the peak memory in bytes."""
    found: dict[str, Tool] = {}
    wrong, plan, moved = [], "", 0
    for tool in made:
        names, facts = tool.prepare(workload.kind, workload.shape, large)
        found |= dict.fromkeys(names, tool)
        wrong += facts["wrong"]
        plan, moved = facts.get("plan", plan), facts["bytes"]
    times = in_turns(found, seconds=seconds, least=5)
    peaks = {n: tool.peak(n) for n, tool in found.items() if n not in FLOORS} if large else {}
    medians = {n: t.median for n, t in times.items()}
    return {
        "workload": asdict(workload),
        "plan": plan,
        "seconds": medians,
        "spread": {name: t.spread for name, t in times.items()},
        "peak bytes": peaks,
        "wrong": wrong,
        "GB/s": moved / medians["tvm_scan"] / 1e9,
    }


def measured(large: list[Workload], small: list[Workload], seconds: float) -> dict[str, Any]:
    """The result as the JSON file has it; a workload takes some seconds, a small one an eighth."""
    rows, grown = [], []
    with tools(prepare, TOOLS) as made:
        for workload in large:
            rows.append(measure(made, workload, seconds, large=True))
            typer.echo(f"{workload}: {best_peer(rows[-1])}", err=True)
        grown = [measure(made, w, seconds / 8, large=False) for w in small]
    return {"machine": machine(host_target()), "rows": rows, "growth": grown}


def main(
    json_path: Annotated[Path | None, typer.Option("--json", help="File for the figures.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="File for the page.")] = None,
    picture: Annotated[Path | None, typer.Option("--plot", help="File for the plot.")] = None,
    seconds: Annotated[float, typer.Option(help="For each large workload.")] = 4.0,
    only: Annotated[str, typer.Option(help="A part of the workloads' names.")] = "",
    growth: Annotated[bool, typer.Option(help="Also lengths from one step on.")] = True,
    largest: Annotated[int, typer.Option(help="Cells of the largest workload.")] = 1 << 30,
    replay: Annotated[Path | None, typer.Option(help="Tables of an earlier --json file.")] = None,
) -> None:
    """Measure and print the tables; run it on a quiet machine."""
    if replay:
        found = json.loads(replay.read_text())
    else:
        large = [w for w in LARGE if only in str(w) and prod(w.shape) <= largest]
        small = [w for ws in GROWING.values() for w in ws if growth and only in str(w)]
        small = [w for w in small if prod(w.shape) <= largest]
        found = measured(large, small, seconds)
    if json_path:
        json_path.write_text(json.dumps(found, indent=1) + "\n")
    if picture and found["growth"]:
        plot(found["growth"], picture)
    typer.echo(table(found["rows"]))
    if markdown:
        markdown.write_text(page(found["machine"], found["rows"], found["growth"]))


if __name__ == "__main__":
    typer.run(main)
