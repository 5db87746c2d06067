"""``tvm-scan show``: one record."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tvm_scan.cli.support.options import Folder, Json, Svg
from tvm_scan.cli.support.paths import check_database, check_folder
from tvm_scan.cli.support.terminal import print_json, visible

__all__ = ["command"]


def command(
    folder: Folder,
    record: Annotated[str, typer.Argument(help="id as list prints it, or its beginning")],
    svg: Svg = None,
    as_json: Json = False,
) -> None:
    """Show one record: plan, costs, tree, provenance and trace.

    Example: tvm-scan show tvm_scan_records 3f2a
    """
    check_database(folder)
    check_folder(svg)
    from tvm_scan._files import write_file
    from tvm_scan.cli.draw.tree_svg import tree_svg
    from tvm_scan.cli.draw.tree_text import tree_text
    from tvm_scan.cli.support.records import find_entry, open_store, row_of
    from tvm_scan.meta.measure.check import recurrences_of
    from tvm_scan.meta.measure.progress import duration
    from tvm_scan.schedules.machine.machine import Machine

    entry = find_entry(open_store(folder), record)
    parts: list[dict[str, Any]] = []
    for plan, found in zip(entry.plans, recurrences_of(entry.func), strict=False):
        costs = plan.cost(found, Machine.of(entry.target)).as_data()
        parts.append({"plan": str(plan), "costs": costs, "tree": tree_text(found, plan)})
        if svg is not None:
            write_file(svg, tree_svg(found, plan))
    provenance = dict(entry.facts or {})
    times = provenance.pop("samples", None)
    if not (isinstance(times, list) and times and all(isinstance(t, float) for t in times)):
        times = [float(t) for t in entry.json[1]]  # written by TVM alone, or by another hand
    report = {
        **row_of(entry, None),
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
