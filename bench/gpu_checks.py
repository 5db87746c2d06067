"""What ``bench.gpu`` checks before it times: plans and peers against float64, and the sanitizer."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from tvm.target import Target

from bench.gpu_cases import Case, check_cases, ladder, peer_cases
from bench.gpu_worker import Worker, peer_key
from tvm_scan import ScanPlan
from tvm_scan.errors import PlanError

__all__ = ["SANITIZERS", "Clock", "checked", "checked_peers", "is_wrong", "sanitized"]

Say = Callable[[str], None]
#: Tools of compute-sanitizer: accesses out of bounds, races in shared memory, barriers that not
#: all threads reach, reads of memory that nobody wrote.
SANITIZERS = ("memcheck", "racecheck", "synccheck", "initcheck")


class Clock:
    """What is left of the time."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds."""
        return self.end - time.monotonic()

    def over(self) -> bool:
        """Whether nothing more should begin."""
        return self.left <= 0


def _bound(case: Case, dtype: str) -> float:
    """Largest error over the largest result that is accepted, from the length and the dtype."""
    unit = 2.0**-8 if dtype == "bfloat16" else 2.0**-24
    along = {"rwkv6": 1, "delta": 1, "selective": 2}
    steps = case.sizes[along.get(case.family, -1)]
    # Sums of as many roundings as steps; what is summed up is at most that many times the result.
    return 4 * unit if dtype == "bfloat16" else 8 * unit * max(16.0, steps**0.5)


def sanitized(say: Say) -> bool | None:
    """Run the comparisons again under compute-sanitizer, by each of its tools.

    Returns
    -------
    bool or None
        Whether all were clean; None where the machine has no compute-sanitizer.
    """
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        say("compute-sanitizer: none on the PATH, nothing checked")
        return None
    clean = True
    for kind in SANITIZERS:
        command = [tool, "--tool", kind, "--error-exitcode", "9", sys.executable, "-m", "bench.gpu"]
        done = subprocess.run([*command, "--check-only"], capture_output=True, text=True)
        clean &= done.returncode == 0
        said = (done.stdout + done.stderr)[-2000:]
        say(f"compute-sanitizer {kind}: {'clean' if done.returncode == 0 else said}")
    return clean


def checked(
    worker: Worker, target: Target, tiny: bool, clock: Clock, say: Say, patience: float
) -> list[Any]:
    """Every plan of the ladders in the cases for it, while there is time.

    Parameters
    ----------
    worker : Worker
        Who is asked.
    target : tvm.target.Target
        The GPU.
    tiny : bool
        Which cases.
    clock : Clock
        When to begin nothing more.
    say : callable
        Takes a line.
    patience : float
        Seconds for each plan.

    Returns
    -------
    list of dict
        ``error`` and ``bound``; ``failed`` instead of an error where there is no finite one.
    """
    rows = []
    for case in check_cases(tiny):
        # The halves say nothing that float32 does not, but for the default.
        steps = {} if case.dtype == "bfloat16" else ladder(case)
        for name, plan in {"default": None, **steps}.items():
            if clock.over():
                say(f"time for comparisons is over before {case}  {name}")
                return rows
            refused = _refusal(case, plan, target)
            if refused is not None:
                say(f"{case}  {name}: {refused}")
                continue
            found = worker.plan_error(case, plan, min(patience, clock.left))
            rows.append(
                _compared({"case": str(case), "plan": name}, found, _bound(case, case.dtype), say)
            )
    wrong = sum(is_wrong(row) for row in rows)
    say(f"compared with float64: {len(rows)} plans, {wrong} wrong")
    return rows


def is_wrong(row: dict[str, Any]) -> bool:
    """Whether a plan's result is not there, or not within its bound."""
    return "failed" in row or bool(row["error"] > row["bound"])


def _refusal(case: Case, plan: ScanPlan | None, target: Target) -> PlanError | None:
    """Why a plan of a ladder is not for a case."""
    if plan is None:
        return None
    try:
        plan.check(target, case.recurrence)
    except PlanError as refusal:
        return refusal
    return None


def _compared(row: dict[str, Any], found: float | str, bound: float, say: Say) -> dict[str, Any]:
    name = "  ".join(row.values())
    if isinstance(found, float) and not math.isfinite(found):
        found = "not finite, or other bits in a second run"
    if isinstance(found, str):
        say(f"WRONG  {name}: {found}")
        return {**row, "failed": found, "bound": bound}
    if found > bound:
        say(f"WRONG  {name}: error {found:.3g}, at most {bound:.3g} expected")
    return {**row, "error": found, "bound": bound}


def checked_peers(worker: Worker, clock: Clock, say: Say, patience: float) -> list[Any]:
    """What peers differ by: a time of a wrong result would say nothing."""
    rows: list[Any] = []
    for case in peer_cases():
        if clock.over():
            say(f"time for comparisons is over before {case}")
            return rows
        for name, found in worker.peer_errors(case, min(patience, max(0.0, clock.left))):
            row = {"case": str(case), "peer": name}
            if isinstance(found, str):
                rows.append({**row, "failed": found})  # Most are not there, which says no more.
                continue
            # Published kernels are compiled with fast math, as their packages do.
            bound = 16 * _bound(case, "bfloat16" if "bfloat16" in name else case.dtype)
            rows.append(_compared(row, found, bound, say))
            if is_wrong(rows[-1]):
                worker.lost[peer_key(case, name)] = f"wrong: an error of {found:.3g}"
    return rows
