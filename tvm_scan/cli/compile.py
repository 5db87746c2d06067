"""``tvm-scan compile``: a model file becomes a folder that the runtime alone can run, or a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tvm_scan.cli.support.failure import CommandError
from tvm_scan.cli.support.options import Json, Name, Plan, Shape, Target
from tvm_scan.cli.support.paths import check_database, check_file, check_folder
from tvm_scan.cli.support.terminal import print_json, visible


def command(
    model: Annotated[
        str, typer.Argument(help=".pt2, .onnx, or .py with an IRModule; of a page also a primfunc")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", "--out", help="folder to write")],
    target: Target = "cpu",
    func: Name = None,
    shape: Shape = None,
    plan: Plan = None,
    database: Annotated[
        Path | None, typer.Option("--database", help="work directory of a tuning run")
    ] = None,
    report: Annotated[Path | None, typer.Option("--report", help="summary as HTML")] = None,
    as_json: Json = False,
) -> None:
    """Compile a model with its recurrences as scans, for the runtime alone to run.

    For another machine: --target '{"kind": "llvm", "mtriple": "aarch64-linux-gnu"}'

    For a browser, a page that runs it on WebGPU beside the loop in JavaScript; of a primfunc, too:
    tvm-scan compile library:linear_recurrence --target webgpu --out page

    Example: tvm-scan compile model.pt2 --target cpu -o model
    """
    options = {"func": func, "shape": shape, "plan": plan}
    compile_file(model, output, target, database, report, as_json, **options)


def compile_file(
    model: str | Path,
    output: Path,
    target_name: str,
    database: Path | None,
    report: Path | None,
    as_json: bool,
    **options: str | None,
) -> None:
    """Compile, and print what became of each recurrence.

    Of a function, for which a page is written, `options` are its name in the file, its sizes and
    its plan.
    """
    if not str(model).startswith("library:"):
        check_file(Path(model), "a model file")
    check_folder(report)
    if database is not None:
        check_database(database)
    from tvm_scan.cli.support.load import make_target
    from tvm_scan.schedules.machine.device import device_of

    target = make_target(target_name)
    if device_of(target).in_browser:
        if report is not None:
            raise CommandError(
                "expected --report for a model of the runtime, got a page, which says itself what "
                "it runs; leave --report out"
            )
        from tvm_scan.cli.support.pages import write_page

        manifest = write_page(str(model), output, target, database=database, **options)
        lines = _page_summary(manifest)
        written = f"{output}; serve it with python -m http.server -d {output}"
    else:
        option = next((name for name, value in options.items() if value is not None), None)
        if option is not None or str(model).startswith("library:"):
            what = "a function" if option is None else f"--{option}"
            raise CommandError(
                f"expected {what} for a page alone, got the target {target_name}; pass --target "
                "webgpu, or compile the function with tvm-scan apply"
            )
        path, manifest = _exported(Path(model), output, target_name, target, database, report)
        lines = _summary(manifest)
        written = f"{path.parent / manifest['library']} and {path}"
    if as_json:
        print_json(manifest)
        return
    for line in lines:
        print(visible(line))
    print(f"written: {written}")


def _exported(
    model: Path,
    output: Path,
    target_name: str,
    target: Any,
    database: Path | None,
    report: Path | None,
) -> tuple[Path, dict[str, Any]]:
    """Export a model; the path of the manifest, and what it says."""
    import json

    from tvm_scan._files import write_file
    from tvm_scan.cli.draw.compile_page import render
    from tvm_scan.cli.support.models import import_model, noted, timed_step

    with noted() as notes:
        mod = timed_step(f"importing {model.name}", lambda: import_model(model))
        from tvm_scan.relax import export

        path = timed_step(
            f"compiling for {target_name}", lambda: export(mod, target, output, database=database)
        )
    manifest = json.loads(path.read_text(encoding="utf-8"))
    if report is not None:
        write_file(report, render(model.name, manifest, notes))
    return path, manifest


def _page_summary(manifest: dict[str, Any]) -> list[str]:
    return [
        f"target    {manifest['target']}",
        f"scan      {', '.join(manifest['families'])}, {manifest['plan']}",
        f"kernels   {len(manifest['kernels'])}",
    ]


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
