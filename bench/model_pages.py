"""The tables of ``bench.relax_models`` as a Markdown page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench.model_sizes import REAL

__all__ = ["Row", "page"]


@dataclass(frozen=True)
class Row:
    """One model at one length; seconds, and errors relative to the largest logit."""

    model: str
    length: int
    scans: str
    error: float
    compile_s: float
    run_ms: float
    tvm_compile_s: float | None
    tvm_run_ms: float | None
    tvm_says: str


def page(
    rows: list[Row], decodes: dict[str, tuple[float, float]], host: dict[str, Any], real: bool
) -> str:
    """The tables as a Markdown page."""
    names = list(dict.fromkeys(row.model for row in rows))
    sizes = ["", "| model | sizes |", "|---|---|"] if real else []
    for name in names if real else []:
        listed = ", ".join(f"{key} {value}" for key, value in REAL[name].items())
        sizes.append(f"| {name} | {listed} |")
    lines = [
        "# Models through tvm_scan",
        "",
        f"Measured on {host['date']} on {host['cores']} cores of {host['cpu']}, TVM {host['tvm']}, "
        f"transformers {host['transformers']}, by `python -m bench.relax_models"
        f"{' --real' if real else ''}`. Two layers, "
        "random weights, float32. Errors are against the library's own forward, relative to the "
        "largest logit. Compile time is import and compilation; `TVM` is the same through TVM's "
        "importer and default pipeline without tvm_scan. The machine is shared, so times vary.",
        "",
        "| model | length | scans | error | compile s | run ms | TVM compile s | TVM run ms "
        "| TVM |",
        "|---|---:|---|---:|---:|---:|---:|---:|---|",
    ]
    for r in rows:
        theirs = "" if r.tvm_compile_s is None else f"{r.tvm_compile_s:.1f}"
        run = "" if r.tvm_run_ms is None else f"{r.tvm_run_ms:.2f}"
        lines.append(
            f"| {r.model} | {r.length} | {r.scans} | {r.error:.1e} | {r.compile_s:.1f} "
            f"| {r.run_ms:.2f} | {theirs} | {run} | {r.tvm_says} |"
        )
    lines += sizes
    lines += ["", "One token after a prefill of 23:", ""]
    lines += ["| model | error to eager decode | error to one long prefill |", "|---|---:|---:|"]
    lines += [f"| {name} | {a:.1e} | {b:.1e} |" for name, (a, b) in decodes.items()]
    return "\n".join([*lines, ""])
