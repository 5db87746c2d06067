"""The commands that look at plans, records and this machine, and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tvm_scan.cli.app_records import Dtype, Folder, Json, Name, Shape, Target, What

__all__ = ["register"]


def _compare(
    what: What,
    sides: Annotated[
        list[str],
        typer.Argument(
            help="two or more of: loop, default, a plan, a folder of records, FOLDER@ID"
        ),
    ],
    func: Name = None,
    shape: Shape = None,
    dtype: Dtype = "float32",
    target: Target = "cpu",
    seconds: Annotated[float, typer.Option("--seconds", min=0.0, help="to measure all")] = 2.0,
    as_json: Json = False,
) -> None:
    """Measure plans of one recurrence in turns: time, speed against the first, and its spread.

    Each is checked against the loop; exit code 1 if one is wrong.

    Example: tvm-scan compare library:cumsum loop default 'cpu/lanes(lane_block=2)'
    """
    from tvm_scan.cli.compare import compare_sides

    compare_sides(what, sides, func, shape, dtype, target, seconds, as_json)


def _doctor(
    database: Annotated[
        Path | None, typer.Option("--database", help="folder of records to look at, too")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what is installed, what this machine is, and the command for what is missing.

    Exit code 1 if tvm_scan cannot work; what only some commands need is no failure.

    Example: tvm-scan doctor
    """
    from tvm_scan.cli.doctor import doctor

    doctor(database, as_json)


def _calibrate(as_json: Json = False) -> None:
    """Measure this machine, so that default plans are chosen by what it does.

    Takes under a minute; nothing else should run meanwhile.

    Example: tvm-scan calibrate
    """
    from tvm_scan.cli.calibrate import run_calibration

    run_calibration(as_json)


def _report(
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
    from tvm_scan.cli.report import write_report

    write_report(folder, output, roof, as_json)


def _bench(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(help="which one; what follows it are its own arguments")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure: tvm-scan bench cpu, and the others; without a name, list them.

    They are in tvm_scan's repository, not in the installed package.

    Example: tvm-scan bench
    """
    from tvm_scan.cli.bench import run_benchmark

    if name is not None and as_json:
        context.args.insert(0, "--json")
    code = run_benchmark(name, context.args, as_json)
    if code:
        raise typer.Exit(code)


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    own = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command("bench", context_settings=own)(_bench)
    for name, command in (
        ("calibrate", _calibrate),
        ("compare", _compare),
        ("doctor", _doctor),
        ("report", _report),
    ):
        app.command(name)(command)
