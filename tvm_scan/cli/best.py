"""``tvm-scan best``: the fastest record of a function."""

from __future__ import annotations

from tvm_scan.cli.support.failure import NO_RECORD, CommandError
from tvm_scan.cli.support.options import Dtype, Folder, Json, Name, Shape, Target, What
from tvm_scan.cli.support.paths import check_database, check_program
from tvm_scan.cli.support.terminal import print_json

__all__ = ["command"]


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
    from tvm_scan.cli.support.load import make_target
    from tvm_scan.cli.support.programs import load_program
    from tvm_scan.cli.support.records import none_for, open_store, row_of
    from tvm_scan.meta.measure.progress import duration

    store, on = open_store(folder), make_target(target)
    rows = []
    for key, loop in load_program(what, func, shape, dtype, on).items():
        entry = store.best(loop, on)
        rows.append((key, None if entry is None else row_of(entry, None)))
    if as_json:
        print_json(dict(rows))
    for key, row in rows if not as_json else []:
        if row is not None:
            print(f"{key}  {duration(row['seconds'])}  {' + '.join(row['plans'])}  {row['id']}")
    missing = [key for key, row in rows if row is None]
    if missing:
        raise CommandError(none_for(store, on, missing), NO_RECORD)
