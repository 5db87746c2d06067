"""How long extraction and classification of one function take.

    python -m bench.extraction [--json bench/results/extraction.json]
        [--markdown docs/extraction.md]

Each function is extracted seven times; the table gives the median of each and over all.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from bench.origin import origin
from bench.timing import machine
from tests.programs.accepted_programs import PROGRAMS as FORMS
from tests.programs.family_programs import PROGRAMS as FAMILIES
from tests.programs.refused_programs import REFUSED
from tests.programs.suite.classes import ACCEPTED
from tests.programs.suite.classes import REFUSED as NEAR_MISSES
from tvm_scan import extract, library
from tvm_scan.arguments import host_target

__all__ = ["main"]

_ROUNDS = 7


def functions() -> dict[str, Any]:
    """Loops of every form and family, the library's large ones, and refused ones."""
    return {
        **{f"form: {name}": entry[0] for name, entry in FORMS.items()},
        **{f"family: {name}": entry[0] for name, entry in FAMILIES.items()},
        **{f"refused: {name}": entry[0] for name, entry in REFUSED.items()},
        **{f"suite: {name}": program.func for name, program in ACCEPTED.items()},
        **{f"near miss: {name}": program.func for name, program in NEAR_MISSES.items()},
        "library: selective scan (blocks)": library.selective_scan(2, 64, 2048, 16),
        "library: selective scan (step)": library.selective_scan(2, 64, 2048, 16, form="step"),
    }


def milliseconds(func: Any) -> float:
    """Median time of one extraction."""
    times = []
    for _ in range(_ROUNDS):
        start = perf_counter()
        extract(func)
        times.append(perf_counter() - start)
    return median(times) * 1e3


def main(argv: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="where to write the result")
    parser.add_argument("--markdown", type=Path, help="where to write the table as a page")
    parser.add_argument("--quick", action="store_true", help="ten functions only")
    args = parser.parse_args(argv)
    taken = list(functions().items())[: 10 if args.quick else None]
    rows = sorted(((milliseconds(f), name) for name, f in taken), reverse=True)
    host = machine(host_target())
    lines = [
        "# Time of extraction and classification",
        "",
        f"Measured on {host['date']} ({origin(host)}) on {host['cpu']}, TVM {host['tvm']}, "
        f"by `python -m bench.extraction`: {len(rows)} functions, median of {_ROUNDS} runs each. "
        f"Median over all: {median(t for t, _ in rows):.1f} ms; slowest: {rows[0][0]:.1f} ms. "
        "The ten slowest:",
        "",
        "| function | ms |",
        "|---|---:|",
        *(f"| {name} | {time:.1f} |" for time, name in rows[:10]),
        "",
    ]
    print("\n".join(lines))
    if args.json:
        found = {"machine": host, "milliseconds": {name: time for time, name in rows}}
        args.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if args.markdown:
        args.markdown.write_text("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
