"""``tvm-scan run``: a user's primfunc on a user's arrays, as a scan and as the loop."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tvm_scan.cli.support.options import Json, Name, Plan, Target
from tvm_scan.cli.support.paths import check_file, check_folder
from tvm_scan.cli.support.terminal import print_json, print_table


def command(
    file: Annotated[Path, typer.Argument(help="Python file with a primfunc")],
    inputs: Annotated[Path, typer.Argument(help=".npz with one array per parameter, by name")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="outputs as .npz")] = None,
    func: Name = None,
    target: Target = "cpu",
    plan: Plan = None,
    as_json: Json = False,
) -> None:
    """Run a recurrence as a scan and compare it with its sequential loop.

    Example: tvm-scan run recurrence.py inputs.npz -o outputs.npz
    """
    check_file(file, "a Python file")
    check_file(inputs, "an .npz file")
    check_folder(output)
    from tvm_scan import ScanPlan, parallelize
    from tvm_scan.cli.support import load
    from tvm_scan.cli.support.arrays import largest_error, read_npz, write_npz
    from tvm_scan.cli.support.execute import bind, interleaved_medians, run_beside

    on = load.make_target(target)
    loop = load.load_file(file, func)
    load.find_loop(loop)
    chosen = load.Choice(on) if plan is None else ScanPlan.parse(plan)
    scheduled = parallelize(loop, on, chosen)
    bound = bind(loop, read_npz(inputs))
    (sequential, loop_tensors), (scan, scan_tensors) = run_beside(loop, scheduled, on, bound)
    results = {key: scan_tensors[key].numpy() for key in bound.written}
    errors = {key: largest_error(results[key], loop_tensors[key].numpy()) for key in bound.written}
    if output is not None:
        write_npz(output, results)
    # Timed on the same buffers: an in-place state goes on, which costs the same.
    times = interleaved_medians({"sequential": sequential, "scan": scan})
    report = {
        "plan": str(chosen),
        "outputs": {key: list(value.shape) for key, value in results.items()},
        "largest_error_to_loop": errors,
        "sequential_seconds": times["sequential"],
        "scan_seconds": times["scan"],
        "output": None if output is None else str(output),
    }
    _show(report, as_json)


def _show(report: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(report)
        return
    rows = [
        (key, "x".join(map(str, shape)), f"{report['largest_error_to_loop'][key]:.3g}")
        for key, shape in report["outputs"].items()
    ]
    heads = ("output", "shape", "largest error to the loop")
    print_table(heads, rows, title=f"plan  {report['plan']}", right=heads[2:])
    slow, fast = report["sequential_seconds"], report["scan_seconds"]
    print(f"sequential loop {slow * 1e3:.3f} ms, scan {fast * 1e3:.3f} ms ({slow / fast:.2f}x)")
    if report["output"]:
        print(f"written: {report['output']}")
