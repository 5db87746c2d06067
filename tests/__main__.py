"""Every check in one command: lint and format, then tests and types.

python -m tests quick      # what a change breaks most often, in minutes
python -m tests            # what CI runs
python -m tests full       # everything: every length, every pair, all mutants

``--no-cache`` compiles all kernels anew; other arguments go to pytest (``-k``, ``-x``, files).
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from tests import ROOT, types
from tests.support import environment, turns
from tests.support.tiers import TIERS

MAX_WORKERS = 4  # each worker compiles kernels, and holds TVM and torch in memory


def main(arguments: list[str]) -> int:
    """Run the checks, and return the exit code of one that fails."""
    tier = arguments[0] if arguments and arguments[0] in TIERS else "default"
    rest = arguments[arguments[:1] == [tier] :]
    if "--no-cache" in rest:
        rest.remove("--no-cache")
        os.environ["TVM_SCAN_TEST_CACHE"] = "off"
    os.environ["TVM_SCAN_TEST_TIER"] = tier
    if tier == "default" and not rest:
        os.environ.setdefault(turns.SWITCH, "on")
    environment.install()
    for check in (["check"], ["format", "--check"]):
        code = subprocess.call([sys.executable, "-m", "ruff", *check, "."], cwd=ROOT)
        if code:
            return code
    # mypy takes one core for half a minute; the tests take it back when mypy has ended.
    with ThreadPoolExecutor(1) as beside:
        typed = beside.submit(types.report, [])
        code = _pytest(rest)
        type_code, text = typed.result()
    sys.stdout.write(f"types: {text}")
    return code or type_code


def _pytest(rest: list[str]) -> int:
    workers = min(_available_cores(), MAX_WORKERS)
    parallel = ["-n", str(workers), "--dist", "worksteal"] if workers > 1 else []
    slowest = ["--durations", "20", "--durations-min", "2"]
    command = [sys.executable, "-m", "pytest", *parallel, *slowest, *rest]
    return subprocess.call(command, cwd=ROOT)


def _available_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
