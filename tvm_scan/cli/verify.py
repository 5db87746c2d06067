"""``tvm-scan verify``: the scan beside its loop, on inputs meant to tell them apart."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tvm_scan.cli.support.failure import WRONG_RESULT, CommandError
from tvm_scan.cli.support.options import Json, Name, Plan, Target
from tvm_scan.cli.support.paths import check_database, check_program
from tvm_scan.cli.support.terminal import print_json, print_table, print_wrapped

if TYPE_CHECKING:
    from tvm.target import Target as TVMTarget

    from tvm_scan.delta_rule import TimeLoop
    from tvm_scan.schedules.verification.verify import Comparison


def command(
    what: Annotated[str, typer.Argument(help="Python file, library:NAME, or a folder of records")],
    func: Name = None,
    target: Target = "cpu",
    plan: Plan = None,
    as_json: Json = False,
) -> None:
    """Compare the scan with its loop on random and adversarial inputs, in ulps.

    Of a folder of records every one is built and run again; exit code 1 if one is wrong.

    Example: tvm-scan verify library:linear_recurrence
    """
    if Path(what).is_dir():
        check_database(Path(what))
        from tvm_scan.cli.support.rerun import rerun_records

        rerun_records(Path(what), as_json)
        return
    check_program(what)
    from tvm_scan import Recurrence, ScanPlan, plan_of, verify
    from tvm_scan.cli.support import load
    from tvm_scan.schedules.verification.laws import check_laws
    from tvm_scan.schedules.verification.verify import telling_plan

    on = load.make_target(target)
    loop = load.load_func(what, func)
    recurrence = load.find_loop(loop)
    kept_loops: list[str] = []

    def telling(recurrence: TimeLoop, where: TVMTarget) -> ScanPlan:
        used = plan_of(recurrence, where)  # as explain has it
        compared = telling_plan(recurrence, where)
        if compared != used:
            kept_loops.append(str(used))
        return compared

    chosen = load.Choice(on, telling) if plan is None else ScanPlan.parse(plan)
    comparisons = verify(loop, on, chosen)
    laws = check_laws(recurrence) if isinstance(recurrence, Recurrence) else []
    said = str(chosen)
    if as_json:
        rows = [{**asdict(c), "holds": c.holds} for c in comparisons]
        about = {"plan": said, "instead_of": kept_loops, "laws": [asdict(law) for law in laws]}
        print_json({**about, "runs": rows})
    else:
        _show(said, comparisons)
        if kept_loops:
            print_wrapped(
                f"The plan that is used is {kept_loops[0]}, the loop as it was written: there is "
                "nothing to compare (tvm-scan explain says why it is used). A tree was compared "
                "instead.",
                0,
            )
    wrong = [c for c in comparisons if not c.holds]
    if wrong:
        raise CommandError(
            f"expected the scan to be the loop within its bound, found {len(wrong)} result(s) "
            "beyond it; use --plan 'cpu/sequential()' and report the function",
            WRONG_RESULT,
        )


def _show(plan: str, comparisons: list[Comparison]) -> None:
    heads = ("inputs", "output", "ulps", "at", "loop", "scan", "relative", "bound")
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
    print_table(heads, rows, title=f"plan  {plan}", right=("ulps", "loop", "scan"))
    print("ulps: the largest difference, there; relative: to the size of the terms")
