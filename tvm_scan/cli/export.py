"""``tvm-scan export``: a database as one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tvm_scan.cli.support.options import Folder, Json
from tvm_scan.cli.support.paths import check_database


def command(
    folder: Folder,
    output: Annotated[Path, typer.Option("-o", "--output", help="zip file to write")],
    as_json: Json = False,
) -> None:
    """Write a database into one file.

    Example: tvm-scan export tvm_scan_records -o records.zip
    """
    check_database(folder)
    from tvm_scan.cli.support.exchange import change
    from tvm_scan.meta import RecordStore
    from tvm_scan.meta.store import exchange

    store = RecordStore(folder)
    change(folder, "exported", lambda: exchange.export_archive(store, output), as_json)
