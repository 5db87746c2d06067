"""``tvm-scan import``: records from an exported file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tvm_scan.cli.support.options import DATABASE, Folder, Json
from tvm_scan.cli.support.paths import check_file


def command(
    archive: Annotated[Path, typer.Argument(help="file of tvm-scan export")],
    folder: Folder = DATABASE,
    as_json: Json = False,
) -> None:
    """Add the records of an exported file to a database.

    Example: tvm-scan import records.zip tvm_scan_records
    """
    check_file(archive, "a file of tvm-scan export")
    from tvm_scan.cli.support.exchange import change
    from tvm_scan.meta import RecordStore
    from tvm_scan.meta.store import exchange

    change(folder, "added", lambda: exchange.import_archive(RecordStore(folder), archive), as_json)
