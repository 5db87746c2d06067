"""What each rung of a CPU schedule is worth, by workload and size.

After the ablation of arXiv 2602.20204: the sequential loop, its steps or lanes in vectors, the
work over cores, and lines stored past the caches; GELU is the elementwise control, in which no
step waits for another.

``TVM_NUM_THREADS=2 TVM_BIND_THREADS=0 python -m bench.ablation --json bench/results/ablation.json
--markdown docs/ablation.md --plot docs/images/ablation.svg``
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tvm
import tvm_ffi
import typer
from tabulate import tabulate
from tvm import tirx
from tvm.tirx import ForKind

from bench.answers import close
from bench.cpu_loops import inputs_of, loop_of
from bench.cpu_oracles import is_right
from bench.gelu import gelu, gelu_of
from bench.origin import origin
from bench.timing import interleaved, machine
from tvm_scan import ScanPlan, parallelize
from tvm_scan.arguments import host_target
from tvm_scan.schedules.machine.machine import Machine

__all__ = ["main"]

RUNGS = ("sequential", "vectors", "cores", "past the caches")
#: Plan in vectors of each recurrence, and its shape for a number of cells.
SCANS: dict[str, tuple[ScanPlan, Callable[[int], tuple[int, ...]]]] = {
    "cumsum": (ScanPlan.of("cpu", "lanes", time_vector=16), lambda n: (64, n // 64)),
    "affine": (ScanPlan.of("cpu", "lanes", time_vector=16), lambda n: (64, n // 64)),
    "order 2": (
        ScanPlan.of("cpu", "lanes", lane_block=16, vectorize=True, transpose=True),
        lambda n: (64, n // 64),
    ),
    "cumsum rows": (
        ScanPlan.of("cpu", "lanes", lane_block=512, vectorize=True),
        lambda n: (2048, n // 2048),
    ),
    "selective scan": (
        ScanPlan.of("cpu", "lanes", lane_block=32, vectorize=True, transpose=True),
        lambda n: (1, 256, n // 256),
    ),
}
SIZES = (1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24)


def on_one_core(func: Any) -> Any:
    """The same schedule with its parallel loops one after another."""

    def on_for(loop: tirx.For) -> Any:
        if loop.kind != ForKind.PARALLEL:
            return loop
        return tirx.For(loop.loop_var, loop.min, loop.extent, ForKind.SERIAL, loop.body)

    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, on_for)))


def rungs_of(kind: str, cells: int) -> dict[str, Any]:
    """PrimFuncs by rung."""
    machine = Machine.of(host_target())
    if kind == "GELU":
        many = gelu(cells, vectors=True)
        found = {"sequential": gelu(cells, vectors=False), "vectors": on_one_core(many)}
        found["cores"] = many
        if machine.line_stores:
            found["past the caches"] = gelu(cells, vectors=True, nontemporal=True)
        return found
    plan, shape = SCANS[kind]
    plan = plan.with_(ldexp=machine.ldexp and kind == "selective scan")
    func = loop_of(kind, shape(cells))
    many = parallelize(func, host_target(), plan)
    found = {"sequential": func, "vectors": on_one_core(many), "cores": many}
    if machine.line_stores:
        past = parallelize(func, host_target(), plan.with_(nontemporal=True))
        found["past the caches"] = past
    return found


def measure(kind: str, cells: int, seconds: float) -> dict[str, Any]:
    """Medians of the rungs in one interleaved run, in seconds; their results are right."""
    if kind == "GELU":
        x = np.random.default_rng(0).standard_normal(cells, dtype="float32")
        made, arrays = {}, [x, np.zeros_like(x)]
    else:
        made = inputs_of(kind, SCANS[kind][1](cells))
        order = [str(p.name) for p in loop_of(kind, SCANS[kind][1](cells)).params[:-1]]
        arrays = [np.ascontiguousarray(made[name]) for name in order] + [made["out"]]
    calls = {}
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    for rung, func in rungs_of(kind, cells).items():
        built = tvm.compile(func.with_attr("global_symbol", "main"), target=host_target())
        run = built["main"]
        tensors[-1].copyfrom(np.zeros_like(arrays[-1]))
        run(*tensors)
        got = tensors[-1].numpy()
        right = is_right(kind, got, made) if made else close(got, gelu_of(arrays[0]), 2.0**-20)
        assert right, f"{kind}, {rung}: a wrong result"
        calls[rung] = lambda run=run: run(*tensors)
    times = interleaved(calls, seconds=seconds, least=3)
    return {
        "kind": kind,
        "cells": cells,
        "plan": str(SCANS[kind][0]) if kind in SCANS else "",
        "seconds": {name: t.median for name, t in times.items()},
        "spread": {name: t.spread for name, t in times.items()},
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown table: what each rung gains on the one before."""
    head = ["workload", "cells", "sequential ms", *(f"{rung} gain" for rung in RUNGS[1:]), "all"]
    body = []
    for row in rows:
        s = row["seconds"]
        gains = [
            f"{s[before] / s[rung]:.2f}" if rung in s else "" for before, rung in pairwise(RUNGS)
        ]
        best = min(s.values())
        first = f"{s['sequential'] * 1e3:.3g}"
        body.append(
            [row["kind"], f"{row['cells']:,}", first, *gains, f"{s['sequential'] / best:.1f}"]
        )
    return str(tabulate(body, head, tablefmt="github", disable_numparse=True))


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Time for a cell against size, one panel for each workload."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    figure, axes = plt.subplots(2, (len(kinds) + 1) // 2, figsize=(13, 7), squeeze=False)
    for axis, kind in zip(axes.flat, kinds, strict=False):
        mine = [row for row in rows if row["kind"] == kind]
        for rung in RUNGS:
            points = [
                (row["cells"], row["seconds"][rung] * 1e9 / row["cells"])
                for row in mine
                if rung in row["seconds"]
            ]
            if points:
                axis.loglog(*zip(*points, strict=True), marker="o", markersize=3, label=rung)
        axis.set_title(kind, fontsize=10)
        axis.set_xlabel("cells")
        axis.set_ylabel("nanoseconds per cell")
        axis.grid(True, which="major", alpha=0.3)
    for axis in list(axes.flat)[len(kinds) :]:
        axis.set_visible(False)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.tight_layout(rect=(0, 0, 1, 0.95))
    figure.legend(handles, labels, loc="upper center", ncols=len(labels), frameon=False)
    figure.savefig(path)


_PAGE = """# What each rung of a CPU schedule is worth

After the ablation of arXiv 2602.20204: the sequential loop as TVM compiles it, then the steps or
lanes in vectors on one core, then all cores, then output lines stored past the caches. Each column
is the gain on the rung before; GELU is the elementwise control, in which no step waits for another.
All rungs of a row take turns in one process; medians; every rung's result is compared with float64
first.

    TVM_NUM_THREADS=2 TVM_BIND_THREADS=0 python -m bench.ablation \\
        --json bench/results/ablation.json --markdown docs/ablation.md \\
        --plot docs/images/ablation.svg

{machine}

{table}

![Time for a cell against size](images/ablation.svg)
"""


def page(about: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """The whole page in Markdown."""
    said = ", ".join(f"{key} {value}" for key, value in about.items())
    if "command" not in about:
        said = f"{_EARLIER}\n\n{said}; {origin(about)}"
    return _PAGE.format(machine=said, table=table(rows))


#: Of results that do not say their command.
_EARLIER = (
    "**These figures are of an earlier version of the script**, which compared every rung with\n"
    "the sequential one instead."
)


def main(
    json_path: Annotated[Path | None, typer.Option("--json", help="File for the figures.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="File for the page.")] = None,
    picture: Annotated[Path | None, typer.Option("--plot", help="File for the plot.")] = None,
    seconds: Annotated[float, typer.Option(help="For each workload and size.")] = 1.0,
    only: Annotated[str, typer.Option(help="A part of the workloads' names.")] = "",
    largest: Annotated[int, typer.Option(help="Largest number of cells.")] = SIZES[-1],
) -> None:
    """Measure and print the table; run it on a quiet machine."""
    rows = [
        measure(kind, cells, seconds)
        for kind in (*SCANS, "GELU")
        for cells in SIZES
        if only in kind and cells <= largest
    ]
    made = machine(host_target())
    if json_path:
        json_path.write_text(json.dumps({"machine": made, "rows": rows}, indent=1) + "\n")
    if picture:
        plot(rows, picture)
    typer.echo(table(rows))
    if markdown:
        markdown.write_text(page(made, rows))


if __name__ == "__main__":
    typer.run(main)
