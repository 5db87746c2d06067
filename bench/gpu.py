"""The kernels on a GPU against a copy, float64 and the peers on the machine, in nine minutes.

``python -m bench.gpu`` installs nothing. It measures a copy first, compares every plan with
float64, and then times cases in the order of their importance until its time is over: default
plan, ladder of plans, peers. The table comes last; bench/results/gpu.json holds everything.

``python -m bench.gpu --dry-run`` builds the same kernels in small sizes and runs them on whatever
device there is, the tests' simulated one included: times mean nothing, errors do.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tvm
from tvm.target import Target

from bench.gpu_cases import Case, check_cases, ladder, timed_cases
from bench.gpu_ours import Times, copied, error_of, plan_for, timed
from bench.gpu_peers import build_native, native_copy, peer_times
from tvm_scan.errors import PlanError

__all__ = ["main", "run"]

RESULTS = Path(__file__).parent / "results" / "gpu.json"
_REPEAT = 25
#: Packages whose versions are written down.
_PACKAGES = ("torch", "triton", "jax", "mamba-ssm", "accelerated-scan", "flash-linear-attention")
#: Elements of the copy: a gigabyte in, a gigabyte out.
_COPIED = 1 << 28


def _bound(case: Case) -> float:
    """Largest error over the largest result that is accepted, from the length and the dtype."""
    unit = 2.0**-8 if case.dtype == "bfloat16" else 2.0**-24
    steps = case.sizes[1] if case.family == "rwkv6" else case.sizes[-1 - (case.family[0] == "s")]
    # Sums of as many roundings as steps; what is summed up is at most that many times the result.
    return 4 * unit if case.dtype == "bfloat16" else 8 * unit * max(16.0, steps**0.5)


def _sanitized(say: Callable[[str], None]) -> bool:
    """Run the comparisons again under compute-sanitizer, where the machine has it."""
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        say("compute-sanitizer: none on the PATH, nothing checked")
        return True
    clean = True
    for kind in ("memcheck", "racecheck", "synccheck"):
        command = [tool, "--tool", kind, "--error-exitcode", "9", sys.executable, "-m", "bench.gpu"]
        done = subprocess.run([*command, "--check-only"], capture_output=True, text=True)
        clean &= done.returncode == 0
        say(f"compute-sanitizer {kind}: {'clean' if done.returncode == 0 else done.stdout[-2000:]}")
    return clean


def _plans(case: Case) -> dict[str, Any]:
    return {"default": None, **ladder(case)}


class _Clock:
    """What is left of the time."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds

    def over(self) -> bool:
        """Whether nothing more should begin."""
        return time.monotonic() > self.end


def _checked(target: Target, tiny: bool, clock: _Clock, say: Callable[[str], None]) -> list[Any]:
    device, rows = tvm.cuda(0), []
    for case in check_cases(tiny):
        # In small sizes the halves say nothing that float32 does not, but for the default.
        plans = {"default": None} if tiny and case.dtype == "bfloat16" else _plans(case)
        for name, plan in plans.items():
            if clock.over():
                return rows
            try:
                error, bound = error_of(case, plan, target, device), _bound(case)
            except PlanError as refusal:
                say(f"{case}  {name}: {refusal}")
                continue
            rows.append({"case": str(case), "plan": name, "error": error, "bound": bound})
            if error > bound:
                say(f"WRONG  {case}  {name}: error {error:.3g}, at most {bound:.3g} expected")
    wrong = sum(row["error"] > row["bound"] for row in rows)
    say(f"compared with float64: {len(rows)} plans, {wrong} wrong")
    return rows


def _row(case: Case, name: str, found: Times, copy: float) -> dict[str, Any]:
    rate = case.moved / found.median
    return {
        "case": str(case),
        "name": name,
        **asdict(found),
        "gbps": rate / 1e9,
        "of_copy": rate / copy,
    }


def _timed_case(
    case: Case, target: Target, copy: float, library: Any, clock: _Clock, repeat: int
) -> list[dict[str, Any]]:
    device, rows = tvm.cuda(0), []
    for name, plan in _plans(case).items():
        if clock.over():
            return rows
        try:
            found = timed(case, plan, target, device, repeat)
        except Exception as error:  # a plan that does not fit this size, or too little memory
            rows.append({"case": str(case), "name": name, "failed": str(error)[-300:]})
            continue
        rows.append(_row(case, name, found, copy))
        if name == "default":
            rows[-1]["plan"] = str(plan_for(case, plan, target))
    for name, result in peer_times(case, library, target, repeat):
        if isinstance(result, Times):
            rows.append(_row(case, name, result, copy))
        else:
            rows.append({"case": str(case), "name": name, "failed": result})
        if clock.over():
            return rows
    return rows


def _table(rows: list[dict[str, Any]], copy: float) -> list[str]:
    lines = [f"copy {copy / 1e9:.0f} GB/s", ""]
    for case in dict.fromkeys(row["case"] for row in rows):
        lines.append(case)
        mine = [row for row in rows if row["case"] == case and "median" in row]
        base = next((row["median"] for row in mine if row["name"] == "default"), None)
        for row in mine:
            ratio = f"{row['median'] / base:6.2f}x" if base else ""
            lines.append(
                f"  {row['name']:<32} {row['median'] * 1e6:10.1f} us {row['gbps']:8.0f} GB/s "
                f"{100 * row['of_copy']:6.1f} %  +-{100 * row['spread']:4.1f} %  {ratio}"
            )
    return lines


def _machine() -> dict[str, Any]:
    found: dict[str, Any] = {"python": platform.python_version(), "tvm": tvm.__version__}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except Exception:
            found[name] = None
    if shutil.which("nvidia-smi"):
        query = [
            "nvidia-smi",
            "--query-gpu=name,driver_version,clocks.max.sm",
            "--format=csv,noheader",
        ]
        found["gpu"] = subprocess.run(query, capture_output=True, text=True).stdout.strip()
    return found


def run(
    *,
    dry_run: bool,
    seconds: float,
    check_only: bool = False,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Measure everything that fits into the time.

    Parameters
    ----------
    dry_run : bool
        Tiny sizes, one call each, no peers.
    seconds : float
        When to begin nothing more.
    check_only : bool
        Small sizes against float64, nothing timed: what compute-sanitizer watches.
    say : callable
        Takes the lines of the report.

    Returns
    -------
    dict
        ``machine``, ``copy`` in bytes per second, ``errors``, ``times``, and the cases that were
        ``left_out``.
    """
    clock, device = _Clock(seconds), tvm.cuda(0)
    if not device.exist:
        raise SystemExit("bench.gpu: expected a CUDA device, found none; --dry-run needs one too")
    arch = f"sm_{device.compute_version.replace('.', '')}"
    limits = {"max_threads_per_block": 1024, "max_shared_memory_per_block": 49152}
    target = Target({"kind": "cuda", "arch": arch, **limits}, host={"kind": "llvm"})
    small = dry_run or check_only
    copy = copied(target, device, 1 << 12 if small else _COPIED, 1 if small else _REPEAT)
    library, nvcc = None, shutil.which("nvcc")
    with tempfile.TemporaryDirectory(prefix="tvm_scan-bench-") as folder:
        if nvcc and not small:
            try:
                library = build_native(Path(folder), arch, nvcc)
                copy = max(copy, native_copy(library, device, _COPIED, _REPEAT))
            except Exception as error:
                say(f"no CUDA peers: {error}")
        say(f"copy: {copy / 1e9:.1f} GB/s")
        errors = _checked(target, small, clock, say)
        rows: list[dict[str, Any]] = []
        cases = [Case("affine", (2, 64))] if dry_run else [] if check_only else timed_cases()
        left_out = []
        for case in cases:
            if clock.over():
                left_out.append(str(case))
                continue
            repeat = 1 if dry_run else _REPEAT
            rows += _timed_case(case, target, copy, library, clock, repeat)
    if left_out:
        say(f"time is over; left out: {', '.join(left_out)}")
    for line in _table(rows, copy):
        say(line)
    return {
        "machine": _machine(),
        "copy": copy,
        "errors": errors,
        "times": rows,
        "left_out": left_out,
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes, no peers, no file")
    parser.add_argument("--seconds", type=float, default=480, help="when to begin nothing more")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--check-only", action="store_true", help="small sizes against float64")
    parser.add_argument("--sanitize", action="store_true", help="and under compute-sanitizer")
    parser.add_argument(
        "--peers", type=Path, help="folder with packages of peers, built there, to import"
    )
    chosen = parser.parse_args()
    if chosen.peers is not None:
        sys.path.insert(0, str(chosen.peers.resolve()))
    if chosen.dry_run:
        try:
            from tests import cusim

            cusim.install()
        except ImportError:
            pass
    found = run(dry_run=chosen.dry_run, seconds=chosen.seconds, check_only=chosen.check_only)
    clean = _sanitized(print) if chosen.sanitize else True
    if not chosen.dry_run and not chosen.check_only:
        chosen.out.write_text(json.dumps(found, indent=1) + "\n")
        print(f"written: {chosen.out}")
    if not clean or any(row["error"] > row["bound"] for row in found["errors"]):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
