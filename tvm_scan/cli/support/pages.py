"""Pages for a browser, of functions and of models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tvm.target import Target
from tvm.tirx import PrimFunc

from tvm_scan._files import check_folder
from tvm_scan.browser.content import of_function
from tvm_scan.browser.folder import write_folder
from tvm_scan.browser.model import of_model
from tvm_scan.cli.draw.browser_page import render
from tvm_scan.cli.draw.equation import equations
from tvm_scan.cli.support.failure import CommandError
from tvm_scan.cli.support.load import EXAMPLE_SIZES, USUAL_SIZES, Choice, load_func, read_plan
from tvm_scan.cli.support.models import import_model, timed_step
from tvm_scan.cli.support.programs import is_model
from tvm_scan.cli.support.records import open_store
from tvm_scan.errors import ScanError
from tvm_scan.library import LIBRARY
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

    try:
        check_folder(output, "compile")
        if not what.startswith("library:") and is_model(Path(what)):
            _check_no_options("a model", func=func, shape=shape, plan=plan)
            model = import_model(Path(what))
            records = None if database is None else open_store(database)
            content = timed_step(
                f"compiling {what}", lambda: of_model(model, target, records, Path(what).stem)
            )
            chosen, lines = "of each recurrence its own", []
        else:
            _check_no_options("a function", database=database)
            function = _function(what, func, shape)
            choice = Choice(target) if plan is None else read_plan(plan)
            content = timed_step(f"compiling {what}", lambda: of_function(function, target, choice))
            recurrences = analyse(function).recurrences
            chosen, lines = (
                str(choice),
                [line for recurrence in recurrences for line in equations(recurrence)],
            )
        index = render(content.name, lines, content.families, chosen)
        path = write_folder(output, content, target, chosen, index)
    except ScanError as error:
        raise CommandError(str(error)) from error
    manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return manifest


def _check_no_options(what: str, **options: object) -> None:
    for name, value in options.items():
        if value is not None:
            raise CommandError(
                f"expected no --{name} for the page of {what}, got {value}; leave it out"
            )


def _function(what: str, name: str | None, shape: str | None) -> PrimFunc:
    if not what.startswith("library:"):
        if shape is not None:
            raise CommandError(
                f"expected --shape for library:NAME alone, got it for {what}; drop it"
            )
        return load_func(what, name)
    load_func(what, name)
    entry = LIBRARY[what.partition(":")[2]]
    usual = EXAMPLE_SIZES.get(entry.name, USUAL_SIZES)
    sizes: list[int | None]
    if shape is None:
        sizes = [
            None if size == "length" else number
            for size, number in zip(entry.size_names, usual, strict=True)
        ]
    else:
        words = shape.split(",")
        if len(words) != len(entry.size_names) or not all(w.isalnum() for w in words):
            raise CommandError(
                f"expected --shape {','.join(entry.size_names)} as numbers, or letters for what "
                f"the page chooses, got {shape}; give each of them"
            )
        sizes = [int(word) if word.isdigit() else None for word in words]
    return entry.factory(*sizes)
