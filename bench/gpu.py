"""The kernels on a GPU against a copy, float64 and the peers on the machine, in nine minutes.

``python -m bench.gpu`` installs nothing. It measures a copy first, compares every plan with
float64, and then times cases in the order of their importance until its time is over: default
plans and peers, the ladders of plans, and the other sizes. The table comes last;
bench/results/gpu.json holds everything, and is written after every case.

``python -m bench.gpu --dry-run`` builds the same kernels in small sizes and runs them on whatever
device there is, the tests' simulated one included: times mean nothing, errors do.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tvm
from tvm.target import Target

from bench import gpu_native
from bench.gpu_cases import Case, dry_cases, ladder, timed_cases
from bench.gpu_checks import Clock, checked, checked_peers, sanitized
from bench.gpu_gelu import gelu_rows
from bench.gpu_ours import (
    Times,
    copied,
    device_tensors,
    plan_for,
    timed,
)
from bench.gpu_table import table
from bench.gpu_worker import Peers

__all__ = ["main", "run"]

RESULTS = Path(__file__).parent / "results" / "gpu.json"
_REPEAT = 25
#: Packages whose versions are written down.
_PACKAGES = ("torch", "triton", "jax", "mamba-ssm", "accelerated-scan", "flash-linear-attention")
#: Elements of the copy: a gigabyte in, a gigabyte out.
_COPIED = 1 << 28
#: Seconds after which a peer is given up; torch compiles for half of that.
_PATIENCE = 60.0
#: Of the time, what the comparisons with float64 may take.
_FOR_CHECKS = 0.4

Say = Callable[[str], None]


def _row(case: Case, name: str, found: Times | str, copy: float, **more: Any) -> dict[str, Any]:
    row = {"case": str(case), "name": name, **more}
    if isinstance(found, str):
        return {**row, "failed": found}
    rate = case.moved / found.median
    return {**row, **asdict(found), "gbps": rate / 1e9, "of_copy": rate / copy}


def _timed_plans(
    case: Case, plans: dict[str, Any], target: Target, copy: float, clock: Clock, repeat: int
) -> list[dict[str, Any]]:
    """Times of plans of ours; a plan of a ladder is a step."""
    device, rows = tvm.cuda(0), []
    try:
        tensors = device_tensors(case, target, device)
    except Exception as error:  # too little memory
        return [_row(case, "default", _short(error), copy)]
    for name, plan in plans.items():
        if clock.over():
            break
        try:
            found: Times | str = timed(case, plan, target, device, repeat, tensors)
        except Exception as error:  # a plan that does not fit this size, or too little memory
            found = _short(error)
        more = {"step": True} if plan is not None else {}
        if name == "default" and isinstance(found, Times):
            more["plan"] = str(plan_for(case, plan, target))
        rows.append(_row(case, name, found, copy, **more))
    return rows


def _timed_peers(
    case: Case, peers: Peers, copy: float, clock: Clock, repeat: int
) -> list[dict[str, Any]]:
    rows = []
    for name in peers.names(case.family):
        if clock.over():
            break
        found = peers.ask(case, name, repeat, min(_PATIENCE, clock.left))
        rows.append(_row(case, name, found, copy, peer=True))
    return rows


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[-300:]}"


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
    nvcc = shutil.which("nvcc")
    if nvcc is not None:
        said = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout
        found["nvcc"] = (said.strip().splitlines() or ["?"])[-1]
    return found


def run(
    *,
    dry_run: bool,
    seconds: float,
    check_only: bool = False,
    carried: Path | None = None,
    say: Say = print,
    save: Callable[[dict[str, Any]], None] = lambda _: None,
) -> dict[str, Any]:
    """Measure everything that fits into the time.

    Parameters
    ----------
    dry_run : bool
        Tiny sizes, one call each, no compiling of peers.
    seconds : float
        When to begin nothing more.
    check_only : bool
        Small sizes against float64, nothing timed: what compute-sanitizer watches.
    carried : Path, optional
        What ``bench.gpu_fetch`` made.
    say : callable
        Takes the lines of the report.
    save : callable
        Takes what is there so far, after every case.

    Returns
    -------
    dict
        ``machine``, ``copy`` in bytes per second, ``errors``, ``peer_errors``, ``times``, and the
        cases that were ``left_out``.
    """
    clock, device = Clock(seconds), tvm.cuda(0)
    if not device.exist:
        raise SystemExit("bench.gpu: expected a CUDA device, found none; --dry-run needs one too")
    arch = f"sm_{device.compute_version.replace('.', '')}"
    limits = {"max_threads_per_block": 1024, "max_shared_memory_per_block": 49152}
    target = Target({"kind": "cuda", "arch": arch, **limits}, host={"kind": "llvm"})
    small = dry_run or check_only
    repeat = 1 if dry_run else _REPEAT
    copy = copied(target, device, 1 << 12 if small else _COPIED, 1 if small else _REPEAT)
    found: dict[str, Any] = {"machine": _machine(), "errors": [], "peer_errors": []}
    found |= {"times": [], "left_out": []}
    with tempfile.TemporaryDirectory(prefix="tvm_scan-bench-") as scratch:
        libraries = gpu_native.none_of_them("not compiled in a dry run")
        if not small:
            folder = Path(scratch) if carried is None else carried / "built"
            libraries = gpu_native.compiled(folder, arch, carried, say)
            made = libraries.get("peers")
            if isinstance(made, Path):
                copy = max(copy, gpu_native.copy_rate(made, device, _COPIED, _REPEAT))
        say(f"copy: {copy / 1e9:.1f} GB/s")
        found["copy"] = copy
        checks = clock if small else Clock(_FOR_CHECKS * seconds)
        found["errors"] = checked(target, small, checks, say)
        save(found)
        if check_only:
            return found
        peers = Peers(libraries, _paths(carried), arch, simulated=_is_simulated())
        try:
            if not small:
                found["peer_errors"] = checked_peers(peers, clock, say)
            _time_all(found, target, peers, clock, repeat, dry_run, save)
        finally:
            peers.close()
    if found["left_out"]:
        say(f"time is over; left out: {', '.join(found['left_out'])}")
    for line in table(found["times"], copy):
        say(line)
    return found


def _is_simulated() -> bool:
    """Whether the device is that of the tests, which a process of its own must install too."""
    module = sys.modules.get("tests.cusim")
    return module is not None and bool(module.is_simulated())


def _paths(carried: Path | None) -> list[str]:
    return [] if carried is None else [str((carried / "packages").resolve())]


def _time_all(
    found: dict[str, Any],
    target: Target,
    peers: Peers,
    clock: Clock,
    repeat: int,
    dry_run: bool,
    save: Callable[[dict[str, Any]], None],
) -> None:
    """Cases of the targets with peers, then the ladders, then the other cases."""
    copy, rows = found["copy"], found["times"]
    first, rest = dry_cases() if dry_run else timed_cases()

    def with_peers(cases: list[Case]) -> None:
        for case in cases:
            if clock.over():
                found["left_out"].append(str(case))
                continue
            rows.extend(_timed_plans(case, {"default": None}, target, copy, clock, repeat))
            rows.extend(_timed_peers(case, peers, copy, clock, repeat))
            save(found)

    with_peers(first)
    for case in {c.family: c for c in reversed(first)}.values():
        if clock.over():
            found["left_out"].append(f"ladder of {case}")
            continue
        rows.extend(_timed_plans(case, ladder(case), target, copy, clock, repeat))
        save(found)
    if clock.over():
        found["left_out"].append("ladder of gelu")
    else:
        count = 1 << 14 if dry_run else _COPIED
        rows.extend(gelu_rows(target, tvm.cuda(0), count, repeat, copy))
        save(found)
    with_peers(rest)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes, no file")
    parser.add_argument("--seconds", type=float, default=480, help="when to begin nothing more")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--check-only", action="store_true", help="small sizes against float64")
    parser.add_argument("--sanitize", action="store_true", help="only that, by compute-sanitizer")
    parser.add_argument("--peers", type=Path, help="folder that bench.gpu_fetch made")
    chosen = parser.parse_args()
    if find_spec("cuda") is None:
        # TVM compiles by NVRTC unless told otherwise, which needs its bindings for Python.
        os.environ.setdefault("TVM_CUDA_COMPILE_MODE", "nvcc")
    if chosen.dry_run:
        try:
            from tests import cusim

            cusim.install()
        except ImportError:
            pass
    if chosen.sanitize:
        raise SystemExit(0 if sanitized(print) else 1)

    def save(found: dict[str, Any]) -> None:
        if not chosen.dry_run and not chosen.check_only:
            part = chosen.out.with_suffix(".part")
            part.write_text(json.dumps(found, indent=1) + "\n")
            part.replace(chosen.out)

    found = run(
        dry_run=chosen.dry_run,
        seconds=chosen.seconds,
        check_only=chosen.check_only,
        carried=chosen.peers,
        save=save,
    )
    save(found)
    if any(row["error"] > row["bound"] for row in found["errors"]):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
