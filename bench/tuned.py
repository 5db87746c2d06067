"""What tuning gains over the default plans, on the library; the records that are shipped.

Every workload is tuned (or read from ``--database``, where it has a record of it), then the
sequential loop, the default plan and the tuned one take turns in one process, five times over. A
plan is worth a record if it beats the default by 5 % in four of the five.

    python -m bench.tuned --json bench/results/tuned.json --markdown docs/tuned.md
    python -m bench.tuned --write-records        # and replaces meta/records/<this machine>
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import tvm
from tvm.target import Target

from bench.timing import interleaved, machine
from tvm_scan import Recurrence, ScanPlan, __version__, default_plan, extract, parallelize
from tvm_scan._versions import tvm_version
from tvm_scan.library import LIBRARY
from tvm_scan.meta import RecordStore, tune
from tvm_scan.meta.check import make_cases
from tvm_scan.meta.entry import Entry
from tvm_scan.meta.nearest import shapes_of
from tvm_scan.schedules.shipped import machine_of

__all__ = ["main"]

#: What the kernels of tvm_scan.torch are made with for a call without options.
_TORCH = {"dtype": "float32", "reverse": False, "time_last": True}
_SUM = {**_TORCH, "op": "add", "exclusive": False}
_SCAN = {**_TORCH, "emit": "inclusive", "has_initial": False}
TORCH_SIZES = ("outer", "inner", "length")
#: Name, sizes and options. Sizes: (lanes, steps), (batch, channels, steps, states), and those of
#: torch (outer, inner, steps).
WORKLOADS: tuple[tuple[str, tuple[int, ...], dict[str, Any]], ...] = (
    *(("cumsum", s, {}) for s in ((1, 1 << 12), (1, 1 << 20), (64, 4096), (1024, 1024))),
    *(("cumprod", s, {}) for s in ((1, 1 << 16), (64, 4096))),
    *(("cummax", s, {}) for s in ((1, 1 << 16), (16, 1 << 15), (64, 4096))),
    *(("cummin", s, {}) for s in ((16, 1 << 15),)),
    *(("ema", s, {}) for s in ((1, 1 << 16), (256, 2048))),
    *(("linear_recurrence", s, {}) for s in ((1, 1 << 12), (1, 1 << 18), (4, 1 << 16), (64, 4096))),
    *(("linear_recurrence", s, {"layout": "ld"}) for s in ((64, 4096), (512, 1024))),
    *(("selective_scan", s, {}) for s in ((1, 16, 1024, 16), (1, 64, 1024, 16), (1, 64, 4096, 16))),
    *(("torch:cumulative", s, _SUM) for s in ((1, 1, 1 << 16), (64, 1, 4096))),
    *(("torch:affine", s, _SCAN) for s in ((1, 1, 1 << 16), (64, 1, 4096))),
)
RECORDS = Path(__file__).resolve().parents[1] / "meta" / "records"
#: Gain from which a record is worth its bytes; measurements of it, and how many must agree.
WORTH, REPEATS, AGREE = 1.05, 5, 4


@dataclass(frozen=True)
class Row:
    """Medians of one workload in microseconds."""

    case: str
    loop_us: float
    default_us: float
    tuned_us: float
    gain: float
    least: float
    most: float
    default: str
    tuned: str
    worth: bool


@dataclass(frozen=True)
class Case:
    """One workload at one size."""

    name: str
    sizes: tuple[int, ...]
    options: dict[str, Any]

    @property
    def label(self) -> str:
        """Name, sizes and what differs from the factory's defaults."""
        shown = {} if self.name.startswith("torch:") else self.options
        extra = "".join(f" {key}={value}" for key, value in shown.items())
        return f"{self.name} {'x'.join(map(str, self.sizes))}{extra}"

    @property
    def func(self) -> Any:
        """The sequential function."""
        if self.name.startswith("torch:"):
            from tvm_scan.torch.kernels import KernelSpec, loop_of

            spec = KernelSpec(self.name[6:], tuple(sorted(self.options.items())), TORCH_SIZES)
            return loop_of(spec, self.sizes)
        return LIBRARY[self.name].factory(*self.sizes, **self.options)


def best_entry(case: Case, target: Target, folder: Path, trials: int) -> Entry:
    """The database's record of a workload; tuned first where it has none."""
    store = RecordStore(folder)
    if folder.is_dir() and any(folder.iterdir()):
        found = store.best(case.func, target)
        if found is not None:
            return found
    tune({case.name: case.func}, target, folder, trials=trials, progress=False)
    found = store.best(case.func, target)
    assert found is not None, f"no candidate of {case.label} ran"
    return found


def measure(case: Case, target: Target, tuned: ScanPlan, seconds: float) -> Row:
    """Loop, default and tuned plan in turns."""
    func = case.func
    found = extract(func)
    assert isinstance(found, Recurrence), found
    plan = default_plan(target, found)
    arguments = [tvm.runtime.tensor(a) for a in make_cases(func)[0].inputs]
    loop = ScanPlan("cpu", "sequential")
    built = {
        p: tvm.compile(parallelize(func, target, p).with_attr("global_symbol", "main"), target)
        for p in {loop, plan, tuned}
    }
    calls = {str(p): (lambda f=f["main"]: f(*arguments)) for p, f in built.items()}
    runs = [interleaved(calls, seconds=seconds / REPEATS) for _ in range(REPEATS)]
    micro = [median(run[str(p)].median for run in runs) * 1e6 for p in (loop, plan, tuned)]
    gains = [run[str(plan)].median / run[str(tuned)].median for run in runs]
    worth = sum(gain >= WORTH for gain in gains) >= AGREE
    gain = median(gains)
    return Row(case.label, *micro, gain, min(gains), max(gains), str(plan), str(tuned), worth)


def write_records(folder: Path, target: Target, made: list[tuple[Case, Entry, Row]]) -> Path:
    """Replace the shipped records of this machine's kind.

    The manifest also says for which shapes the default stands, so that a neighbour's plan does not
    take its place.
    """
    key = machine_of(target)
    store = RecordStore(folder / f"{key['kind']}-{key['processor'] or 'any'}-{key['cores']}")
    kept, defaults = [], []
    for case, entry, row in made:
        if not row.worth:
            defaults += shapes_of(case.func)
            continue
        times = {"seconds": row.tuned_us / 1e6, "default_seconds": row.default_us / 1e6}
        facts = {**(entry.facts or {}), "function": case.label, **times}
        facts.pop("host", None)  # whose machine it was is nobody's business
        kept.append(Entry(entry.digest, without_paths(entry.workload), entry.json, facts))
    about = {"machine": key, "tvm": tvm_version(), "tvm_scan": __version__, "defaults": defaults}
    store.update(lambda _: kept, compact=True, about=about)
    (store.folder / ".lock").unlink(missing_ok=True)
    for path in store.folder.iterdir():
        path.chmod(0o644)
    return store.folder


def without_paths(workload: list[str]) -> list[str]:
    """A workload whose source positions name no files of this machine; its hash stays."""
    graph = json.loads(base64.b64decode(workload[1])[8:])
    for node in graph["nodes"]:
        if node["type"] == "ir.SourceName":
            node["data"] = "tvm_scan"
    packed = json.dumps(graph, separators=(",", ":")).encode()
    return [workload[0], base64.b64encode(len(packed).to_bytes(8, "little") + packed).decode()]


def page(rows: list[Row], host: dict[str, Any]) -> str:
    """The table as a Markdown page."""
    lines = [
        "# Default plans against tuned ones",
        "",
        f"Measured on {host['date']} on {host['cores']} cores of {host['cpu']}, TVM {host['tvm']}, "
        f"TVM_NUM_THREADS={host['TVM_NUM_THREADS'] or 'unset'}, by `python -m bench.tuned`: the "
        "sequential loop, the default plan and the best plan of a search take turns in one "
        "process; medians in microseconds. Sizes are lanes x steps, or batch x channels x steps x "
        f"states. The gain over the default is the median of {REPEATS} such runs, with the least "
        f"and the largest; a plan is shipped as a record if it gains 5 % in {AGREE} of them.",
        "",
        "| workload | loop | default | tuned | gain | least to most | tuned plan | shipped |",
        "|---|---:|---:|---:|---:|---:|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row.case} | {row.loop_us:.1f} | {row.default_us:.1f} | {row.tuned_us:.1f} | "
            f"{row.gain:.2f} | {row.least:.2f} to {row.most:.2f} | `{row.tuned}` | "
            f"{'yes' if row.worth else 'no'} |"
        )
    gains = [max(row.gain, 1.0) if row.worth else 1.0 for row in rows]
    mean = float(np.exp(np.mean(np.log(gains)))) if gains else 1.0
    lines += ["", f"Geometric mean of the gain with the records, over all rows: {mean:.3f}.", ""]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Tune, measure, print; write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="workloads whose label begins so; several with commas")
    parser.add_argument("--trials", type=int, default=48, help="of each search")
    parser.add_argument("--seconds", type=float, default=2.0, help="to time each workload")
    parser.add_argument("--database", type=Path, help="folder to read from, and to tune into")
    parser.add_argument("--json", type=Path, help="where to write the result")
    parser.add_argument("--markdown", type=Path, help="where to write the table as a page")
    parser.add_argument("--write-records", action="store_true", help="replace the shipped records")
    parser.add_argument("--records", type=Path, default=RECORDS, help="the folder for that")
    args = parser.parse_args(argv)
    target = Target.from_device("cpu")
    starts = tuple((args.only or "").split(","))
    made: list[tuple[Case, Entry, Row]] = []
    with tempfile.TemporaryDirectory(prefix="tvm-scan-tuned-") as scratch:
        for case in (Case(*workload) for workload in WORKLOADS):
            if not case.label.startswith(starts):
                continue
            entry = best_entry(case, target, args.database or Path(scratch), args.trials)
            row = measure(case, target, entry.plans[0], args.seconds)
            made.append((case, entry, row))
            print(
                f"{row.case:<36} loop {row.loop_us:>9.1f} us  default {row.default_us:>9.1f} us  "
                f"tuned {row.tuned_us:>9.1f} us  {row.gain:.2f}  {row.tuned}",
                flush=True,
            )
        if args.write_records:
            print(f"written: {write_records(args.records, target, made)}")
    rows = [row for _, _, row in made]
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        payload = {"machine": machine(target), "rows": [asdict(row) for row in rows]}
        args.json.write_text(json.dumps(payload, indent=1) + "\n")
    if args.markdown:
        args.markdown.write_text(page(rows, machine(target)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
