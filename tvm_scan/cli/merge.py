"""``tvm-scan merge``: the records of several databases in one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tvm_scan.cli.support.options import Folder, Json
from tvm_scan.cli.support.paths import check_database


def command(
    into: Folder,
    sources: Annotated[list[Path], typer.Argument(help="folders to take records from")],
    as_json: Json = False,
) -> None:
    """Add the records of other databases to one.

    Example: tvm-scan merge tvm_scan_records other_records
    """
    for source in sources:
        check_database(source)
    from tvm_scan.cli.support.exchange import change
    from tvm_scan.meta import RecordStore
    from tvm_scan.meta.store import exchange

    stores = [RecordStore(source) for source in sources]
    change(into, "added", lambda: exchange.merge(RecordStore(into), stores), as_json)
