"""The parts of docs/torch that the scripts beside this one write, between marks."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from bench.origin import origin

__all__ = ["DOCS", "calls", "first_call", "first_calls", "passes", "training", "with_part", "write"]

DOCS = Path(__file__).parents[1] / "docs" / "torch"


def write(page: Path, name: str, text: str) -> None:
    """Replace what stands between ``<!-- name -->`` and ``<!-- /name -->``."""
    page.write_text(with_part(page, name, text), encoding="utf-8")


def with_part(page: Path, name: str, text: str) -> str:
    """The page with another text between ``<!-- name -->`` and ``<!-- /name -->``."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, found, rest = page.read_text(encoding="utf-8").partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"expected {begin} and {end} in {page}; put them where the part belongs")
    return f"{before}{begin}\n{text}\n{end}{after}"


def _settings(machine: dict[str, Any]) -> str:
    names = ("cores", "TVM_NUM_THREADS", "tvm", "torch", "transformers", "date")
    known = [f"{name} {machine[name]}" for name in names if machine.get(name)]
    return f"{machine.get('gpu', machine['cpu'])}: {', '.join(known)} ({origin(machine)})."


#: Of results that do not say which commit they are of.
_EARLIER = (
    "These are figures of an earlier version of the script, which compared no results, and whose "
    "peaks are charged with imports and compilation, but for ours."
)


def passes(result: dict[str, Any]) -> str:
    """The table of ``bench.torch_bench``."""
    lines = [
        f"{_settings(result['machine'])} At least three rounds and {result['seconds']:g} s a case.",
        *([] if "commit" in result["machine"] else [_EARLIER]),
        "",
        "| case | method | ms | spread | times tvm_scan | peak MB |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for case, methods in result["passes"].items():
        ours = methods["tvm_scan"]["milliseconds"]
        for method, found in methods.items():
            lines.append(
                f"| {case} | {method} | {found['milliseconds']:.1f} | {found['spread']:.0%} | "
                f"{found['milliseconds'] / ours:.1f} | {found['peak_bytes'] / 1e6:.0f} |"
            )
    lines += ["", "| call on (8, 2), no gradient | microseconds |", "|---|---:|"]
    lines += [f"| {name} | {value:.1f} |" for name, value in result["calls_us"].items()]
    return "\n".join(lines)


def calls(result: dict[str, Any]) -> str:
    """The table of ``bench.torch_overhead``."""
    lines = [_settings(result["machine"]), "", "| call | best us | median us |", "|---|---:|---:|"]
    for name, found in result["us"].items():
        lines.append(f"| `{name}` | {found['best']:.1f} | {found['median']:.1f} |")
    return "\n".join(lines)


FIRST_CALLS = [
    "| function | first forward | first backward | next process, forward | backward |",
    "|---|---:|---:|---:|---:|",
]


def first_call(name: str, found: dict[str, dict[str, float]]) -> str:
    """A row of ``bench.torch_first_call``."""
    cells = [found[p][k] for p in ("first", "next") for k in ("forward", "backward")]
    return f"| `{name}` | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |"


def first_calls(result: dict[str, Any]) -> str:
    """The table of ``bench.torch_first_call``."""
    rows = [first_call(name, found) for name, found in result["seconds"].items()]
    return "\n".join([_settings(result["machine"]), "", *FIRST_CALLS, *rows])


def training(result: dict[str, Any]) -> str:
    """The table of ``bench.train_mamba``."""
    options, scans = result["options"], ("tvm_scan", "loop")
    pairs = zip(*(result[scan]["losses"] for scan in scans), strict=True)
    apart = max(abs(a - b) for a, b in pairs)
    lines = [
        f"{options['steps']} steps of {options['batch']} x {options['length']} bytes, "
        f"{options['depth']} layers of width {options['width']} with {options['states']} states, "
        f"rate {options['rate']:g}. {_settings(result['machine'])} Losses are bits per byte; at no "
        f"step are the two more than {apart:.1e} apart.",
        "",
        "| scan | first loss | last loss | unseen text | median step | all steps |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for scan in scans:
        run = result[scan]
        lines.append(
            f"| {scan} | {run['losses'][0]:.3f} | {run['losses'][-1]:.3f} | {run['unseen']:.3f} | "
            f"{median(run['seconds']) * 1e3:.0f} ms | {sum(run['seconds']):.0f} s |"
        )
    return "\n".join(lines)
