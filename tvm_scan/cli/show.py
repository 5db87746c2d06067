"""``tvm-scan show``: one record."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tvm_scan.cli.support.options import Folder, Json, Svg
from tvm_scan.cli.support.paths import check_folder
from tvm_scan.cli.support.terminal import print_json, print_wrapped, visible

if TYPE_CHECKING:
    from tvm_scan.meta.store.summary import Summary


#: Facts that have a line with words of its own.
_TOLD = {"date", "host", "machine", "processor", "cores", "tvm", "tvm_scan", "seed", "function"}
#: Facts for machines: what they say is in other lines, or is a digest.
_HIDDEN = {"asked", "plans", "program", "shapes"}


def command(
    folder: Folder,
    record: Annotated[str, typer.Argument(help="id as list prints it, or its beginning")],
    details: Annotated[
        bool, typer.Option("--details", help="its costs by analysis, tree and trace, too")
    ] = False,
    svg: Svg = None,
    as_json: Json = False,
) -> None:
    """Show one record: its plan, what it gains, and where it was measured.

    Example: tvm-scan show tvm_scan_records 3f2a
    """
    check_folder(svg)
    from tvm_scan.cli.support.summaries import one_of, read_listing, row_of

    records = read_listing(folder).records
    chosen = one_of(records, record)
    loop = _loop(chosen, records)
    report: dict[str, Any] = {
        **row_of(chosen),
        "times": chosen.times,
        "loop_seconds": loop,
        "target_attributes": chosen.target,
        "provenance": chosen.facts,
    }
    if details or svg is not None:
        report |= _details(folder, chosen.digest, svg)
    if as_json:
        print_json(report)
        return
    _show(chosen, loop)
    if details:
        _show_details(report)
    if svg is not None:
        print(f"drawn: {svg}")


def _loop(record: Summary, records: list[Summary]) -> float | None:
    """Seconds of the sequential loop of the same function and target, where it is on record."""
    times = [
        other.seconds
        for other in records
        if other.function == record.function
        and other.target == record.target
        and other.reason is None
        and other.is_loop
    ]
    return min(times, default=None)


def _show(record: Summary, loop: float | None) -> None:
    from tvm_scan.meta.measure.duration import duration

    facts = {key: visible(value) for key, value in record.facts.items()}
    low, high = min(record.times), max(record.times)
    spread = f", from {duration(low)} to {duration(high)}" if len(record.times) > 1 else ""
    count = f"the median of {len(record.times)}" if len(record.times) > 1 else "measured once"
    _line(f"record    {record.digest}")
    if record.reason is not None:
        _line(f"unusable  {visible(record.reason)}")
    _line(f"function  {visible(record.name)}, parameters of {visible(record.shapes)}")
    _line(f"plan      {visible(' + '.join(record.plans))}")
    _line(f"time      {duration(record.seconds)}, {count}{spread}")
    if loop is not None and not record.is_loop:
        _line(f"gain      {loop / record.seconds:.2f} times as fast as the loop's {duration(loop)}")
    target = ", ".join(f"{key} {value}" for key, value in record.target.items() if _is_told(value))
    _line(f"target    {visible(target)}")
    _line(f"date      {facts.get('date', 'not known')}")
    cores = f", {facts['cores']} cores" if "cores" in facts else ""
    machine = " ".join(facts[key] for key in ("processor", "machine") if key in facts)
    _line(f"machine   {facts.get('host', 'not known')}: {machine}{cores}")
    _line(f"versions  tvm {facts.get('tvm', '?')}, tvm_scan {facts.get('tvm_scan', '?')}")
    _line(f"seed      {facts.get('seed', 'not known')}, of the search")
    for name, value in facts.items():
        if name not in _TOLD | _HIDDEN:
            _line(f"{visible(name):9} {value}")


def _line(text: str) -> None:
    print_wrapped(text, 10)


def _is_told(value: Any) -> bool:
    return isinstance(value, str | int) and value not in ("", 0)


def _details(folder: Path, digest: str, svg: Path | None) -> dict[str, Any]:
    """Costs and tree of each recurrence, and the trace; the tree is drawn where that is wanted."""
    from tvm_scan._files import write_file
    from tvm_scan.cli.draw.tree_svg import tree_svg
    from tvm_scan.cli.draw.tree_text import tree_text
    from tvm_scan.cli.support.records import find_entry
    from tvm_scan.meta import RecordStore
    from tvm_scan.schedules.analysis import analyse
    from tvm_scan.schedules.machine.machine import Machine

    entry = find_entry(RecordStore(folder), digest)
    parts = []
    for plan, recurrence in zip(entry.plans, analyse(entry.func).accepted, strict=False):
        costs = plan.cost(recurrence, Machine.of(entry.target)).as_data()
        parts.append({"plan": str(plan), "costs": costs, "tree": tree_text(recurrence, plan)})
        if svg is not None:
            write_file(svg, tree_svg(recurrence, plan))
    return {"recurrences": parts, "trace": str(entry.record.trace)}


def _show_details(report: dict[str, Any]) -> None:
    from tvm_scan.cli.support.costs import cost_lines

    for part in report["recurrences"]:
        print(f"cost, on paper, of {part['plan']}")
        for text in cost_lines(part["costs"]):
            print_wrapped(f"    {text}", 24)
        print("tree")
        for text in part["tree"].splitlines():
            print_wrapped(f"    {visible(text)}".rstrip(), 12)
    print("trace")
    for text in report["trace"].splitlines():
        print(f"    {visible(text)}")
