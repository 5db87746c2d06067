"""``tvm-scan list``, ``show``, ``best`` and ``apply``: what a database holds, and its use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tvm_scan import tir
from tvm_scan._files import write_file, write_library
from tvm_scan.cli.draw.tree_svg import tree_svg
from tvm_scan.cli.draw.tree_text import tree_text
from tvm_scan.cli.support.failure import BAD_INPUT, NO_RECORD, CommandError
from tvm_scan.cli.support.load import make_target
from tvm_scan.cli.support.terminal import print_json, print_table, visible
from tvm_scan.cli.tune import is_model, load_program
from tvm_scan.cuda_math import build
from tvm_scan.errors import ScanError
from tvm_scan.meta.measure.check import recurrences_of
from tvm_scan.meta.measure.progress import duration
from tvm_scan.meta.store.database import RecordStore
from tvm_scan.meta.store.entry import Entry
from tvm_scan.meta.store.nearest import tuned_function
from tvm_scan.schedules.machine.machine import Machine

__all__ = [
    "apply_records",
    "best_record",
    "find_entry",
    "list_records",
    "open_store",
    "shapes_text",
    "show_record",
]


def open_store(folder: Path) -> RecordStore:
    """A database that can be read.

    Raises
    ------
    CommandError
        If there is none in the folder.
    """
    store = RecordStore(folder)
    try:
        store.entries()
    except ScanError as error:
        raise CommandError(str(error)) from error
    return store


def shapes_text(entry: Entry) -> str:
    """Shapes of a record's parameters, each once."""
    shapes = []
    for param in entry.func.params:
        text = "x".join(str(tir.as_int(e) or "?") for e in tir.shape_of(param))
        if text not in shapes:
            shapes.append(text)
    return " ".join(shapes)


def _row(entry: Entry, reason: str | None) -> dict[str, Any]:
    facts = entry.facts or {}
    readable = not entry.unknown and entry.fault is None
    return {
        "id": entry.digest,
        "function": str(facts.get("function", "?")),
        "shapes": shapes_text(entry) if readable else "?",
        "target": str(entry.json[2].get("kind", "?")),
        "plans": [str(plan) for plan in entry.plans] if readable else [],
        "seconds": entry.seconds,
        "date": str(facts.get("date", "?")),
        "host": str(facts.get("host", "?")),
        "unusable": reason,
    }


def list_records(folder: Path, as_json: bool) -> None:
    """Print; see ``tvm-scan list --help``."""
    store = open_store(folder)
    good, others = store.usable()
    rows = [_row(e, None) for e in good] + [_row(e, reason) for e, reason in others]
    rows.sort(key=lambda row: (row["function"], row["target"], row["shapes"], row["seconds"]))
    if as_json:
        print_json({"records": rows, "rejected": store.rejected, "bad_lines": store.bad_lines})
        return
    shown = []
    for row in rows:
        plan = " + ".join(row["plans"]) if row["unusable"] is None else f"({row['unusable']})"
        about = [row["id"][:8], row["function"], row["shapes"], row["target"]]
        shown.append([*about, duration(row["seconds"]), plan, row["date"][:10]])
    heads = ("id", "function", "shapes", "target", "time", "plan", "date")
    print_table(heads, shown, whole=("id",), plain=True)
    print(f"{len(good)} usable records, {len(others)} others, {store.bad_lines} bad lines")


def find_entry(store: RecordStore, digest: str) -> Entry:
    """The record whose id begins so.

    Raises
    ------
    CommandError
        If there is not exactly one.
    """
    found = [e for e in store.entries() if e.digest.startswith(digest)]
    if len(found) != 1 or not digest:
        raise CommandError(
            f"expected the id of one record, got {digest!r}, which {len(found)} records have; "
            "tvm-scan list prints them",
            NO_RECORD if not found else BAD_INPUT,
        )
    (entry,) = found
    if entry.unknown is not None:
        raise CommandError(f"{entry.unknown}; drop the record with tvm-scan prune --foreign")
    if entry.fault is not None:
        raise CommandError(f"{entry.fault}; drop the record with tvm-scan prune --bad")
    return entry


def show_record(folder: Path, digest: str, svg: Path | None, as_json: bool) -> None:
    """Print; see ``tvm-scan show --help``."""
    entry = find_entry(open_store(folder), digest)
    parts: list[dict[str, Any]] = []
    for plan, found in zip(entry.plans, recurrences_of(entry.func), strict=False):
        costs = plan.cost(found, Machine.of(entry.target)).as_data()
        parts.append({"plan": str(plan), "costs": costs, "tree": tree_text(found, plan)})
        if svg is not None:
            if not svg.parent.is_dir():
                raise CommandError(f"expected a folder at {svg.parent}, found none; create it")
            write_file(svg, tree_svg(found, plan))
    provenance = dict(entry.facts or {})
    times = provenance.pop("samples", None)
    if not (isinstance(times, list) and times and all(isinstance(t, float) for t in times)):
        times = [float(t) for t in entry.json[1]]  # written by TVM alone, or by another hand
    report = {
        **_row(entry, None),
        "times": times,
        "target_attributes": str(entry.target),
        "provenance": provenance,
        "recurrences": parts,
        "trace": str(entry.record.trace),
    }
    if as_json:
        print_json(report)
        return
    print(f"record    {entry.digest}")
    print(f"function  {visible(report['function'])}  {report['shapes']}")
    print(f"target    {visible(entry.target)}")
    print(f"time      {duration(entry.seconds)}, median of {len(report['times'])}")
    for name, value in report["provenance"].items():
        print(f"{visible(name):10}{visible(value)}")
    for part in parts:
        print(f"plan      {part['plan']}")
        print("costs")
        for name, value in part["costs"].items():
            print(f"    {name:10}{value:.6g}")
        print("tree")
        for line in part["tree"].splitlines():
            print(f"    {visible(line)}")
    print("trace")
    for line in report["trace"].splitlines():
        print(f"    {visible(line)}")


def best_record(
    folder: Path,
    what: str,
    name: str | None,
    shape: str | None,
    dtype: str,
    target_name: str,
    as_json: bool,
) -> None:
    """Print; see ``tvm-scan best --help``."""
    store, target = open_store(folder), make_target(target_name)
    rows = []
    for key, func in load_program(what, name, shape, dtype, target).items():
        entry = store.best(func, target)
        rows.append((key, None if entry is None else _row(entry, None)))
    if as_json:
        print_json(dict(rows))
    for key, row in rows if not as_json else []:
        if row is not None:
            print(f"{key}  {duration(row['seconds'])}  {' + '.join(row['plans'])}  {row['id']}")
    missing = [key for key, row in rows if row is None]
    if missing:
        raise CommandError(_none_for(store, target, missing), NO_RECORD)


def _none_for(store: RecordStore, target: Any, missing: list[str]) -> str:
    reasons = sorted({reason for _, reason in store.usable(target)[1]})
    passed = f" (passed over: {'; '.join(reasons)})" if reasons else ""
    return (
        f"expected a record of {', '.join(missing)} for this target in {store.folder}, found none"
        f"{passed}; run tvm-scan tune with the same shapes and target"
    )


def apply_records(
    folder: Path,
    what: str,
    output: Path,
    name: str | None,
    shape: str | None,
    dtype: str,
    target_name: str,
    as_json: bool,
) -> None:
    """Print; see ``tvm-scan apply --help``."""
    path = Path(what)
    if is_model(path):
        from tvm_scan.cli.compile import compile_file

        compile_file(path, output, target_name, folder, None, as_json)
        return
    import tvm

    store, target = open_store(folder), make_target(target_name)
    program = load_program(what, name, shape, dtype, target)
    mod = tvm.IRModule()
    applied: dict[str, dict[str, Any]] = {}
    for key, func in program.items():
        tuned = tuned_function(store, func, target)
        if tuned is None:
            raise CommandError(_none_for(store, target, [key]), NO_RECORD)
        applied[key] = {
            "record": tuned.records[0],
            "plans": [str(plan) for plan in tuned.plans],
            "exact": tuned.exact,
        }
        mod.update_func(tvm.ir.GlobalVar(key), tuned.func.with_attr("global_symbol", key))
    if output.suffix != ".so":
        raise CommandError(f"expected --output as a .so file, got {output.name}; name it so")
    if not output.parent.is_dir():
        raise CommandError(f"expected a folder at {output.parent}, found none; create it")
    write_library(build(mod, target), output)
    if as_json:
        print_json({"library": str(output), "functions": applied})
        return
    for key, used in applied.items():
        near = "" if used["exact"] else "  (of the nearest recorded shape)"
        print(f"{key}  {' + '.join(used['plans'])}  {used['record']}{near}")
    print(f"written: {output}; load it with tvm.runtime.load_module({str(output.resolve())!r})")
