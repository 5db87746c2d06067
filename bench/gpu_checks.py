"""What ``bench.gpu`` checks before it times: plans and peers against float64, and the sanitizer."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import tvm
from tvm.target import Target

from bench.gpu_cases import Case, check_cases, ladder, peer_cases
from bench.gpu_ours import Expected, error_of
from bench.gpu_worker import Peers
from tvm_scan.errors import PlanError

__all__ = ["Clock", "checked", "checked_peers", "sanitized"]

Say = Callable[[str], None]


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


def _bound(case: Case) -> float:
    """Largest error over the largest result that is accepted, from the length and the dtype."""
    unit = 2.0**-8 if case.dtype == "bfloat16" else 2.0**-24
    steps = case.sizes[1] if case.family == "rwkv6" else case.sizes[-1 - (case.family[0] == "s")]
    # Sums of as many roundings as steps; what is summed up is at most that many times the result.
    return 4 * unit if case.dtype == "bfloat16" else 8 * unit * max(16.0, steps**0.5)


def sanitized(say: Say) -> bool:
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
        said = (done.stdout + done.stderr)[-2000:]
        say(f"compute-sanitizer {kind}: {'clean' if done.returncode == 0 else said}")
    return clean


def checked(target: Target, tiny: bool, clock: Clock, say: Say) -> list[Any]:
    """Every plan of the ladders in the cases for it, while there is time."""
    device, rows = tvm.cuda(0), []
    for case in check_cases(tiny):
        # The halves say nothing that float32 does not, but for the default.
        steps = {} if case.dtype == "bfloat16" else ladder(case)
        exact = Expected(case)
        for name, plan in {"default": None, **steps}.items():
            if clock.over():
                say(f"time for comparisons is over before {case}  {name}")
                return rows
            try:
                error, bound = error_of(exact, plan, target, device), _bound(case)
            except PlanError as refusal:
                say(f"{case}  {name}: {refusal}")
                continue
            rows.append({"case": str(case), "plan": name, "error": error, "bound": bound})
            if error > bound:
                say(f"WRONG  {case}  {name}: error {error:.3g}, at most {bound:.3g} expected")
    wrong = sum(row["error"] > row["bound"] for row in rows)
    say(f"compared with float64: {len(rows)} plans, {wrong} wrong")
    return rows


def checked_peers(peers: Peers, clock: Clock, say: Say) -> list[Any]:
    """What peers in CUDA differ by: a time of a wrong result would say nothing."""
    rows = []
    for case in peer_cases():
        for name, error in peers.errors(case, clock.left).items():
            rows.append({"case": str(case), "peer": name, "error": error, "bound": _bound(case)})
            # Published kernels are compiled with fast math, as their packages do.
            if isinstance(error, float) and error > 16 * _bound(case):
                peers.lost[case.family, name] = f"wrong: an error of {error:.3g}"
                say(f"WRONG  {case}  {name}: error {error:.3g}")
    return rows
