"""Every check in one command: lint, format, tests. Arguments go to pytest.

python -m tests
python -m tests -k guard
"""

import os
import subprocess
import sys

from tests import ROOT

MAX_WORKERS = 4  # each worker compiles kernels, and holds TVM and torch in memory


def main(arguments: list[str]) -> int:
    for check in (["check"], ["format", "--check"]):
        code = subprocess.call([sys.executable, "-m", "ruff", *check, "."], cwd=ROOT)
        if code:
            return code
    workers = min(_available_cores(), MAX_WORKERS)
    parallel = ["-n", str(workers)] if workers > 1 else []
    command = [sys.executable, "-m", "pytest", *parallel, *arguments]
    return subprocess.call(command, cwd=ROOT, env=_environment())


def _available_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _environment() -> dict[str, str]:
    environment = dict(os.environ)
    # Two threads in each worker: enough for a race in a parallel loop to show, few enough for
    # the workers to share a machine.
    environment.setdefault("OMP_NUM_THREADS", "2")
    environment.setdefault("TVM_NUM_THREADS", "2")
    # Bound threads of all workers would sit on the same first cores.
    environment.setdefault("TVM_BIND_THREADS", "0")
    return environment


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
