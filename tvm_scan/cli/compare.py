"""``tvm-scan compare``: plans, records and databases of one recurrence, measured in turns."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from tvm_scan.cli.support.failure import WRONG_RESULT, CommandError
from tvm_scan.cli.support.options import Dtype, Json, Name, Shape, Target, What
from tvm_scan.cli.support.paths import check_program
from tvm_scan.cli.support.terminal import print_json, print_table

if TYPE_CHECKING:
    from tvm_scan.cli.support.sides import Row


def command(
    what: What,
    sides: Annotated[
        list[str],
        typer.Argument(
            help="two or more of: loop, default, a plan, a folder of records, FOLDER@ID"
        ),
    ],
    func: Name = None,
    shape: Shape = None,
    dtype: Dtype = "float32",
    target: Target = "cpu",
    seconds: Annotated[float, typer.Option("--seconds", min=0.0, help="to measure all")] = 2.0,
    as_json: Json = False,
) -> None:
    """Measure plans of one recurrence in turns: time, speed against the first, and its spread.

    Each is checked against the loop; exit code 1 if one is wrong.

    Example: tvm-scan compare library:cumsum loop default 'cpu/lanes(lane_block=2)'
    """
    check_program(what)
    from tvm_scan.cli.support.load import find_loop, make_target
    from tvm_scan.cli.support.programs import load_program
    from tvm_scan.cli.support.sides import measure_sides, side_of
    from tvm_scan.meta.measure.check import make_cases

    on = make_target(target)
    program = load_program(what, func, shape, dtype)
    if len(program) != 1 or len(sides) < 2:
        raise CommandError(
            f"expected one function and at least two sides, got {len(program)} and {len(sides)}; "
            "give, for instance, loop default"
        )
    ((_, loop),) = program.items()
    find_loop(loop)
    compared = [side_of(text, loop, on) for text in dict.fromkeys(sides)]
    rows, wrong = measure_sides(compared, on, make_cases(loop), seconds)
    report = {"function": what, "rows": [asdict(row) for row in rows], "wrong": wrong}
    print_json(report) if as_json else _show(rows)
    if wrong:
        raise CommandError("\n".join(wrong), WRONG_RESULT)


def _show(rows: list[Row]) -> None:
    from tvm_scan.meta.measure.duration import duration

    shown = [
        (r.name, duration(r.seconds), f"{r.ratio:.2f}x", f"{r.low:.2f} to {r.high:.2f}", r.plan)
        for r in rows
    ]
    print_table(("side", "time", "speed", "middle half", "plan"), shown)
    print(f"speed against {rows[0].name}, the median of {rows[0].rounds} rounds")
