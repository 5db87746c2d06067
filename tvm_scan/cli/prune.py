"""``tvm-scan prune``: the fastest records alone."""

from __future__ import annotations

from typing import Annotated

import typer

from tvm_scan.cli.support.options import Folder, Json
from tvm_scan.cli.support.paths import check_database


def command(
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
    check_database(folder)
    from tvm_scan.cli.support.exchange import change
    from tvm_scan.meta import RecordStore
    from tvm_scan.meta.store import exchange

    store = RecordStore(folder)

    def prune() -> int:
        return exchange.prune(store, top=top, foreign=foreign, bad=bad)

    change(folder, "dropped", prune, as_json)
