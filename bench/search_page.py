"""The curve of ``bench.search`` and its part of docs/tuning.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bench.origin import origin

__all__ = ["STRATEGIES", "mean", "plot", "with_part", "write_markdown"]

STRATEGIES = ("model", "random")
BEGIN, END = "<!-- search -->", "<!-- /search -->"


def mean(curves: np.ndarray) -> np.ndarray:
    """Geometric mean over seeds."""
    return np.exp(np.log(curves).mean(axis=0))


def plot(curves: dict[str, dict[str, np.ndarray]], path: Path) -> None:
    """Draw the geometric mean over all workloads and seeds, and its spread over seeds."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for strategy, colour in zip(STRATEGIES, ("#1f6feb", "#8b949e"), strict=True):
        logs = np.mean([np.log(found[strategy]) for found in curves.values()], axis=0)
        steps = np.arange(1, logs.shape[1] + 1)
        low, middle, high = np.exp(np.percentile(logs, [10, 50, 90], axis=0))
        name = "tvm_scan's search" if strategy == "model" else "random search"
        axes.plot(steps, middle, color=colour, label=name)
        axes.fill_between(steps, low, high, color=colour, alpha=0.2)
    axes.set_xlabel("trials (the first two are the default plan and the loop)")
    axes.set_ylabel("time over the best plan of the space")
    axes.set_title(f"Best so far, geometric mean of {len(curves)} workloads", fontsize=10)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def markdown(result: dict[str, Any]) -> str:
    """The part of docs/tuning.md between its marks."""
    host, areas = result["machine"], result["mean_over_trials"]
    trials = max(len(row["model"]) for row in result["workloads"].values())
    rows = result["workloads"].values()
    least = min(rows, key=lambda row: row["ranking"]["mean"] / row["ranking"]["chance"])["ranking"]
    trained = least["trained_on"]
    lines = [
        "`python -m bench.search --write` times every plan of "
        f"{len(result['workloads'])} workloads once, then runs both searches over those times "
        f"with {result['seeds']} seeds; random "
        "search, too, begins with the default plan and the loop. The curve is the best time so far "
        "over the best of the space, a geometric mean; over all "
        f"{trials} trials it is {areas['model']:.3f} for the search and {areas['random']:.3f} "
        f"for random search. {host['cores']} cores of {host['cpu']} ({host['date']}; "
        f"{origin(host)}), "
        "microseconds:",
        "",
        "*Ranking* is the rank correlation (Spearman's) of what the cost model predicts for the "
        f"plans that it has not seen with their times, after {trained} others drawn at random: "
        f"the mean and, in brackets, the least of {result['seeds']} draws. *Chance* is what one "
        "ranking in 40 drawn at random exceeds. *Learnt* is how many of the draws the model has "
        "found fit to steer the search.",
        "",
        "![Best time so far by trials](images/search.svg)",
        "",
        f"| workload | plans | loop | default | best | best plan | search after {trials} "
        f"| random after {trials} | ranking | chance | learnt |",
        "|---|---:|---:|---:|---:|---|---:|---:|---:|---:|---:|",
    ]
    for name, row in result["workloads"].items():
        loop, default, best = (
            "" if row[key] is None else f"{row[key] * 1e6:.4g}"
            for key in ("sequential_seconds", "default_seconds", "best_seconds")
        )
        ends = " | ".join(f"{row[s][-1]:.2f}" for s in STRATEGIES)
        ranking = row["ranking"]
        ranks = f"{ranking['mean']:.2f} ({ranking['least']:.2f}) | {ranking['chance']:.2f}"
        about = f"{name} | {row['space']} | {loop} | {default} | {best} | `{row['best']}`"
        lines.append(f"| {about} | {ends} | {ranks} | {ranking['learnt']} |")
    return "\n".join(lines)


def with_part(result: dict[str, Any], text: str) -> str:
    """A page with another part between its marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin and end, f"expected {BEGIN} and {END} in the page"
    return f"{before}{BEGIN}\n{markdown(result)}\n{END}{after}"


def write_markdown(result: dict[str, Any], path: Path) -> None:
    """Replace what is between the marks of a page."""
    path.write_text(with_part(result, path.read_text(encoding="utf-8")), encoding="utf-8")
