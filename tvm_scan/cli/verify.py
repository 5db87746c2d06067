"""``tvm-scan verify``: the scan beside its loop, on inputs meant to tell them apart."""

from __future__ import annotations

from dataclasses import asdict

from tvm_scan import verify
from tvm_scan.cli.support.failure import WRONG_RESULT, CommandError
from tvm_scan.cli.support.load import Choice, find_recurrence, load_func, make_target, read_plan
from tvm_scan.cli.support.terminal import print_json, print_table
from tvm_scan.errors import ScanError
from tvm_scan.schedules.verification.laws import check_laws
from tvm_scan.schedules.verification.verify import Comparison, telling_plan

__all__ = ["verify_file"]


def verify_file(
    what: str, name: str | None, target_name: str, plan_text: str | None, as_json: bool
) -> None:
    """Print; see ``tvm-scan verify --help``."""
    target = make_target(target_name)
    func = load_func(what, name)
    found = find_recurrence(func)
    plan = Choice(target, telling_plan) if plan_text is None else read_plan(plan_text)
    try:
        comparisons = verify(func, target, plan)
    except ScanError as error:
        raise CommandError(str(error)) from error
    laws = check_laws(found)
    if as_json:
        rows = [{**asdict(c), "holds": c.holds} for c in comparisons]
        print_json({"plan": str(plan), "laws": [asdict(law) for law in laws], "runs": rows})
    else:
        _show(str(plan), comparisons)
    wrong = [c for c in comparisons if not c.holds]
    if wrong:
        raise CommandError(
            f"expected the scan to be the loop within its bound, found {len(wrong)} result(s) "
            "beyond it; use --plan 'cpu/sequential()' and report the function",
            WRONG_RESULT,
        )


def _show(plan: str, comparisons: list[Comparison]) -> None:
    heads = ("inputs", "output", "largest ulps", "at", "loop", "scan", "relative", "bound")
    rows = [
        (
            c.inputs,
            c.output,
            f"{c.largest_ulps:.3g}",
            list(c.where),
            f"{c.loop:.6g}",
            f"{c.scan:.6g}",
            f"{c.relative:.2g}",
            f"{c.bound:.2g}",
        )
        for c in comparisons
    ]
    print_table(heads, rows, title=f"plan {plan}", caption="relative: to the size of the terms")
