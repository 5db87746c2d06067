"""``tvm-scan list``: the records of a database."""

from __future__ import annotations

from tvm_scan.cli.support.options import DATABASE, Folder, Json
from tvm_scan.cli.support.terminal import print_json, print_wrapped, visible


def command(folder: Folder = DATABASE, as_json: Json = False) -> None:
    """List the records of a database, and why some are not usable here.

    Each has two lines: what it is of, and its plan.

    Example: tvm-scan list tvm_scan_records
    """
    from tvm_scan.cli.support.summaries import read_listing, row_of
    from tvm_scan.meta.measure.duration import duration

    listing = read_listing(folder)
    if as_json:
        rows = [row_of(record) for record in listing.records]
        print_json({"records": rows, "rejected": listing.rejected, "bad_lines": listing.bad_lines})
        return
    for record in listing.records:
        row = row_of(record)
        about = f"{duration(row['seconds']):>8}  {row['date'][:10]:<10}  {row['target']}"
        what = f"{row['function']} {row['shapes']}"
        plan = " + ".join(row["plans"]) if record.reason is None else f"({record.reason})"
        print_wrapped(visible(f"{row['id'][:8]}  {about}  {what}"), 12)
        print_wrapped(f"{'':10}{visible(plan)}", 12)
    good = sum(record.reason is None for record in listing.records)
    others = len(listing.records) - good
    print(f"{good} usable records, {others} others, {listing.bad_lines} bad lines")
