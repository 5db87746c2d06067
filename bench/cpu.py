"""Scans on this CPU beside what people would pick, and beside a copy of the same bytes.

``TVM_NUM_THREADS=2 TVM_BIND_THREADS=0 python -m bench.cpu --json bench/results/cpu.json
--markdown docs/cpu.md --plot docs/images/cpu.svg``
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tvm
import typer

from bench.cpu_loops import inputs_of, loop_of
from bench.cpu_oracles import is_right
from bench.cpu_page import OWN, Workload, page, plot, table
from bench.cpu_peers import peers_of
from bench.floors import floor_of
from bench.memory import peak_bytes
from bench.timing import GAP, interleaved, machine
from tvm_scan import Recurrence, default_plan, extract, parallelize
from tvm_scan.schedules.default import host_target

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


def measure(workload: Workload, seconds: float, *, large: bool) -> dict[str, Any]:
    """Medians of one interleaved run, in seconds, and with ``large`` the peak memory in bytes."""
    arrays = inputs_of(workload.kind, workload.shape)
    calls, plan, result = ours(workload, arrays)
    assert is_right(workload.kind, result, arrays), f"{workload}: a wrong result"
    peers = peers_of(workload.kind, arrays, compiled=large)
    wrong = [n for n, call in peers.items() if not _peer_is_right(workload, call, arrays)]
    calls |= {n: call for n, call in peers.items() if n not in wrong}
    inputs = [a for n, a in arrays.items() if n != "out"]
    if (floor := floor_of(inputs, arrays["out"])) is not None:
        calls["floor"] = floor
    times = interleaved(calls, seconds=seconds, least=3, gap=GAP)
    medians = {n: t.median for n, t in times.items() if n not in OWN}
    best = min(medians, key=lambda n: medians[n])
    mine = times["tvm_scan"].median
    moved = sum(a.nbytes for a in arrays.values())
    return {
        "workload": asdict(workload),
        "plan": plan,
        "seconds": {name: t.median for name, t in times.items()},
        "spread": {name: t.spread for name, t in times.items()},
        "peak bytes": {n: peak_bytes(c) for n, c in calls.items() if n != "floor"} if large else {},
        "wrong": wrong,
        "best peer": best,
        "against best peer": medians[best] / mine,
        "against floor": mine / times["floor"].median if "floor" in times else None,
        "GB/s": moved / mine / 1e9,
    }


def _peer_is_right(workload: Workload, call: Any, arrays: dict[str, np.ndarray]) -> bool:
    """Whether a peer returns, or leaves in ``out``, the expected last step."""
    arrays["out"][...] = 0
    found = call()
    if isinstance(found, tuple):
        found = found[0]
    if found is None or isinstance(found, int):
        found = arrays["out"]
    if hasattr(found, "float"):  # a tensor, whose bfloat16 NumPy does not know
        found = found.float()
    return is_right(workload.kind, np.asarray(found), arrays)


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
            rows.append(measure(workload, seconds, large=True))
            typer.echo(f"{workload}: {rows[-1]['against best peer']:.2f}x", err=True)
    small = [w for ws in GROWING.values() for w in ws if growth and only in str(w)]
    grown = [measure(w, seconds / 8, large=False) for w in small]
    made = machine(host_target())
    if json_path:
        found = {"machine": made, "rows": rows, "growth": grown}
        json_path.write_text(json.dumps(found, indent=1) + "\n")
    if picture and grown:
        plot(grown, picture)
    typer.echo(table(rows))
    if markdown:
        markdown.write_text(page(made, rows, grown))


if __name__ == "__main__":
    typer.run(main)
