"""How rounding errors grow with length: the loop in float32, and trees, beside float64.

``python -m bench.numerics --json bench/results/numerics.json --plot docs/images/numerics.svg``
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tvm
import typer
from tabulate import tabulate

from bench.timing import machine
from tests.numerics.cases import CASES, inputs_of, longest_product, source_of
from tests.numerics.runs import FINITE, TREE, exact_and_magnitude, in_units, regimes, run, scan
from tests.programs.suite.running import CPU
from tvm_scan import ScanPlan

__all__ = ["main"]

_LENGTHS = [2**k for k in range(4, 21, 2)]
_SEEDS = 3
_PLANS = {
    "loop": None,
    "three_phase, 8 chunks": TREE,
    "three_phase, 64 chunks": ScanPlan.of("cpu", "three_phase", chunks=64, lane_block=4),
}


def measure(lengths: list[int], only: str = "") -> list[dict[str, Any]]:
    """Largest error over ``k u M`` per family, gates, length and plan; median of three draws."""
    rows = []
    for name, case in CASES.items():
        if not case.k or only not in name:
            continue
        loop = tvm.compile(source_of(case, "float32"), target=CPU)
        for gates in regimes(case):
            for length in lengths:
                errors: dict[str, list[float]] = {plan: [] for plan in _PLANS}
                for seed in range(_SEEDS):
                    inputs = inputs_of(case, gates, length, "float32", seed=seed)
                    exact, magnitude = exact_and_magnitude(name, inputs)
                    finite = (longest_product(case, inputs) < FINITE) & (magnitude < FINITE)
                    for label, plan in _PLANS.items():
                        compiled = loop if plan is None else scan(name, plan)
                        got = run(compiled, case, inputs, "float32")
                        units = in_units(case, got, exact, magnitude, finite)
                        errors[label].append(float(units.max(initial=0.0)))
                rows.append(
                    {
                        "case": name,
                        "gates": gates,
                        "length": length,
                        **{label: float(np.median(found)) for label, found in errors.items()},
                    }
                )
    return rows


def page(rows: list[dict[str, Any]]) -> str:
    """Markdown: the longest length of every case."""
    longest = max(row["length"] for row in rows)
    last = [row for row in rows if row["length"] == longest]
    head = ["case", "gates", *_PLANS]
    body = [[row["case"], row["gates"], *(f"{row[label]:.3g}" for label in _PLANS)] for row in last]
    return str(tabulate(body, head, tablefmt="github"))


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """One panel per case: error over length for the loop and the trees, beside the laws."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.fonttype"] = "none"
    from matplotlib import pyplot

    names = list(dict.fromkeys(row["case"] for row in rows))
    figure, panels = pyplot.subplots(
        2, -(-len(names) // 2), figsize=(16, 6.4), sharex=True, sharey=True
    )
    lengths = np.array(_LENGTHS)
    for panel, name in zip(panels.flat, names, strict=False):
        own = [row for row in rows if row["case"] == name]
        for color, label in enumerate(_PLANS):
            worst = [
                max(row[label] for row in own if row["length"] == length) for length in _LENGTHS
            ]
            panel.plot(lengths, np.maximum(worst, 1e-2), f"C{color}o-", ms=3, lw=1, label=label)
        panel.plot(lengths, lengths + 16, "k-", lw=0.8, label="t + c")
        panel.plot(lengths, 2 * np.sqrt(lengths + 16), "k--", lw=0.8, label="2 sqrt(t + c)")
        panel.set(title=name, xscale="log", yscale="log")
        panel.grid(alpha=0.3)
    for panel in list(panels.flat)[len(names) :]:
        panel.set_axis_off()
    for panel in panels[-1]:
        panel.set_xlabel("steps")
    for row in panels:
        row[0].set_ylabel("largest error / (k u M)")
    handles, labels = panels.flat[0].get_legend_handles_labels()
    figure.tight_layout(rect=(0, 0, 1, 0.94))
    figure.legend(handles, labels, loc="upper center", ncols=len(labels), frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def main(
    json_path: Annotated[Path | None, typer.Option("--json", help="File for the figures.")] = None,
    plot_path: Annotated[Path | None, typer.Option("--plot", help="File for the plot.")] = None,
    only: Annotated[str, typer.Option(help="A part of the families' names.")] = "",
    longest: Annotated[int, typer.Option(help="Steps of the longest run.")] = _LENGTHS[-1],
) -> None:
    """Measure the growth of rounding errors and print the table."""
    rows = measure([length for length in _LENGTHS if length <= longest], only)
    if json_path:
        json_path.write_text(json.dumps({"machine": machine(CPU), "rows": rows}, indent=1) + "\n")
    if plot_path:
        plot(rows, plot_path)
    print(page(rows))


if __name__ == "__main__":
    typer.run(main)
