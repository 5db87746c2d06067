"""Models of Hugging Face transformers through tvm_scan: imported, compiled, compared with eager.

Random weights from a seed, two layers, the libraries' own modelling code, nothing downloaded. For
each model, in a process of its own with a time limit: a prefill at several lengths and the decode
of one token from the state of the first; the largest error against the library's own forward
(relative to the largest logit), and the time to import and compile, and to run, with and without
tvm_scan. What a model has by its limit is kept, and written after every model.

    python -m bench.relax_models [--small] [--lengths 16 64] [--json FILE] [--markdown FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.limited import within
from bench.model_cases import measure_model
from bench.model_pages import Row, page
from bench.model_sizes import MODELS
from bench.timing import machine
from tvm_scan.arguments import host_target

__all__ = ["main"]

_SMALL, _REAL = (32, 128), (16, 64, 256)


def main(argv: list[str] | None = None) -> int:
    """Print the table, and write it where asked, again after every model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--lengths", nargs="+", type=int, help="16 64 256; with --small 32 128")
    parser.add_argument("--plain-up-to", type=int, help="longest length for TVM alone; 64, 128")
    parser.add_argument("--small", action="store_true", help="small heads and states: a check")
    parser.add_argument("--seconds", type=float, default=85, help="for each model")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--resume", action="store_true", help="keep what --json has by now")
    args = parser.parse_args(argv)
    # Two pools of threads that wait by spinning would slow each other down.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    lengths = args.lengths or (_SMALL if args.small else _REAL)
    plain = args.plain_up_to or (128 if args.small else 64)
    host = {**machine(host_target()), "transformers": metadata.version("transformers")}
    rows = _earlier(args.json) if args.resume else []
    missing: list[str] = []
    for name in args.models:
        if any(row.model == name for row in rows):
            continue
        start = time.perf_counter()
        found = within(args.seconds, measure_model, name, lengths, plain, not args.small)
        rows += found or []
        rows.sort(key=lambda row: list(MODELS).index(row.model))
        missing += [] if found else [name]
        for row in found or []:
            print(row, flush=True)
        print(f"{name}: {len(found or [])} rows in {time.perf_counter() - start:.0f} s", flush=True)
        if args.json:
            payload: dict[str, Any] = {"machine": host, "rows": [asdict(r) for r in rows]}
            args.json.write_text(json.dumps(payload, indent=1) + "\n")
        if args.markdown:
            args.markdown.write_text(page(rows, missing, host, not args.small))
    return 1 if missing else 0


def _earlier(path: Path | None) -> list[Row]:
    if path is None or not path.exists():
        return []
    return [Row(**row) for row in json.loads(path.read_text())["rows"]]


if __name__ == "__main__":
    sys.exit(main())
