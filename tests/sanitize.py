"""The tests of CUDA kernels on a GPU, under every tool of compute-sanitizer.

python -m tests.sanitize                                  # what takes part by default
python -m tests.sanitize --tool racecheck tests/programs/test_delta.py -k halves

Arguments go to pytest. Exit code 0: every tool found every test clean; 1: one did not; 2: there is
no compute-sanitizer, or no GPU, and nothing was checked.
"""

import argparse
import os
import shutil
import subprocess
import sys

from bench.gpu_checks import SANITIZERS
from tests import ROOT

#: Every builder by every algebra that it takes at edge lengths, the look-back, tiles and chunks of
#: walks, tiles of trees, lanes that share them, and the delta rule.
FILES = (
    "gpu/test_table",
    "gpu/test_single_pass",
    "gpu/test_walk_tiles",
    "gpu/test_walk_chunks",
    "gpu/test_shared_lanes",
    "gpu/test_shared_items",
    "gpu/test_block_trees",
    "programs/test_delta",
)
#: The exit code of compute-sanitizer where it has found something; pytest has 0 to 5.
FOUND = 9
#: A tool makes a kernel up to some hundred times slower.
TIMEOUT = 7200


def main(arguments: list[str]) -> int:
    """Run; returns the exit code of the process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tool", action="append", choices=SANITIZERS, help="all if not given")
    chosen, rest = parser.parse_known_args(arguments)
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        print("tests.sanitize: expected compute-sanitizer on the PATH, got none; nothing checked")
        return 2
    # Else the tests take their own simulated device, of which there is nothing to sanitize.
    environment = {**os.environ, "TVM_SCAN_REAL_GPU": "1"}
    if not _has_gpu(environment):
        print("tests.sanitize: expected a GPU, got none; nothing checked")
        return 2
    some = any(part.partition("::")[0].endswith(".py") for part in rest)
    files = [] if some else [f"tests/{name}.py" for name in FILES]
    pytest = [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider"]
    pytest += [f"--timeout={TIMEOUT}", *files, *rest]
    bad = []
    for tool in chosen.tool or SANITIZERS:
        command = [sanitizer, "--tool", tool, "--error-exitcode", str(FOUND)]
        command += ["--target-processes", "all", *pytest]
        code = subprocess.run(command, cwd=ROOT, env=environment).returncode
        said = {0: "clean", FOUND: "found errors"}.get(code, f"pytest ended with {code}")
        print(f"tests.sanitize: {tool}: {said}", flush=True)
        bad += [tool] if code else []
    return 1 if bad else 0


def _has_gpu(environment: dict[str, str]) -> bool:
    """Whether a process with this environment would run the tests on a GPU."""
    code = "from tests.support import cusim; cusim.install(); import tvm; "
    code += "raise SystemExit(cusim.is_simulated() or not tvm.cuda(0).exist)"
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment).returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
