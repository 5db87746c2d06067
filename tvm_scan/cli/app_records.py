"""The commands of tuning and of databases of records, and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["register"]

What = Annotated[
    str, typer.Argument(help="Python file, library:NAME, or a model (.pt2, .onnx, .py)")
]
Name = Annotated[
    str | None, typer.Option("--func", help="name of the primfunc, if the file has several")
]
Shape = Annotated[str | None, typer.Option("--shape", help="sizes of a library recurrence: 4,4096")]
Dtype = Annotated[str, typer.Option("--dtype", help="of a library recurrence")]
Target = Annotated[
    str, typer.Option("--target", help="cpu (this machine), cuda, cuda:sm_100, or TVM's as JSON")
]
Database = Annotated[Path, typer.Option("--database", help="folder of the records")]
Folder = Annotated[Path, typer.Argument(help="folder of the records")]
Json = Annotated[bool, typer.Option("--json", help="print one JSON object instead of tables")]
_DEFAULT = Path("tvm_scan_records")


def _tune(
    what: What,
    func: Name = None,
    shape: Shape = None,
    dtype: Dtype = "float32",
    target: Target = "cpu",
    database: Database = _DEFAULT,
    budget: Annotated[
        str,
        typer.Option("--budget", help="trials for each function (64), or minutes in all (10m)"),
    ] = "64",
    seed: Annotated[
        int, typer.Option("--seed", min=0, max=2**31 - 2, help="of inputs and candidates")
    ] = 0,
    tracker: Annotated[
        str | None, typer.Option("--tracker", help="host:port of TVM's RPC tracker")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", help="of the machines there")] = None,
    as_json: Json = False,
) -> None:
    """Measure plans for every recurrence of a program, and keep the records.

    Ctrl-C ends it after the measurement in progress, with all records kept.

    Example: tvm-scan tune library:cumsum --shape 4,4096 --budget 3
    """
    from tvm_scan.cli.tune import tune_file

    tune_file(what, func, shape, dtype, target, database, budget, seed, tracker, key, as_json)


def _list(folder: Folder = _DEFAULT, as_json: Json = False) -> None:
    """List the records of a database, and why some are not usable here.

    Example: tvm-scan list tvm_scan_records
    """
    from tvm_scan.cli.records import list_records

    list_records(folder, as_json)


def _show(
    folder: Folder,
    record: Annotated[str, typer.Argument(help="id as list prints it, or its beginning")],
    svg: Annotated[Path | None, typer.Option("--svg", help="draw the tree into this file")] = None,
    as_json: Json = False,
) -> None:
    """Show one record: plan, costs, tree, provenance and trace.

    Example: tvm-scan show tvm_scan_records 3f2a
    """
    from tvm_scan.cli.records import show_record

    show_record(folder, record, svg, as_json)


def _best(
    folder: Folder,
    what: What,
    func: Name = None,
    shape: Shape = None,
    dtype: Dtype = "float32",
    target: Target = "cpu",
    as_json: Json = False,
) -> None:
    """Show the fastest plan on record for a function; exit code 4 where there is none.

    Example: tvm-scan best tvm_scan_records library:cumsum --shape 4,4096
    """
    from tvm_scan.cli.records import best_record

    best_record(folder, what, func, shape, dtype, target, as_json)


def _apply(
    folder: Folder,
    what: What,
    output: Annotated[
        Path, typer.Option("-o", "--output", help=".so to write; a folder for a model")
    ],
    func: Name = None,
    shape: Shape = None,
    dtype: Dtype = "float32",
    target: Target = "cpu",
    as_json: Json = False,
) -> None:
    """Compile a program with the records of a database.

    Example: tvm-scan apply tvm_scan_records library:cumsum --shape 4,4096 -o cumsum.so
    """
    from tvm_scan.cli.records import apply_records

    apply_records(folder, what, output, func, shape, dtype, target, as_json)


def _merge(
    into: Folder,
    sources: Annotated[list[Path], typer.Argument(help="folders to take records from")],
    as_json: Json = False,
) -> None:
    """Add the records of other databases to one.

    Example: tvm-scan merge tvm_scan_records other_records
    """
    from tvm_scan.cli.exchange import merge_records

    merge_records(into, sources, as_json)


def _prune(
    folder: Folder,
    top: Annotated[int, typer.Option("--top", min=1, help="records to keep of a function")] = 1,
    foreign: Annotated[
        bool, typer.Option("--foreign", help="drop records of other versions, too")
    ] = False,
    bad: Annotated[
        bool, typer.Option("--bad", help="drop records that can be used nowhere; list says why")
    ] = False,
    as_json: Json = False,
) -> None:
    """Keep the fastest records of each function and target.

    Example: tvm-scan prune tvm_scan_records --top 3
    """
    from tvm_scan.cli.exchange import prune_records

    prune_records(folder, top, foreign, bad, as_json)


def _export(
    folder: Folder,
    output: Annotated[Path, typer.Option("-o", "--output", help="zip file to write")],
    as_json: Json = False,
) -> None:
    """Write a database into one file.

    Example: tvm-scan export tvm_scan_records -o records.zip
    """
    from tvm_scan.cli.exchange import export_records

    export_records(folder, output, as_json)


def _import(
    archive: Annotated[Path, typer.Argument(help="file of tvm-scan export")],
    folder: Folder = _DEFAULT,
    as_json: Json = False,
) -> None:
    """Add the records of an exported file to a database.

    Example: tvm-scan import records.zip tvm_scan_records
    """
    from tvm_scan.cli.exchange import import_records

    import_records(archive, folder, as_json)


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    for name, command in (
        ("tune", _tune),
        ("list", _list),
        ("show", _show),
        ("best", _best),
        ("apply", _apply),
        ("merge", _merge),
        ("prune", _prune),
        ("export", _export),
        ("import", _import),
    ):
        app.command(name)(command)
