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
import time
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tvm

from bench import gpu_native
from bench.gpu_cases import Case, dry_cases, ladder, timed_cases
from bench.gpu_checks import Clock, checked, checked_peers, is_wrong, sanitized
from bench.gpu_ours import target_of
from bench.gpu_rows import Timing
from bench.gpu_table import table
from bench.gpu_worker import Worker
from bench.origin import command, commit

__all__ = ["main", "run"]

RESULTS = Path(__file__).parent / "results" / "gpu.json"
_REPEAT = 25
#: Packages whose versions are written down.
_PACKAGES = ("torch", "triton", "jax", "mamba-ssm", "accelerated-scan", "flash-linear-attention")
#: Elements of the copy: a gigabyte in, a gigabyte out.
_COPIED = 1 << 28
#: Seconds after which a plan or a peer is given up; on a simulated device, all of whose threads
#: are one of the host's; for nvcc and the peers in CUDA.
_PATIENCE, _SIMULATED_PATIENCE, _COMPILING = 60.0, 600.0, 150.0
#: Of the time, what the comparisons with float64 may take.
_FOR_CHECKS = 0.4

Say = Callable[[str], None]
Save = Callable[[dict[str, Any]], None]


def _machine() -> dict[str, Any]:
    found: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "command": command(),
        "python": platform.python_version(),
        "tvm": tvm.__version__,
    }
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
        found["gpu"] = _said(query)
    nvcc = shutil.which("nvcc")
    if nvcc is not None:
        found["nvcc"] = (_said([nvcc, "--version"]).splitlines() or ["?"])[-1]
    return found


def _said(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stdout.strip()


def run(
    *,
    dry_run: bool,
    seconds: float,
    check_only: bool = False,
    carried: Path | None = None,
    say: Say = print,
    save: Save = lambda _: None,
) -> dict[str, Any]:
    """Measure everything that fits into the time.

    Parameters
    ----------
    dry_run : bool
        Tiny sizes, one call each, no compiling of peers.
    seconds : float
        When to begin nothing more.
    check_only : bool
        Small sizes against float64 in this very process, nothing timed: what compute-sanitizer
        watches.
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

    Raises
    ------
    SystemExit
        Where there is no CUDA device, or none that can copy.
    """
    clock, device = Clock(seconds), tvm.cuda(0)
    if not device.exist:
        raise SystemExit("bench.gpu: expected a CUDA device, found none; --dry-run needs one too")
    arch = f"sm_{device.compute_version.replace('.', '')}"
    target = target_of(arch, str(device.device_name))
    small, simulated = dry_run or check_only, _is_simulated()
    patience = _SIMULATED_PATIENCE if simulated else _PATIENCE
    found: dict[str, Any] = {"machine": _machine(), "errors": [], "peer_errors": []}
    found |= {"times": [], "left_out": []}
    with tempfile.TemporaryDirectory(prefix="tvm_scan-bench-") as scratch:
        libraries = gpu_native.none_of_them("not compiled in a dry run")
        if not small:
            libraries = gpu_native.compiled(
                Path(scratch), arch, carried, say, min(_COMPILING, max(0.0, clock.left))
            )
        worker = Worker(libraries, _paths(carried), arch, simulated=simulated, inside=check_only)
        try:
            repeat = 1 if small else _REPEAT
            copy = worker.copy_rate(1 << 12 if small else _COPIED, repeat, patience)
            if isinstance(copy, str):
                raise SystemExit(f"bench.gpu: expected a device that copies, got: {copy}")
            say(f"copy: {copy / 1e9:.1f} GB/s")
            found["copy"] = copy
            save(found)
            checks = clock if small else Clock(_FOR_CHECKS * seconds)
            found["errors"] = checked(worker, target, small, checks, say, patience)
            save(found)
            if check_only:
                return found
            if not small:
                found["peer_errors"] = checked_peers(worker, clock, say, patience)
                save(found)
            _time_all(found, Timing(worker, target, clock, copy, repeat, patience), dry_run, save)
        finally:
            worker.close()
    if found["left_out"]:
        say(f"time is over; left out: {', '.join(found['left_out'])}")
    for line in table(found["times"], copy):
        say(line)
    return found


def _is_simulated() -> bool:
    """Whether the device is that of the tests, which a process of its own must install too."""
    module = sys.modules.get("tests.support.cusim")
    return module is not None and bool(module.is_simulated())


def _paths(carried: Path | None) -> list[str]:
    return [] if carried is None else [str((carried / "packages").resolve())]


def _time_all(found: dict[str, Any], bench: Timing, dry_run: bool, save: Save) -> None:
    """Cases of the targets with peers, then the ladders, then the other cases."""
    first, rest = dry_cases() if dry_run else timed_cases()

    def step(name: str, make: Callable[[], list[dict[str, Any]]]) -> None:
        if bench.clock.over():
            found["left_out"].append(name)
            return
        found["times"].extend(make())
        save(found)

    def with_peers(case: Case) -> None:
        step(str(case), lambda: [*bench.plans(case, {"default": None}), *bench.peers(case)])

    for case in first:
        with_peers(case)
    for case in {c.family: c for c in reversed(first)}.values():
        step(f"ladder of {case}", lambda case=case: bench.plans(case, dict(ladder(case))))
    step("ladder of gelu", lambda: bench.gelu(1 << 14 if dry_run else _COPIED))
    for case in rest:
        with_peers(case)


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
            from tests.support import cusim

            cusim.install()
        except ImportError:
            pass
    if chosen.sanitize:
        # Nothing checked is not clean.
        raise SystemExit({True: 0, False: 1, None: 2}[sanitized(print)])

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
    if any(map(is_wrong, found["errors"])):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
