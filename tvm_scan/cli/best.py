"""``tvm-scan best``: the fastest record of a function."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvm_scan.cli.support.asked import Asked, asked_of
from tvm_scan.cli.support.failure import NO_RECORD, CommandError
from tvm_scan.cli.support.options import Dtype, Folder, Json, Name, Shape, Target, What
from tvm_scan.cli.support.paths import check_database, check_program
from tvm_scan.cli.support.terminal import print_json, print_wrapped, visible

if TYPE_CHECKING:
    from tvm_scan.meta.store.summary import Summary


def command(
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
    check_database(folder)
    check_program(what)
    from tvm_scan.cli.support.summaries import row_of

    asked = asked_of(what, func, shape, dtype, target)
    record = None if asked is None else _known(folder, asked)
    if asked is not None and record is not None:
        rows, none = {asked.name: row_of(record)}, None
    else:
        rows, none = _looked_up(folder, what, func, shape, dtype, target)
    if as_json:
        print_json(rows)
    for name, row in rows.items() if not as_json else ():
        if row is not None:
            _show(name, row)
    if none is not None:
        raise CommandError(none, NO_RECORD)


def _known(folder: Path, asked: Asked) -> Summary | None:
    """The fastest record of what was tuned by the same words, where the manifest says it all."""
    from tvm_scan.meta.store.summary import best_of, read_summaries

    records = read_summaries(folder)
    return None if records is None else best_of(records, asked.words)


def _looked_up(
    folder: Path, what: str, func: str | None, shape: str | None, dtype: str, target: str
) -> tuple[dict[str, Any], str | None]:
    """The fastest record of each function of a program, and what to say where one has none."""
    from tvm_scan.cli.support.load import make_target
    from tvm_scan.cli.support.programs import load_program
    from tvm_scan.cli.support.records import none_for
    from tvm_scan.cli.support.summaries import row_of
    from tvm_scan.meta import RecordStore

    store, on = RecordStore(folder), make_target(target)
    rows: dict[str, Any] = {}
    for name, loop in load_program(what, func, shape, dtype, on).items():
        entry = store.best(loop, on)
        rows[name] = None if entry is None else row_of(store.summary(entry))
    missing = [name for name, row in rows.items() if row is None]
    return rows, none_for(store, on, missing) if missing else None


def _show(name: str, row: dict[str, Any]) -> None:
    from tvm_scan.meta.measure.duration import duration

    about = f"{row['id'][:8]}  {duration(row['seconds']):>8}  {name} {row['shapes']}"
    print_wrapped(visible(about), 12)
    print_wrapped(f"{'':10}{visible(' + '.join(row['plans']))}", 12)
