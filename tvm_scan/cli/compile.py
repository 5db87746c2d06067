"""``tvm-scan compile``: a model file becomes a folder that the runtime alone can run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tvm_scan.cli.support.failure import CommandError
from tvm_scan.cli.support.options import Json, Target
from tvm_scan.cli.support.paths import check_database, check_file, check_folder
from tvm_scan.cli.support.terminal import print_json, visible

__all__ = ["command", "compile_file"]


def command(
    model: Annotated[Path, typer.Argument(help=".pt2, .onnx, or .py with an IRModule")],
    output: Annotated[Path, typer.Option("-o", "--output", help="folder to write")],
    target: Target = "cpu",
    database: Annotated[
        Path | None, typer.Option("--database", help="work directory of a tuning run")
    ] = None,
    report: Annotated[Path | None, typer.Option("--report", help="summary as HTML")] = None,
    as_json: Json = False,
) -> None:
    """Compile a model with its recurrences as scans, for the runtime alone to run.

    For another machine: --target '{"kind": "llvm", "mtriple": "aarch64-linux-gnu"}'

    Example: tvm-scan compile model.pt2 --target cpu -o model
    """
    compile_file(model, output, target, database, report, as_json)


def compile_file(
    model: Path,
    output: Path,
    target_name: str,
    database: Path | None,
    report: Path | None,
    as_json: bool,
) -> None:
    """Compile, and print what became of each recurrence."""
    check_file(model, "a model file")
    check_folder(report)
    if database is not None:
        check_database(database)
    import json

    from tvm_scan._files import write_file
    from tvm_scan.cli.draw.compile_page import render
    from tvm_scan.cli.support.load import make_target
    from tvm_scan.cli.support.models import import_model, noted, timed_step
    from tvm_scan.cli.support.records import open_store
    from tvm_scan.errors import ScanError

    target = make_target(target_name)
    records = None if database is None else open_store(database)
    with noted() as notes:
        mod = timed_step(f"importing {model.name}", lambda: import_model(model))
        from tvm_scan.relax import export

        try:
            path = timed_step(
                f"compiling for {target_name}",
                lambda: export(mod, target, output, database=records),
            )
        except ScanError as error:
            raise CommandError(str(error)) from error
    manifest = json.loads(path.read_text(encoding="utf-8"))
    if report is not None:
        write_file(report, render(model.name, manifest, notes))
    if as_json:
        print_json(manifest)
        return
    for line in _summary(manifest):
        print(visible(line))
    print(f"written: {path.parent / manifest['library']} and {path}")


def _summary(manifest: dict[str, Any]) -> list[str]:
    lines = [f"target    {manifest['target']}"]
    for scan in manifest["scans"]:
        if "refused" in scan:
            lines.append(f"refused   {scan['function']}: {scan['refused']}: {scan['detail']}")
        else:
            families = ", ".join(scan["families"])
            lines.append(
                f"scan      {scan['function']}: {families}, {scan['steps']} steps, {scan['plan']}"
            )
    if not manifest["scans"]:
        lines.append("scans     none")
    return lines
