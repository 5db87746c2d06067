"""What a run of the tests sets before TVM is imported: threads, caches, records."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

_MEGABYTES = 2048  # of torch's kernels; the whole suite builds some hundred


def cache_folder() -> Path:
    """Where results of compilers are kept from run to run: ``TVM_SCAN_TEST_CACHE``."""
    named = os.environ["TVM_SCAN_TEST_CACHE"]
    return Path(named).expanduser()


def install() -> None:
    """Set what is not set; a second call, and one in a worker of the first, change nothing."""
    # Two threads in each worker: enough for a race in a parallel loop to show, few enough for
    # the workers to share a machine.
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    os.environ.setdefault("TVM_NUM_THREADS", "2")
    # Bound threads of all workers would sit on the same first cores.
    os.environ.setdefault("TVM_BIND_THREADS", "0")
    # A thread that spins for the next call takes the core from the worker that has one.
    os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "0")
    # Plans that do not depend on which machine the tests run on; tests/meta/test_shipped.py
    # turns it on.
    os.environ.setdefault("TVM_SCAN_RECORDS", "off")
    # Nor on what somebody calibrated; no test writes a user's file.
    os.environ.setdefault("TVM_SCAN_MACHINE", "off")
    # Where no bytecode is kept, each of some hundred child processes compiles the modules that
    # it imports anew: 2 s of torch and TVM.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    _caches()


def _caches() -> None:
    named = os.environ.get("TVM_SCAN_TEST_CACHE", "")
    if named.lower() == "off":
        named = tempfile.mkdtemp(prefix="tvm-scan-test-cache-")
        atexit.register(shutil.rmtree, named, ignore_errors=True)
    elif not named:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        named = os.path.join(base, "tvm_scan", "tests")
    os.environ["TVM_SCAN_TEST_CACHE"] = named
    folder = cache_folder()
    # The names of both hold the sources that they depend on.
    os.environ.setdefault("CUSIM_CACHE", str(folder / "cusim"))
    os.environ.setdefault("POCL_CACHE_DIR", str(folder / "pocl"))
    if "TVM_SCAN_CACHE" not in os.environ:
        # The full tier has kernels with all checks of arguments (quick_kernels.py).
        is_full = os.environ.get("TVM_SCAN_TEST_TIER") == "full"
        kernels = folder / ("kernels-full" if is_full else "kernels")
        kernels.mkdir(mode=0o700, parents=True, exist_ok=True)
        (kernels / "limit.txt").write_text(str(_MEGABYTES), encoding="utf-8")
        os.environ["TVM_SCAN_CACHE"] = str(kernels)
