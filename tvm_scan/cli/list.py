"""``tvm-scan list``: the records of a database."""

from __future__ import annotations

from tvm_scan.cli.support.options import DATABASE, Folder, Json
from tvm_scan.cli.support.paths import check_database
from tvm_scan.cli.support.terminal import print_json, print_table

__all__ = ["command"]


def command(folder: Folder = DATABASE, as_json: Json = False) -> None:
    """List the records of a database, and why some are not usable here.

    Example: tvm-scan list tvm_scan_records
    """
    check_database(folder)
    from tvm_scan.cli.support.records import open_store, row_of
    from tvm_scan.meta.measure.progress import duration

    store = open_store(folder)
    good, others = store.usable()
    rows = [row_of(e, None) for e in good] + [row_of(e, reason) for e, reason in others]
    rows.sort(key=lambda row: (row["function"], row["target"], row["shapes"], row["seconds"]))
    if as_json:
        print_json({"records": rows, "rejected": store.rejected, "bad_lines": store.bad_lines})
        return
    shown = []
    for row in rows:
        plan = " + ".join(row["plans"]) if row["unusable"] is None else f"({row['unusable']})"
        about = [row["id"][:8], row["function"], row["shapes"], row["target"]]
        shown.append([*about, duration(row["seconds"]), plan, row["date"][:10]])
    heads = ("id", "function", "shapes", "target", "time", "plan", "date")
    print_table(heads, shown, whole=("id",), plain=True)
    print(f"{len(good)} usable records, {len(others)} others, {store.bad_lines} bad lines")
