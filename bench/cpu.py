"""Scans on this CPU beside what people would pick, and beside a copy of the same bytes.

``TVM_NUM_THREADS=2 TVM_BIND_THREADS=0 python -m bench.cpu --json bench/results/cpu.json``
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

from bench.cpu_peers import peers_of
from bench.timing import interleaved, machine
from tvm_scan import Recurrence, default_plan, extract, library, parallelize
from tvm_scan.schedules.default import host_target

__all__ = ["main"]


@dataclass(frozen=True)
class Workload:
    """One shape of one recurrence.

    Attributes
    ----------
    kind : str
        ``cumsum``, ``cumsum rows`` (time first), ``affine`` or ``cummax``.
    lanes, length : int
        Rows, and steps of each.
    """

    kind: str
    lanes: int
    length: int

    def __str__(self) -> str:
        return f"{self.kind} ({self.lanes}, {self.length})"

    def function(self) -> Any:
        """The library's loop."""
        if self.kind == "affine":
            return library.linear_recurrence(self.lanes, self.length)
        if self.kind == "cummax":
            return library.cummax(self.lanes, self.length)
        axis = 0 if self.kind.endswith("rows") else -1
        return library.cumsum(self.lanes, self.length, axis=axis)

    def arrays(self) -> dict[str, np.ndarray]:
        """Inputs, and where the peers write."""
        rng = np.random.default_rng(0)
        rows = self.kind.endswith("rows")
        shape = (self.length, self.lanes) if rows else (self.lanes, self.length)
        made = {"X": rng.standard_normal(shape, dtype="float32")}
        if self.kind == "affine":
            made["A"] = rng.uniform(0.9, 1.0, shape).astype("float32")
        return {**made, "out": np.zeros(shape, "float32")}


LARGE = [
    Workload("cumsum", 1, 2**24),
    Workload("cumsum", 64, 2**18),
    Workload("cumsum", 4096, 4096),
    Workload("cumsum rows", 4096, 4096),
    Workload("affine", 1, 2**22),
    Workload("affine", 64, 2**16),
    Workload("affine", 8192, 2048),
    Workload("cummax", 64, 2**18),
]
SMALL = [Workload(kind, 1, 4**k) for kind in ("cumsum", "affine") for k in range(0, 10)]


def ours(workload: Workload, arrays: dict[str, np.ndarray]) -> tuple[dict[str, Any], str, Any]:
    """The sequential loop and the default plan as calls, the plan's text, and our output."""
    target, func = host_target(), workload.function()
    found = extract(func)
    assert isinstance(found, Recurrence)
    plan = default_plan(target, found)
    name = str(func.attrs["global_symbol"])
    loop = tvm.compile(func, target=target)[name]
    scan = tvm.compile(parallelize(func, target, plan), target=target)[name]
    tensors = []
    for param in func.params:
        array = arrays.get(str(param.name))
        tensors.append(tvm.runtime.tensor(np.zeros_like(arrays["X"]) if array is None else array))
    calls = {"tvm loop": lambda: loop(*tensors), "tvm_scan": lambda: scan(*tensors)}
    return calls, str(plan), tensors[-1]


def measure(workload: Workload, seconds: float) -> dict[str, Any]:
    """Medians of one interleaved run, in seconds."""
    arrays = workload.arrays()
    calls, plan, result = ours(workload, arrays)
    calls |= peers_of(workload.kind, arrays)
    source, target = np.ones_like(arrays["X"]), np.zeros_like(arrays["X"])
    calls["copy"] = lambda: np.copyto(target, source)
    times = interleaved(calls, seconds=seconds)
    _compare(workload, arrays, result)
    peers = {n: t.median for n, t in times.items() if n not in ("tvm_scan", "tvm loop", "copy")}
    best = min(peers, key=lambda n: peers[n])
    mine, copied = times["tvm_scan"].median, times["copy"].median
    moved = sum(a.nbytes for a in arrays.values())
    return {
        "workload": asdict(workload),
        "plan": plan,
        "seconds": {name: t.median for name, t in times.items()},
        "spread": {name: t.spread for name, t in times.items()},
        "best peer": best,
        "against best peer": peers[best] / mine,
        "against copy": mine / copied,
        "GB/s": moved / mine / 1e9,
    }


def _compare(workload: Workload, arrays: dict[str, np.ndarray], result: Any) -> None:
    """The last step of every lane against float64, so that no wrong kernel is ever fast."""
    axis = 0 if workload.kind.endswith("rows") else 1
    wide = arrays["X"].astype("float64")
    if workload.kind.startswith("cumsum"):
        want = wide.sum(axis=axis)
    elif workload.kind == "cummax":
        want = wide.max(axis=axis)
    else:
        want = np.zeros(workload.lanes)
        gates = arrays["A"].astype("float64")
        for t in range(workload.length):
            want = gates[:, t] * want + wide[:, t]
    got = np.take(result.numpy(), -1, axis=axis)
    scale = np.abs(wide).sum(axis=axis).max()
    assert np.abs(got - want).max() <= 2.0**-20 * scale, f"{workload}: a wrong result"


def page(rows: list[dict[str, Any]]) -> str:
    """Markdown table."""
    head = ["workload", "tvm_scan ms", "copy ms", "best peer", "its ms", "faster by", "of a copy"]
    body = []
    for row in rows:
        s = row["seconds"]
        body.append(
            [
                str(Workload(**row["workload"])),
                f"{s['tvm_scan'] * 1e3:.3g}",
                f"{s['copy'] * 1e3:.3g}",
                row["best peer"],
                f"{s[row['best peer']] * 1e3:.3g}",
                f"{row['against best peer']:.2f}",
                f"{row['against copy']:.2f}",
            ]
        )
    return str(tabulate(body, head, tablefmt="github", disable_numparse=True))


def main(
    json_path: Annotated[Path | None, typer.Option("--json", help="File for the figures.")] = None,
    small: Annotated[bool, typer.Option(help="From one step on, to show the overhead.")] = False,
    seconds: Annotated[float, typer.Option(help="For each workload.")] = 4.0,
    only: Annotated[str, typer.Option(help="A part of the workloads' names.")] = "",
) -> None:
    """Measure and print the table; run it on a quiet machine."""
    rows = [measure(w, seconds) for w in (SMALL if small else LARGE) if only in str(w)]
    if json_path:
        json_path.write_text(
            json.dumps({"machine": machine(host_target()), "rows": rows}, indent=1) + "\n"
        )
    print(page(rows))


if __name__ == "__main__":
    typer.run(main)
