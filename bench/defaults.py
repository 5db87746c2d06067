"""Is the default plan ever slower than the sequential loop? Lengths 16 to 2^22, every layout.

Each line is one interleaved run in one process: the sequential TensorIR loop, the default plan
and a plain copy of the same bytes (the physical floor) take turns; medians are printed.

    python -m bench.defaults [--quick] [--json bench/results/defaults.json]
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm.target import Target

from bench.answers import require_law, run_loop
from bench.origin import origin
from bench.timing import interleaved, machine
from tvm_scan import Recurrence, default_plan, extract, parallelize
from tvm_scan.arguments import host_target
from tvm_scan.library import LIBRARY

__all__ = ["main"]

LENGTHS = tuple(4**k for k in range(2, 12))
#: Elements of one array above which a combination is left out (memory, not interest).
LARGEST = 1 << 24


@dataclass(frozen=True)
class Case:
    """A recurrence of the library at one size."""

    name: str
    sizes: tuple[int, ...]
    options: dict[str, Any]

    @property
    def label(self) -> str:
        """Name, sizes and what differs from the factory's defaults."""
        extra = "".join(f" {key}={value}" for key, value in self.options.items())
        return f"{self.name}{self.sizes}{extra}"

    @property
    def func(self) -> Any:
        """The sequential function."""
        return LIBRARY[self.name].factory(*self.sizes, **self.options)


@dataclass(frozen=True)
class Row:
    """Medians of one case in microseconds, and the spread (interquartile over median)."""

    case: str
    plan: str
    sequential_us: float
    default_us: float
    copy_us: float
    ratio: float
    spread: float


def cases(quick: bool) -> list[Case]:
    """Every case of the table."""
    out = []
    for length in LENGTHS[: 1 if quick else None]:
        for rows in (1, 3, 8, 64, 1024):
            if rows * length > LARGEST:
                continue
            out.append(Case("cumsum", (rows, length), {}))
            out.append(Case("linear_recurrence", (rows, length), {}))
            if rows >= 8:
                out.append(Case("cumsum", (rows, length), {"axis": 0}))
                out.append(Case("linear_recurrence", (rows, length), {"layout": "ld"}))
        if length <= 1 << 16:
            out.append(Case("cummax", (8, length), {}))
        if length <= 1 << 14:
            for channels in (1, 16):
                out.append(Case("selective_scan", (1, channels, length, 16), {}))
    return out


def measure(case: Case, target: Target) -> Row:
    """Run one case."""
    entry, func = LIBRARY[case.name], case.func
    found = extract(func)
    assert isinstance(found, Recurrence), found
    plan = default_plan(target, found)
    rng = np.random.default_rng(0)
    inputs = entry.example_inputs(rng, *case.sizes, **case.options)
    given = [np.ascontiguousarray(v) for v in inputs.values()]
    reads = [tvm.runtime.tensor(v) for v in given]
    _, written = entry.parameters(func)
    shapes = {str(p.name): [int(e) for e in p.ty.shape] for p in func.params}
    writes = [tvm.runtime.tensor(np.zeros(shapes[name], "float32")) for name in written]
    wide = entry.factory(*case.sizes, dtype="float64", **case.options)
    doubles = [a.astype("float64") for a in (*given, *(w.numpy() for w in writes))]
    want = dict(zip(written, run_loop(wide, doubles, target)[len(given) :], strict=True))
    symbol = str(func.attrs["global_symbol"])
    loops = {
        "sequential": tvm.compile(func, target=target)[symbol],
        "default": tvm.compile(parallelize(func, target, plan), target=target)[symbol],
    }
    for label, run in loops.items():
        run(*reads, *writes)
        got = {name: tensor.numpy() for name, tensor in zip(written, writes, strict=True)}
        require_law(f"{case.label}, {label}", found, got, want)
    total = sum(int(np.prod(t.shape)) for t in (*reads, *writes)) // 2
    source, sink = np.zeros(total, "float32"), np.zeros(total, "float32")
    calls = {
        "sequential": lambda: loops["sequential"](*reads, *writes),
        "default": lambda: loops["default"](*reads, *writes),
        "copy": lambda: np.copyto(sink, source),
    }
    times = interleaved(calls)
    ratio = times["sequential"].median / times["default"].median
    if plan.keeps_loop:
        ratio = 1.0  # the same program: what differs is noise
    return Row(
        case.label,
        str(plan),
        times["sequential"].median * 1e6,
        times["default"].median * 1e6,
        times["copy"].median * 1e6,
        ratio,
        times["default"].spread,
    )


def main(argv: list[str] | None = None) -> int:
    """Print the table, write JSON, and say whether any default was slower."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the first length alone")
    parser.add_argument("--json", type=Path, help="where to write the result")
    parser.add_argument("--markdown", type=Path, help="where to write the table as a page")
    args = parser.parse_args(argv)
    target = host_target()
    rows = []
    print(f"{'case':<52} {'sequential':>11} {'default':>11} {'copy':>10} {'ratio':>6}  plan")
    for case in cases(args.quick):
        row = measure(case, target)
        rows.append(row)
        print(
            f"{row.case:<52} {row.sequential_us:>9.1f}us {row.default_us:>9.1f}us "
            f"{row.copy_us:>8.1f}us {row.ratio:>6.2f}  {row.plan}",
            flush=True,
        )
    slower = [row for row in rows if row.ratio < 0.95]
    best = max(rows, key=lambda row: row.ratio)
    other = sum("sequential" not in row.plan for row in rows)
    print(
        f"\n{len(rows)} cases, {other} of them with another plan than the loop; slower than it by "
        f"more than 5 %: {len(slower)}"
    )
    for row in slower:
        print(f"  {row.case}: {row.ratio:.2f} with {row.plan} (spread {row.spread:.0%})")
    print(f"largest gain: {best.ratio:.1f}x on {best.case}")
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        payload = {"machine": machine(target), "rows": [asdict(row) for row in rows]}
        args.json.write_text(json.dumps(payload, indent=1) + "\n")
    if args.markdown:
        args.markdown.write_text(page(rows, machine(target)))
    return 0


def page(rows: list[Row], host: dict[str, Any]) -> str:
    """The table as a Markdown page."""
    lines = [
        "# Default plans against the sequential loop",
        "",
        f"Measured on {host['date']} ({origin(host)}) "
        f"on {host['cores']} cores of {host['cpu']}, TVM {host['tvm']}, "
        f"TVM_NUM_THREADS={host['TVM_NUM_THREADS'] or 'unset'}, by `python -m bench.defaults`: the "
        "loop, the default plan and a copy of the same bytes take turns in one process; medians, "
        "in microseconds. Sizes are (lanes, steps), or (batch, channels, steps, states) of the "
        f"selective scan. In {sum('sequential' in row.plan for row in rows)} of the {len(rows)} "
        "cases the default is the sequential loop: both are one program, and the ratio is 1 by "
        "definition. The machine is shared, so that single rows vary; the spread is "
        "the interquartile range over the median.",
        "",
        "| case | loop | default | copy | ratio | spread | plan |",
        "|---|---:|---:|---:|---:|---:|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row.case} | {row.sequential_us:.1f} | {row.default_us:.1f} | {row.copy_us:.1f} "
            f"| {row.ratio:.2f} | {row.spread:.0%} | `{row.plan}` |"
        )
    slower = [row.case for row in rows if row.ratio < 0.95]
    other = sum("sequential" not in row.plan for row in rows)
    lines += [
        "",
        f"Slower than the loop by more than 5 %, of the {other} cases with another plan: "
        f"{', '.join(slower) or 'none'}.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
