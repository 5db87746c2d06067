"""Pages for a browser, of functions and of models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tvm.target import Target

from tvm_scan import ScanPlan
from tvm_scan._files import check_folder
from tvm_scan.browser.content import of_function
from tvm_scan.browser.folder import write_folder
from tvm_scan.browser.model import of_model
from tvm_scan.cli.draw.browser_page import render
from tvm_scan.cli.draw.equation import equations
from tvm_scan.cli.support.failure import CommandError
from tvm_scan.cli.support.load import Choice, load_func
from tvm_scan.cli.support.models import import_model, timed_step
from tvm_scan.cli.support.programs import is_model
from tvm_scan.schedules.analysis import analyse


def write_page(
    what: str,
    output: Path,
    target: Target,
    *,
    func: str | None = None,
    shape: str | None = None,
    plan: str | None = None,
    database: Path | None = None,
) -> dict[str, Any]:
    """Write the page of a function or a model.

    Parameters
    ----------
    what : str
        A Python file with a primfunc or a module, ``library:NAME``, .pt2 or .onnx.
    output : Path
        The folder to write.
    target : tvm.target.Target
        Whose kernels a browser runs.
    func, shape, plan : str or None
        Of a function: its name in the file, its sizes in the library (a letter for a size that the
        page is to choose), its plan.
    database : Path or None
        Tuning records of a model.

    Returns
    -------
    dict
        The page's manifest.

    Raises
    ------
    CommandError
        If there is nothing of the kind, or it cannot run in a browser.
    """
    import json

    check_folder(output, "compile")
    lines: list[str] = []
    if not what.startswith("library:") and is_model(Path(what)):
        _check_no_options("a model", func=func, shape=shape, plan=plan)
        model = import_model(Path(what))
        content = timed_step(
            f"compiling {what}", lambda: of_model(model, target, database, Path(what).stem)
        )
        chosen = "of each recurrence its own"
    else:
        _check_no_options("a function", database=database)
        function = load_func(what, func, shape, symbolic=True)
        choice = Choice(target) if plan is None else ScanPlan.parse(plan)
        content = timed_step(f"compiling {what}", lambda: of_function(function, target, choice))
        chosen = str(choice)
        lines += [line for each in analyse(function).recurrences for line in equations(each)]
    index = render(content.name, lines, content.families, chosen)
    path = write_folder(output, content, target, chosen, index)
    manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return manifest


def _check_no_options(what: str, **options: object) -> None:
    for name, value in options.items():
        if value is not None:
            raise CommandError(
                f"expected no --{name} for the page of {what}, got {value}; leave it out"
            )
