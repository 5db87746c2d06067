"""The tables of ``bench.relax_models`` as a Markdown page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench.model_sizes import REAL
from bench.origin import origin

__all__ = ["Row", "page"]


@dataclass(frozen=True)
class Row:
    """One model at one length; errors relative to the largest logit, None for not measured.

    Attributes
    ----------
    model, kind, length : str, str, int
        ``prefill`` of so many tokens, or ``decode`` of the last one of them.
    scans : str
        Families that were found.
    error, error_long : float or None
        Against the library's own forward; of a decode also against one long prefill.
    export_s, compile_s, run_ms : float
        ``torch.export``, our import and compilation, one call.
    scans_ms, products_ms : float or None
        Of a call, within recurrences, and within matrix products.
    tvm_compile_s, tvm_run_ms, tvm_says : float, float, str
        The same through TVM alone.
    """

    model: str
    kind: str
    length: int
    scans: str = ""
    error: float | None = None
    error_long: float | None = None
    export_s: float | None = None
    compile_s: float | None = None
    run_ms: float | None = None
    scans_ms: float | None = None
    products_ms: float | None = None
    tvm_compile_s: float | None = None
    tvm_run_ms: float | None = None
    tvm_says: str = "not measured"


_HEAD = (
    "model", "step", "scans", "error", "export s", "compile s", "run ms", "of it scans",
    "of it products", "TVM compile s", "TVM run ms", "TVM",
)  # fmt: skip


def page(rows: list[Row], missing: list[str], host: dict[str, Any], real: bool) -> str:
    """The tables as a Markdown page."""
    products = (
        " Matrix products are NumPy's (its BLAS, one thread) in both columns: TVM's wheel has no "
        "BLAS, and its default CPU pipeline leaves products as three plain loops, which would be "
        "nearly all of the time of either. The vocabulary has 97 words."
    )
    beside = (
        " The machine did other work meanwhile: runs were timed in front of it, exports and "
        "compilations beside it."
    )
    lines = [
        "# Models through tvm_scan",
        "",
        f"Measured on {host['date']} ({origin(host)}) "
        f"on {host['cores']} cores of {host['cpu']}, TVM {host['tvm']}, "
        f"transformers {host['transformers']}, by `python -m bench.relax_models"
        f"{'' if real else ' --small'}`. Two layers, "
        "random weights, float32. Errors are against the library's own forward, relative to the "
        "largest logit. Export is `torch.export` alone, which both need; compile time is import "
        "and compilation; `TVM` is the same through TVM's importer and default pipeline without "
        "tvm_scan. What a call spends in scans and in products is from other calls, which are "
        "watched, and somewhat slower for it. A decode is one token with the state that the "
        "compiled prefill before it left." + products * real + beside * bool(host.get("shared")),
        "",
        f"| {' | '.join(_HEAD)} |",
        "|---|---|---|" + "---:|" * 8 + "---|",
    ]
    for r in rows:
        cells = [
            r.model,
            f"{r.kind} {r.length}" if r.kind == "prefill" else f"decode after {r.length - 1}",
            r.scans,
            _text(r.error, ".1e"),
            _text(r.export_s, ".1f"),
            _text(r.compile_s, ".1f"),
            _text(r.run_ms, ".2f"),
            _text(r.scans_ms, ".2f"),
            _text(r.products_ms, ".2f"),
            _text(r.tvm_compile_s, ".1f"),
            _text(r.tvm_run_ms, ".2f"),
            r.tvm_says,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [f"\n{name}: nothing within the time." for name in missing]
    if real:
        lines += ["", "| model | sizes |", "|---|---|"]
        for name in dict.fromkeys(row.model for row in rows):
            listed = ", ".join(f"{key} {value}" for key, value in REAL[name].items())
            lines.append(f"| {name} | {listed} |")
    decodes = [row for row in rows if row.error_long is not None]
    lines += ["", "Prefill followed by decode, against one long prefill:", ""]
    lines += ["| model | error |", "|---|---:|"]
    lines += [f"| {row.model} | {_text(row.error_long, '.1e')} |" for row in decodes]
    return "\n".join([*lines, ""])


def _text(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
