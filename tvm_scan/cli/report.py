"""``tvm-scan report``: a database as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tvm_scan.cli.support.failure import NO_RECORD, CommandError
from tvm_scan.cli.support.options import Folder, Json
from tvm_scan.cli.support.paths import check_database, check_folder
from tvm_scan.cli.support.terminal import print_json, visible


def command(
    folder: Folder,
    output: Annotated[Path, typer.Option("-o", "--output", help="HTML file to write")],
    roof: Annotated[
        bool, typer.Option("--roof/--no-roof", help="measure this machine's limits")
    ] = True,
    as_json: Json = False,
) -> None:
    """Write a page about a database: tables, tuning curves, roofline, trees; one file.

    Example: tvm-scan report tvm_scan_records -o report.html
    """
    check_database(folder)
    check_folder(output)
    from tvm_scan import __version__
    from tvm_scan._files import write_file
    from tvm_scan._versions import tvm_version
    from tvm_scan.arguments import host_target
    from tvm_scan.cli.draw.report_page import Report, render
    from tvm_scan.cli.support.roof import measured_roof
    from tvm_scan.cli.support.tuned import functions_of
    from tvm_scan.meta import RecordStore
    from tvm_scan.schedules.choose.shipped import machine_key

    store = RecordStore(folder)
    good, others = store.usable()
    if not good:
        raise CommandError(
            f"expected records that are usable here in {folder}, found none; see tvm-scan list",
            NO_RECORD,
        )
    functions = functions_of(good)
    passed = [(entry.digest[:8], reason) for entry, reason in others]
    passed += [("line", visible(text)) for text in store.rejected]
    here = host_target()
    report = Report(str(folder), {"tvm": tvm_version(), "tvm_scan": __version__}, functions, passed)
    if roof and any(machine_key(e.target) == machine_key(here) for e in good):
        report.roof = measured_roof(here)
    write_file(output, render(report))
    if as_json:
        rows = [
            {"function": f.name, "shapes": f.shapes, "trials": len(f.trials), "best": f.best.plan}
            for f in functions
        ]
        print_json({"page": str(output), "functions": rows, "passed_over": len(passed)})
        return
    print(f"functions: {len(functions)}, records: {len(good)}")
    print(f"written: {output}")
