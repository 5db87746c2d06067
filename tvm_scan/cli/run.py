"""``tvm-scan run``: a user's primfunc on a user's arrays, as a scan and as the loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from tvm.target import Target

from tvm_scan._files import replacing
from tvm_scan.cli.support.execute import bind, interleaved_medians, prepare
from tvm_scan.cli.support.failure import CommandError
from tvm_scan.cli.support.load import (
    Choice,
    find_recurrence,
    load_file,
    make_target,
    read_plan,
    schedule,
)
from tvm_scan.cli.support.terminal import print_json, print_table

__all__ = ["run_file", "write_npz"]


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Arrays of an .npz file by name.

    Raises
    ------
    CommandError
        If the file is missing or is no .npz file.
    """
    if not path.is_file():
        kind = "a directory" if path.is_dir() else "nothing"
        raise CommandError(f"expected an .npz file, found {kind} at {path}; check the path")
    try:
        with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as loaded:
            if not isinstance(loaded, np.lib.npyio.NpzFile):
                raise CommandError(f"expected an .npz file, got one array in {path}; use np.savez")
            return {name: loaded[name] for name in loaded.files}
    except CommandError:
        raise
    except Exception as error:  # of a damaged one, whatever its decoder raises
        raise CommandError(
            f"expected an .npz file of plain arrays, got {path} ({error}); write it with np.savez"
        ) from error


def write_npz(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write an .npz file in one step: whoever reads sees the old file or the new one."""
    folder = path.parent if str(path.parent) else Path()
    if not folder.is_dir():
        raise CommandError(f"expected a folder to write to, found none at {folder}; create it")
    with replacing(path) as part, open(part, "wb") as stream:
        np.savez(stream, **arrays)  # type: ignore[arg-type]


def run_file(
    file: Path,
    inputs: Path,
    output: Path | None,
    name: str | None,
    target_name: str,
    plan_text: str | None,
    as_json: bool,
) -> None:
    """Run, compare, time, print; see ``tvm-scan run --help``."""
    target = make_target(target_name)
    func = load_file(file, name)
    find_recurrence(func)
    plan = Choice(target) if plan_text is None else read_plan(plan_text)
    scheduled = schedule(func, target, plan)
    bound = bind(func, read_npz(inputs))
    host = Target.from_device("cpu")
    sequential, loop_tensors = prepare(func, host, bound)
    scan, scan_tensors = prepare(scheduled, target, bound)
    sequential()
    scan()
    results = {key: scan_tensors[key].numpy() for key in bound.written}
    errors = {key: largest_error(results[key], loop_tensors[key].numpy()) for key in bound.written}
    if output is not None:
        write_npz(output, results)
    # Timed on the same buffers: an in-place state walks on, which costs the same.
    times = interleaved_medians({"sequential": sequential, "scan": scan})
    report = {
        "plan": str(plan),
        "outputs": {key: list(value.shape) for key, value in results.items()},
        "largest_error_to_loop": errors,
        "sequential_seconds": times["sequential"],
        "scan_seconds": times["scan"],
        "output": None if output is None else str(output),
    }
    _show(report, as_json)


def largest_error(got: np.ndarray, want: np.ndarray) -> float:
    """Largest difference over finite values; infinite if one has a NaN or infinity alone."""
    if got.size == 0:
        return 0.0
    left, right = got.astype("float64"), want.astype("float64")
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    with np.errstate(invalid="ignore"):
        difference = np.where(same, 0.0, np.abs(left - right))
    return float(np.max(np.where(np.isnan(difference), np.inf, difference)))


def _show(report: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(report)
        return
    rows = [
        (key, "x".join(map(str, shape)), f"{report['largest_error_to_loop'][key]:.3g}")
        for key, shape in report["outputs"].items()
    ]
    heads = ("output", "shape", "largest error to the loop")
    print_table(heads, rows, title=f"plan {report['plan']}", right=heads[2:])
    slow, fast = report["sequential_seconds"], report["scan_seconds"]
    print(f"sequential loop {slow * 1e3:.3f} ms, scan {fast * 1e3:.3f} ms ({slow / fast:.2f}x)")
    if report["output"]:
        print(f"written: {report['output']}")
