"""The tables of ``bench.gpu`` and ``bench.gpu_choice`` on their page."""

from __future__ import annotations

from statistics import geometric_mean
from typing import Any

from bench.origin import origin

__all__ = ["choices", "default_and_best", "tables"]


def tables(result: dict[str, Any]) -> str:
    """Times of default plans and peers, the ladders, and what was compared with float64.

    Parameters
    ----------
    result : dict
        Of ``bench.gpu``.
    """
    about, copy = result["machine"], result["copy"]
    known = ", ".join(
        f"{name} {about[name]}" for name in ("tvm", "torch", "triton", "jax") if about.get(name)
    )
    lines = [
        f"{about['gpu']}: {known}, nvcc {about['nvcc']}, {about['date']} ({origin(about)}). A copy "
        f"of a gigabyte moves {copy / 1e9:.0f} GB/s, what is read and what is written together.",
        "",
        _compared(result["errors"]),
    ]
    times = [row for row in result["times"] if "median" in row]
    cases = list(dict.fromkeys(row["case"] for row in times if row["name"] == "default"))
    for family in dict.fromkeys(case.split()[0] for case in cases):
        mine = sorted((case for case in cases if case.split()[0] == family), key=_order)
        lines += ["", f"### {family}", "", *_family(mine, times)]
        for case in mine:
            steps = [row for row in times if row["case"] == case and row.get("step")]
            if steps:
                lines += ["", f"Plans of {case}, one choice after another:", "", *_ladder(steps)]
    steps = [row for row in times if row["case"].startswith("gelu")]
    if steps:
        lines += ["", f"### {steps[0]['case']}", "", *_ladder(steps)]
    failed = [row for row in result["times"] if "failed" in row]
    reasons = dict.fromkeys((r["name"], r["failed"].split("\n")[0][:100]) for r in failed)
    if reasons:
        lines += ["", "Without a time:", ""]
        lines += [f"- {name}: {reason}" for name, reason in reasons]
    return "\n".join(lines)


def _order(case: str) -> tuple[str, list[int]]:
    """By dtype, float32 first, and size."""
    _, sizes, dtype = case.split()
    return dtype[::-1], [int(size) for size in sizes.split("x")]


def _compared(errors: list[dict[str, Any]]) -> str:
    right = [row for row in errors if "error" in row]
    worst = max(right, key=lambda row: row["error"] / row["bound"])
    wrong = len(errors) - sum(row["error"] <= row["bound"] for row in right)
    return (
        f"{len(errors)} plans were compared with float64, {wrong} of them wrong; the largest error "
        f"is {worst['error'] / worst['bound']:.2f} of its bound ({worst['case']}, {worst['plan']})."
    )


def _family(cases: list[str], times: list[dict[str, Any]]) -> list[str]:
    """A row for each case; a peer's cell has its time and how many times ours it is."""
    peers = [row for row in times if row["case"] in cases and row.get("peer")]
    names = list(dict.fromkeys(row["name"] for row in peers))
    lines = ["| case | us | of a copy | " + " | ".join(names) + " | plan |"]
    lines += ["|---|---:|---:|" + "---:|" * len(names) + "---|"]
    for case in cases:
        ours = next(r for r in times if r["case"] == case and r["name"] == "default")
        cells = []
        for name in names:
            row = next((r for r in peers if r["case"] == case and r["name"] == name), None)
            cells.append(_cell(row, ours))
        sizes = case.partition(" ")[2]
        lines.append(
            f"| {sizes} | {_us(ours['median'])} | {100 * ours['of_copy']:.0f} % | "
            + " | ".join(cells)
            + f" | `{ours['plan']}` |"
        )
    return lines


def _cell(row: dict[str, Any] | None, ours: dict[str, Any]) -> str:
    if row is None:
        return ""
    ratio = row["median"] / ours["median"]
    shown = f"{ratio:.2f}"
    return f"{_us(row['median'])} ({f'**{shown}**' if ratio < 0.995 else shown})"


def _ladder(steps: list[dict[str, Any]]) -> list[str]:
    lines = ["| plan | us | of a copy |", "|---|---:|---:|"]
    lines += [
        f"| {row['name']} | {_us(row['median'])} | {100 * row['of_copy']:.0f} % |" for row in steps
    ]
    return lines


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.1f}" if seconds < 1e-3 else f"{seconds * 1e6:.0f}"


def default_and_best(
    rows: list[dict[str, Any]], case: str
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The row of a case's default plan and that of its quickest one; None without a default.

    Parameters
    ----------
    rows : list of dict
        Of ``bench.gpu_choice``.
    case : str
        Its name.
    """
    timed = [row for row in rows if row["case"] == case and "median" in row]
    default = next((row for row in timed if row["kind"] == "default"), None)
    if default is None:
        return None
    return default, min(timed, key=lambda row: float(row["median"]))


def choices(result: dict[str, Any]) -> str:
    """The default of each case beside the best plan that was timed, and the prediction.

    Parameters
    ----------
    result : dict
        Of ``bench.gpu_choice``.
    """
    about = result["machine"]
    lines = [f"{about['gpu']}: {len(result['rows'])} plans ({origin(about)}).", ""]
    lines += ["| case | default, us | predicted | over the best | best plan, where another |"]
    lines += ["|---|---:|---:|---:|---|"]
    regrets = []
    for case in dict.fromkeys(row["case"] for row in result["rows"]):
        found = default_and_best(result["rows"], case)
        if found is None:
            continue
        default, best = found
        regrets.append(default["median"] / best["median"])
        other = "" if best is default else f"`{best['plan']}`"
        lines.append(
            f"| {case} | {_us(default['median'])} | {_us(default['predicted'])} | "
            f"{regrets[-1]:.2f} | {other} |"
        )
    mean, worst = geometric_mean(regrets), max(regrets)
    lines += ["", f"Geometric mean of {len(regrets)} cases {mean:.3f}, at most {worst:.2f}."]
    return "\n".join(lines)
