"""Scans on this CPU beside what people would pick, and beside a copy of the same bytes.

``TVM_NUM_THREADS=2 TVM_BIND_THREADS=0 python -m bench.cpu --json bench/results/cpu.json
--markdown docs/cpu.md --plot docs/images/cpu.svg``
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tvm
import typer
from tabulate import tabulate

from bench.cpu_loops import inputs_of, loop_of
from bench.cpu_oracles import last_step
from bench.cpu_peers import peers_of
from bench.floors import floor_of
from bench.timing import interleaved, machine
from tvm_scan import Recurrence, default_plan, extract, parallelize
from tvm_scan.schedules.default import host_target

__all__ = ["main"]

OWN = ("tvm_scan", "tvm loop", "floor")
#: Seconds between two methods, whose pools of threads else spin against each other.
_GAP = 0.004


@dataclass(frozen=True)
class Workload:
    """One shape of one recurrence.

    Attributes
    ----------
    kind : str
        One of ``bench.cpu_loops.KINDS``.
    shape : tuple of int
        As ``bench.cpu_loops.loop_of`` takes it.
    """

    kind: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.kind} {self.shape}"


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
    Workload("selective scan", (2, 1536, 2048)),
]
GROWING = {
    kind: [Workload(kind, (*lead, 4**k)) for k in range(most + 1)]
    for kind, lead, most in (
        ("cumsum", (1,), 12),
        ("affine", (1,), 11),
        ("selective scan", (1, 64), 6),
    )
}


def ours(workload: Workload, arrays: dict[str, np.ndarray]) -> tuple[dict[str, Any], str, Any]:
    """The sequential loop and the default plan as calls, the plan's text, and our output."""
    target, func = host_target(), loop_of(workload.kind, workload.shape)
    found = extract(func)
    assert isinstance(found, Recurrence)
    plan = default_plan(target, found)
    name = str(func.attrs["global_symbol"])
    loop = tvm.compile(func, target=target)[name]
    scan = tvm.compile(parallelize(func, target, plan), target=target)[name]
    tensors = []
    for param in func.params[:-1]:
        tensors.append(tvm.runtime.tensor(np.ascontiguousarray(arrays[str(param.name)])))
    tensors.append(tvm.runtime.tensor(np.zeros_like(arrays["out"])))
    calls = {"tvm loop": lambda: loop(*tensors), "tvm_scan": lambda: scan(*tensors)}
    scan(*tensors)
    return calls, str(plan), tensors[-1].numpy().copy()


def measure(workload: Workload, seconds: float) -> dict[str, Any]:
    """Medians of one interleaved run, in seconds."""
    arrays = inputs_of(workload.kind, workload.shape)
    calls, plan, result = ours(workload, arrays)
    wanted, scale = last_step(workload.kind, arrays)
    got = np.take(result, -1, axis=_time_axis(workload.kind))
    assert np.abs(got - wanted).max() <= 2.0**-18 * scale, f"{workload}: a wrong result"
    calls |= peers_of(workload.kind, arrays)
    inputs = [a for n, a in arrays.items() if n != "out"]
    if (floor := floor_of(inputs, arrays["out"])) is not None:
        calls["floor"] = floor
    times = interleaved(calls, seconds=seconds, least=3, gap=_GAP)
    peers = {n: t.median for n, t in times.items() if n not in OWN}
    best = min(peers, key=lambda n: peers[n])
    mine = times["tvm_scan"].median
    moved = sum(a.nbytes for a in arrays.values())
    return {
        "workload": asdict(workload),
        "plan": plan,
        "seconds": {name: t.median for name, t in times.items()},
        "spread": {name: t.spread for name, t in times.items()},
        "best peer": best,
        "against best peer": peers[best] / mine,
        "against floor": mine / times["floor"].median if "floor" in times else None,
        "GB/s": moved / mine / 1e9,
    }


def _time_axis(kind: str) -> int:
    return {"cumsum rows": 0, "affine middle": 1}.get(kind, -1)


def page(rows: list[dict[str, Any]]) -> str:
    """Markdown table."""
    head = ["workload", "tvm_scan ms", "loop ms", "floor ms", "best peer", "its ms"]
    head += ["faster by", "of the floor", "GB/s"]
    body = []
    for row in rows:
        s = row["seconds"]
        of_floor = row["against floor"]
        body.append(
            [
                str(Workload(row["workload"]["kind"], tuple(row["workload"]["shape"]))),
                *(f"{s[n] * 1e3:.3g}" if n in s else "" for n in OWN),
                row["best peer"],
                f"{s[row['best peer']] * 1e3:.3g}",
                f"{row['against best peer']:.2f}",
                "" if of_floor is None else f"{of_floor:.2f}",
                f"{row['GB/s']:.1f}",
            ]
        )
    return str(tabulate(body, head, tablefmt="github", disable_numparse=True))


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """How time grows with length, one panel per recurrence, both axes logarithmic."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    kinds = list(dict.fromkeys(row["workload"]["kind"] for row in rows))
    figure, axes = plt.subplots(1, len(kinds), figsize=(4.6 * len(kinds), 4.2), squeeze=False)
    for axis, kind in zip(axes[0], kinds, strict=True):
        mine = [row for row in rows if row["workload"]["kind"] == kind]
        for name in dict.fromkeys(n for row in mine for n in row["seconds"]):
            pairs = [
                (row["workload"]["shape"][-1], row["seconds"][name] * 1e6)
                for row in mine
                if name in row["seconds"]
            ]
            width = 2.4 if name == "tvm_scan" else 1.0
            axis.loglog(*zip(*pairs, strict=True), label=name, linewidth=width)
        lead = mine[0]["workload"]["shape"][:-1]
        axis.set_title(f"{kind}, {' x '.join(map(str, lead))} lanes", fontsize=10)
        axis.set_xlabel("steps")
        axis.set_ylabel("microseconds")
        axis.grid(True, which="major", alpha=0.3)
        axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path)


_PAGE = """# Scans on a CPU beside other tools

The recurrences of this page with their default plans (`tvm_scan`), the sequential loop that TVM
makes of them (`loop`), and what people would pick, each writing to memory that it has where it
can: numpy and torch with `out=`, numba sequential and parallel, jax (`cumsum`, `cummax`,
`cumlogsumexp`, `associative_scan`), scipy's `lfilter`, a C loop (`-O3 -march=native`, OpenMP),
the sequential torch reference of the selective scan. All take turns in one process, with 4 ms
between them for the threads to fall asleep; medians. Every result is compared with float64 before
it is timed. The floor reads the same inputs and writes the same output on all cores and does
nothing else, past the caches where the output is large.

    TVM_NUM_THREADS=2 TVM_BIND_THREADS=0 python -m bench.cpu --json bench/results/cpu.json \\
        --markdown docs/cpu.md --plot docs/images/cpu.svg

{machine}

Shapes are (lanes, steps); `rows` walks down the first axis, `middle` down the second of (batch,
steps, lanes), and the selective scan has (batch, channels, steps) and 16 states. `faster by` is the
best peer's time over ours, `of the floor` ours over the floor's.

{table}

How the time grows with the length, from one step on. The C loop starts its team of threads even
for one row, which beside other tools' pools costs up to 8 ms: its short lengths say nothing.

![Time against length](images/cpu.svg)

{growth}
"""


def main(
    json_path: Annotated[Path | None, typer.Option("--json", help="File for the figures.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="File for the page.")] = None,
    picture: Annotated[Path | None, typer.Option("--plot", help="File for the plot.")] = None,
    seconds: Annotated[float, typer.Option(help="For each large workload.")] = 4.0,
    only: Annotated[str, typer.Option(help="A part of the workloads' names.")] = "",
    growth: Annotated[bool, typer.Option(help="Also lengths from one step on.")] = True,
) -> None:
    """Measure and print the tables; run it on a quiet machine."""
    rows = []
    for workload in LARGE:
        if only in str(workload):
            rows.append(measure(workload, seconds))
            typer.echo(f"{workload}: {rows[-1]['against best peer']:.2f}x", err=True)
    small = [w for ws in GROWING.values() for w in ws if growth and only in str(w)]
    grown = [measure(w, seconds / 8) for w in small]
    made = machine(host_target())
    if json_path:
        found = {"machine": made, "rows": rows, "growth": grown}
        json_path.write_text(json.dumps(found, indent=1) + "\n")
    if picture and grown:
        plot(grown, picture)
    typer.echo(page(rows))
    if markdown:
        said = ", ".join(f"{key} {value}" for key, value in made.items())
        text = _PAGE.format(machine=said, table=page(rows), growth=page(grown))
        markdown.write_text(text)


if __name__ == "__main__":
    typer.run(main)
