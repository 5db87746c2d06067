"""Every record of a database, built and run again beside its loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tvm
from tvm.target import Target

from tvm_scan.arguments import host_target
from tvm_scan.cli.support.failure import NO_RECORD, WRONG_RESULT, CommandError
from tvm_scan.cli.support.load import missing_device
from tvm_scan.cli.support.terminal import print_json, visible
from tvm_scan.cuda_math import build
from tvm_scan.errors import ScanError
from tvm_scan.meta.measure.check import Case, first_difference, make_cases
from tvm_scan.meta.store.database import RecordStore
from tvm_scan.meta.store.entry import Entry
from tvm_scan.meta.store.replay import replay_record
from tvm_scan.schedules.machine.device import device_of

Row = dict[str, Any]


def rerun_records(folder: Path, as_json: bool) -> None:
    """Print; see ``tvm-scan verify --help``."""
    store = RecordStore(folder)
    good, others = store.usable()
    cases: dict[tuple[str, ...], list[Case]] = {}
    rows = [_row(entry, "passed over", reason) for entry, reason in others]
    for number, entry in enumerate(good, 1):
        if not as_json:
            print(f"\r{number} of {len(good)}", end="", flush=True)
        rows.append(_run(entry, cases))
    if as_json:
        print_json({"records": rows, "rejected": store.rejected, "bad_lines": store.bad_lines})
    else:
        _show(rows)
    wrong = [row for row in rows if row["result"] == "wrong"]
    if wrong:
        raise CommandError(
            f"expected every record to give the loop's results, found {len(wrong)} that do not; "
            f"they are {', '.join(row['id'] for row in wrong)}; please report them",
            WRONG_RESULT,
        )
    if not any(row["result"] == "right" for row in rows):
        raise CommandError(
            f"expected a record that can run here in {folder}, found none of {len(rows)}; "
            "tvm-scan list says why",
            NO_RECORD,
        )


def _row(entry: Entry, result: str, detail: str | None = None) -> Row:
    plans = [] if entry.unknown or entry.fault else [str(plan) for plan in entry.plans]
    name = str((entry.facts or {}).get("function", "?"))
    about = {"id": entry.digest, "function": name, "plans": plans}
    return {**about, "result": result, "detail": detail}


def _run(entry: Entry, known: dict[tuple[str, ...], list[Case]]) -> Row:
    of = device_of(entry.target)
    if missing := missing_device(entry.target):
        return _row(entry, "passed over", missing)
    if not of.is_gpu and not _runs_here(entry.target):
        return _row(entry, "passed over", "expected a record for this machine's processor")
    key = tuple(entry.workload)
    try:
        if key not in known:
            known[key] = make_cases(entry.func)
        func = replay_record(entry.record, entry.mod, entry.func, entry.target)
        built = build(func.with_attr("global_symbol", "main"), entry.target)["main"]
    except (ScanError, RuntimeError, ValueError, TypeError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return _row(entry, "wrong", f"expected a record that can be built, got: {lines[-1]}")
    difference = first_difference(known[key], built, tvm.device(of.runtime, 0))
    return _row(entry, "right" if difference is None else "wrong", difference)


def _runs_here(target: Target) -> bool:
    """Return whether code for the target's processor may run here: it is this one, or generic."""
    here = host_target()
    if target.kind != here.kind:
        return False
    wanted = str((target.attrs or {}).get("mcpu") or "")
    return wanted in ("", "generic", str(here.attrs.get("mcpu")))


def _show(rows: list[Row]) -> None:
    print("\r", end="")
    for row in rows:
        detail = f"  {row['detail']}" if row["detail"] else ""
        print(visible(f"{row['id'][:8]}  {row['result']:<11}  {row['function']}{detail}"))
    counts = {r: sum(row["result"] == r for row in rows) for r in ("right", "wrong", "passed over")}
    print(", ".join(f"{count} {name}" for name, count in counts.items()))
