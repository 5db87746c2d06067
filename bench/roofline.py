"""Draw where the default plans lie under the roofs of an H200, by the cost model on paper.

``python -m bench.roofline`` writes docs/images/roofline.svg and prints two tables of
docs/cuda/model.md. Nothing is measured: what a GPU says is bench.gpu's to tell.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tvm.target import Target

from bench.gpu_loops import affine, rwkv6, selective_halves
from tvm_scan import ScanPlan, default_plan, extract, library
from tvm_scan.schedules.machine.gpu_chip import H200
from tvm_scan.schedules.machine.gpu_cost import GpuCost
from tvm_scan.schedules.machine.machine import Machine

__all__ = ["main", "others", "predictions", "roofs", "table"]

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "roofline.svg"


def _target(arch: str) -> Target:
    limits = {"max_threads_per_block": 1024, "max_shared_memory_per_block": 49152}
    return Target({"kind": "cuda", "arch": arch, **limits}, host={"kind": "llvm"})


_TARGET = _target("sm_90")
#: Threads of a warp; bytes of a line.
_WARP, _LINE = 32, 128
CASES = {
    "cumsum 1 x 2^28": lambda: library.cumsum(1, 1 << 28),
    "cumsum 64 x 32768": lambda: library.cumsum(64, 32768),
    "cumsum 2048 x 4096": lambda: library.cumsum(2048, 4096),
    "affine 12288 x 128": lambda: library.linear_recurrence(12288, 128),
    "affine 12288 x 65536": lambda: library.linear_recurrence(12288, 65536),
    "affine 12288 x 65535": lambda: library.linear_recurrence(12288, 65535),
    "affine 1024 x 12288, lanes last": lambda: library.linear_recurrence(12288, 1024, layout="ld"),
    "selective 8 x 2048 x 2048": lambda: library.selective_scan(8, 2048, 2048, 16),
    "selective 1 x 2048 x 2048": lambda: library.selective_scan(1, 2048, 2048, 16),
    "selective 1 x 2048 x 65536": lambda: library.selective_scan(1, 2048, 65536, 16),
    "selective 1 x 8 x 65536": lambda: library.selective_scan(1, 8, 65536, 16),
    **{f"rwkv6 32 x {t} x 64 x 64": (lambda t=t: rwkv6(32, t, 64)) for t in (128, 1024, 8192)},
}
#: The same loops in other dtypes and layouts, and of sizes that are not known.
OTHERS = {
    "affine 12288 x 65536, bfloat16": lambda: affine(12288, 65536, "bfloat16"),
    "affine, sizes not known": lambda: library.linear_recurrence(None, None),
    "affine, lanes last, sizes not known": lambda: library.linear_recurrence(
        None, None, layout="ld"
    ),
    "maximum 512 x 4096, float64": lambda: library.cummax(512, 4096, "float64"),
    "selective 8 x 2048 x 2048, bfloat16": lambda: selective_halves(8, 2048, 2048, 16, "bfloat16"),
    "selective 1 x 2048 x 2048, bfloat16": lambda: selective_halves(1, 2048, 2048, 16, "bfloat16"),
    "selective 1 x 2048 x 2048, channels last": lambda: library.selective_scan(
        1, 2048, 2048, 16, layout="bld", form="step"
    ),
    "selective, batch and length not known": lambda: library.selective_scan(None, 2048, None, 16),
    "selective, no size known": lambda: library.selective_scan(None, None, None, 16),
}
_ARCHES = ("sm_80", "sm_90", "sm_100")
#: A thread for each lane, which walks its whole length: what others call sequential.
_SEQUENTIAL = ScanPlan.of("cuda", "sequential", threads_per_block=32)


Row = tuple[str, str, GpuCost, GpuCost]


def predictions() -> list[Row]:
    """Return name, default plan, its prediction and that of the sequential loop, by case."""
    rows = []
    for name, make in CASES.items():
        found = extract(make())
        plan = default_plan(_TARGET, found)
        costs = [p.cost(found, Machine.of(_TARGET)) for p in (plan, _SEQUENTIAL)]
        rows.append((name, str(plan), costs[0], costs[1]))
    return rows


def roofs(cost: GpuCost) -> dict[str, tuple[float, float]]:
    """Work of each kind that a multiprocessor is limited in.

    Parameters
    ----------
    cost : GpuCost
        A prediction.

    Returns
    -------
    dict
        Name -> how much of it a plan does, and how much the chip does in a second.
    """
    peak = H200.multiprocessors * H200.clock
    return {
        "thread instructions": (cost.work * _WARP, peak * H200.issue * _WARP),
        "special functions": (cost.specials, peak * H200.special),
        # What touches a line: shared memory has a bandwidth of one per clock, the caches as well.
        "bytes in lines of 128": (cost.lines * peak * _LINE, peak * _LINE),
    }


def _draw(rows: list[Row], path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "roofline"
    import matplotlib.pyplot as plt
    import numpy as np

    names = list(roofs(rows[0][2]))
    figure, panels = plt.subplots(1, len(names), figsize=(14, 5))
    for panel, kind in zip(panels, names, strict=True):
        peak = roofs(rows[0][2])[kind][1]
        ridge = peak / H200.bandwidth
        x = np.logspace(np.log10(ridge) - 2, np.log10(ridge) + 1, 100)
        roof = np.minimum(x * H200.bandwidth, peak)
        panel.loglog(x, roof, "k", label="4.3 TB/s, and the chip's most")
        for number, (name, _, cost, _) in enumerate(rows):
            work = roofs(cost)[kind][0]
            # The colours begin again behind the tenth.
            mark, colour = "os"[number // 10], f"C{number % 10}"
            if work:
                panel.plot(work / cost.bytes, work / cost.seconds, mark, color=colour, label=name)
        panel.set_xlabel(f"{kind} per byte of memory")
        panel.set_ylabel(f"{kind} per second")
    panels[0].legend(fontsize=6, loc="lower right")
    figure.suptitle("Default plans under the roofs of an H200, predicted")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def table(rows: list[Row]) -> list[str]:
    """The table of predictions in docs/cuda/model.md."""
    lines = [
        "| case | plan | memory | exp | issue | lines | chain | predicted | sequential |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, plan, c, loop in rows:
        bounds: Any = (c.memory, c.exponentials, c.issue, c.lines, c.chain, c.seconds, loop.seconds)
        numbers = " | ".join(f"{1e6 * seconds:.1f}" for seconds in bounds)
        lines.append(f"| {name} | `{plan}` | {numbers} |")
    return lines


def others() -> list[str]:
    """The default plans by architecture in docs/cuda/model.md; equal ones share a row."""
    lines = ["| case | multiprocessors | plan |", "|---|---|---|"]
    for name, make in OTHERS.items():
        found = extract(make())
        plans: dict[str, list[str]] = {}
        for arch in _ARCHES:
            target = _target(arch)
            count = Machine.of(target).multiprocessors
            plans.setdefault(str(default_plan(target, found)), []).append(str(count))
        lines += [f"| {name} | {', '.join(c)} | `{plan}` |" for plan, c in plans.items()]
    return lines


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=PICTURE)
    chosen = parser.parse_args()
    rows = predictions()
    _draw(rows, chosen.out)
    print("\n".join([*table(rows), "", *others()]))


if __name__ == "__main__":
    main()
