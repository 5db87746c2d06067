"""What tuning gains over the default plans, on the library; the records that are shipped.

Every workload is searched for its share of the minutes (or read from ``--database``, where it was
searched before). Then the loop, the default plan and the three fastest of the search take turns in
one process, and the winner of these, the default and the loop once more, five times over. A plan is
worth a record if it beats the default by 5 % in four of the five.

    python -m bench.tuned --minutes 12 --database build/tuned --write-records \\
        --json bench/results/tuned.json --markdown docs/tuned.md

``--only torch:`` and ``--markdown docs/torch/tuned.md`` do so for the loops of ``tvm_scan.torch``.

Started again with the same ``--database``, it goes on where it was ended.
"""

from __future__ import annotations

import argparse
import base64
import json
import re
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

import numpy as np
import tvm
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from bench.here import Here
from bench.origin import origin
from bench.timing import GAP, interleaved, machine
from bench.tuned_torch import TORCH_WORKLOADS, torch_loop
from tvm_scan import Recurrence, ScanPlan, __version__, default_plan, extract, parallelize
from tvm_scan._versions import tvm_version
from tvm_scan.arguments import host_target
from tvm_scan.library import LIBRARY
from tvm_scan.meta import RecordStore, tune
from tvm_scan.meta.measure.check import compare, make_cases
from tvm_scan.meta.store.entry import Entry
from tvm_scan.meta.store.nearest import shapes_of
from tvm_scan.meta.store.rows import program_digest
from tvm_scan.schedules.choose.shipped import machine_key

__all__ = ["main"]

#: Name, sizes and options. Sizes: (lanes, steps), (batch, channels, steps, states), and those of
#: `bench.tuned_torch`.
WORKLOADS: tuple[tuple[str, tuple[int, ...], dict[str, Any]], ...] = (
    *(("cumsum", s, {}) for s in ((1, 1 << 12), (1, 1 << 20), (64, 4096), (1024, 1024))),
    *(("cumprod", s, {}) for s in ((1, 1 << 16), (64, 4096))),
    *(("cummax", s, {}) for s in ((1, 1 << 16), (16, 1 << 15), (64, 4096))),
    *(("cummin", s, {}) for s in ((16, 1 << 15),)),
    *(("ema", s, {}) for s in ((1, 1 << 16), (256, 2048))),
    *(("linear_recurrence", s, {}) for s in ((1, 1 << 12), (1, 1 << 18), (4, 1 << 16), (64, 4096))),
    *(("linear_recurrence", s, {"layout": "ld"}) for s in ((64, 4096), (512, 1024))),
    *(("selective_scan", s, {}) for s in ((1, 16, 1024, 16), (1, 64, 1024, 16), (1, 64, 4096, 16))),
    *TORCH_WORKLOADS,
)
RECORDS = Path(__file__).resolve().parents[1] / "meta" / "records"
#: Gain from which a record is worth its bytes; measurements of it, and how many must agree.
WORTH, REPEATS, AGREE = 1.05, 5, 4
#: Plans of a search that go into the first run in turns.
FINALISTS = 3
#: Seconds that a search has in any case, and that the runs in turns take beside their timing.
LEAST_SECONDS, OVERHEAD = 4.0, 5.0


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
            return torch_loop(self.name[6:].split()[0], self.sizes, self.options)
        return LIBRARY[self.name].factory(*self.sizes, **self.options)


def searched(case: Case, target: Target, folder: Path, trials: int, until: float) -> list[Entry]:
    """The database's fastest records of a workload; searched for first where it has none."""
    own = folder / re.sub(r"\W+", "-", case.label)  # small: it is read at every commit
    store, done = RecordStore(own), own / "searched"
    if not done.is_file():
        here = Here(ms.runner.EvaluatorConfig(number=1, repeat=5, min_repeat_ms=5))
        minutes = max(LEAST_SECONDS, until - monotonic()) / 60
        options = {"builder": here, "runner": here.runner, "progress": False}
        tune({case.label: case.func}, target, own, trials=trials, budget=minutes, **options)
        if not (own / "manifest.json").is_file():
            return []
        done.touch()
    good, _ = store.usable(target)
    found = sorted(good, key=lambda entry: entry.seconds)
    return found[:FINALISTS]


def measure(case: Case, target: Target, entries: list[Entry], seconds: float) -> tuple[Entry, Row]:
    """The fastest of the records in turns with the default; then it, default and loop once more."""
    func = case.func
    found = extract(func)
    assert isinstance(found, Recurrence), found
    plan = default_plan(target, found)
    arguments = [tvm.runtime.tensor(a) for a in make_cases(func)[0].inputs]
    loop = ScanPlan.of("cpu", "sequential")
    built = {
        p: tvm.compile(parallelize(func, target, p).with_attr("global_symbol", "main"), target)
        for p in {loop, plan, *(entry.plans[0] for entry in entries)}
    }
    for checked in make_cases(func):
        for p, run in built.items():
            given = [tvm.runtime.tensor(a) for a in checked.inputs]
            run["main"](*given)
            wrong = compare(checked, [given[i].numpy() for i, _ in checked.expected])
            assert wrong is None, f"{p}: {wrong}"
    calls = {str(p): (lambda f=f["main"]: f(*arguments)) for p, f in built.items()}
    first = interleaved(calls, seconds=seconds / 2, gap=GAP)
    entry = min(entries, key=lambda one: first[str(one.plans[0])].median)
    tuned = entry.plans[0]
    finals = {str(p): calls[str(p)] for p in (loop, plan, tuned)}
    each = seconds / 2 / REPEATS
    runs = [interleaved(finals, seconds=each, gap=GAP) for _ in range(REPEATS)]
    micro = [median(run[str(p)].median for run in runs) * 1e6 for p in (loop, plan, tuned)]
    gains = [run[str(plan)].median / run[str(tuned)].median for run in runs]
    worth = sum(gain >= WORTH for gain in gains) >= AGREE
    gain = median(gains)
    row = Row(case.label, *micro, gain, min(gains), max(gains), str(plan), str(tuned), worth)
    return entry, row


def write_records(folder: Path, target: Target, made: list[tuple[Case, Entry, Row]]) -> Path:
    """Replace the shipped records of this machine's kind.

    The manifest also says for which shapes the default stands, so that a neighbour's plan does not
    take its place.
    """
    key = machine_key(target)
    store = RecordStore(folder / f"{key['kind']}-{key['processor'] or 'any'}-{key['cores']}")
    kept, defaults = others(store, [case for case, _, _ in made])
    for case, entry, row in made:
        if not row.worth:
            defaults += shapes_of(case.func)
            continue
        times = {"seconds": row.tuned_us / 1e6, "default_seconds": row.default_us / 1e6}
        facts = {**(entry.facts or {}), "function": case.label, **times}
        facts.pop("host", None)  # whose machine it was is nobody's business
        facts.pop("samples", None)
        facts.pop("summary", None)  # of the program with its paths
        workload = without_paths(entry.workload)
        facts["program"] = program_digest(workload)
        kept.append(Entry(entry.digest, workload, entry.json, facts))
    about = {"machine": key, "tvm": tvm_version(), "tvm_scan": __version__, "defaults": defaults}
    store.update(lambda _: kept, compact=True, about=about)
    (store.folder / ".lock").unlink(missing_ok=True)
    return store.folder


def others(store: RecordStore, cases: list[Case]) -> tuple[list[Entry], list[Any]]:
    """What is shipped already for shapes that were not measured now: it stays."""
    if not (store.folder / "manifest.json").is_file():
        return [], []
    now = [json.loads(json.dumps(shape)) for case in cases for shape in shapes_of(case.func)]
    manifest = json.loads((store.folder / "manifest.json").read_text())
    good, _ = store.usable()
    kept = [e for e in good if not any(s in now for s in (e.facts or {}).get("shapes", []))]
    return kept, [shape for shape in manifest["defaults"] if shape not in now]


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
        f"Measured on {host['date']} ({origin(host)}) "
        f"on {host['cores']} cores of {host['cpu']}, TVM {host['tvm']}, "
        f"TVM_NUM_THREADS={host['TVM_NUM_THREADS'] or 'unset'}, by `python -m bench.tuned`: the "
        "sequential loop, the default plan and the best plan of a search take turns in one "
        f"process, after a first such run chose among the {FINALISTS} fastest of the search; "
        "medians in microseconds. Sizes are lanes x steps, or batch x channels x steps x states; "
        "of the loops behind PyTorch's functions outer x inner x steps, batch x groups x channels "
        "x length x steps, or batch x heads x lanes x steps. "
        f"The gain over the default is the median of {REPEATS} such runs, with the least and the "
        f"largest; a plan is shipped as a record if it gains 5 % in {AGREE} of them.",
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
    parser.add_argument("--trials", type=int, default=200, help="of each search, at most")
    parser.add_argument("--minutes", type=float, default=12.0, help="for all workloads")
    parser.add_argument("--seconds", type=float, default=2.0, help="to time each workload")
    parser.add_argument("--database", type=Path, help="folder to read from, and to tune into")
    parser.add_argument("--json", type=Path, help="where to write the result")
    parser.add_argument("--markdown", type=Path, help="where to write the table as a page")
    parser.add_argument("--write-records", action="store_true", help="replace the shipped records")
    parser.add_argument("--records", type=Path, default=RECORDS, help="the folder for that")
    args = parser.parse_args(argv)
    target = host_target()
    starts = tuple((args.only or "").split(","))
    made: list[tuple[Case, Entry, Row]] = []
    with tempfile.TemporaryDirectory(prefix="tvm-scan-tuned-") as scratch:
        cases = [Case(*workload) for workload in WORKLOADS]
        cases = [case for case in cases if case.label.startswith(starts)]
        end = monotonic() + args.minutes * 60
        for number, case in enumerate(cases):
            # Less what timing and compiling the finalists will take.
            share = (end - monotonic()) / (len(cases) - number) - args.seconds - OVERHEAD
            folder = args.database or Path(scratch)
            entries = searched(case, target, folder, args.trials, monotonic() + share)
            if not entries:
                print(f"{case.label:<36} not one candidate ran in time; run the command again")
                continue
            entry, row = measure(case, target, entries, args.seconds)
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
