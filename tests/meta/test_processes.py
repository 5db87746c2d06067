"""A search in a process of its own: Ctrl-C on this CPU, the simulated GPU end to end.

Those that are killed have real workers, in their group: what becomes of all of them is the test.
"""

import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from tests import ROOT
from tests.support import cusim, forks
from tvm_scan.meta import RecordStore
from tvm_scan.meta.measure import scratch

#: A candidate that never ends, in Python or in compiled code, while its tuner is killed.
ENDLESS = {
    "asleep": "time.sleep(1000)",
    "in TVM": "endless(tvm.runtime.tensor(np.zeros(1, 'int64')))",
}
KILLED = """
import os, sys, time
import numpy as np
import tvm
from tvm.script import tirx as T
from tvm.target import Target
from tvm_scan import library
from tvm_scan.meta import tune

@T.prim_func(s_tir=True)
def spin(X: T.Buffer((1,), "int64")):
    for i in range(T.int64(1) << T.int64(60)):
        X[0] = T.bitwise_xor(X[0] * T.int64(3), T.cast(i, "int64"))

def begin():
    if os.environ.get("TUNER") and os.getppid() == int(os.environ["TUNER"]):
        endless = tvm.compile(spin.with_attr("global_symbol", "main"), target="llvm")["main"]
        with open(os.environ["WORKER"], "a") as file:
            file.write(f"{{os.getpid()}} {{os.environ['TMPDIR']}}\\n")
        {endless}

if __name__ == "__main__":
    os.environ["TUNER"] = str(os.getpid())
    tune(library.cumsum(4, 100), Target.from_device("cpu"), sys.argv[1], initializer=begin,
        trials=2, progress=False)
"""


def is_alive(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("how", ENDLESS)
def test_workers_end_with_a_tuner_that_is_killed(tmp_path, how, monkeypatch):
    (tmp_path / "program.py").write_text(KILLED.format(endless=ENDLESS[how]))
    (tmp_path / "tmp").mkdir()
    named = tmp_path / "workers"
    process = forks.Forked(
        [sys.executable, "program.py", "records"],
        cwd=tmp_path,
        env={**os.environ, "WORKER": str(named), "TMPDIR": str(tmp_path / "tmp")},
        start_new_session=True,
    )
    try:
        limit = time.monotonic() + 240
        while not (named.is_file() and named.read_text().endswith("\n")):
            assert process.poll() is None and time.monotonic() < limit
            time.sleep(0.1)
        worker, folder = named.read_text().split()
        assert is_alive(int(worker))
        assert Path(folder).parent == tmp_path / "tmp", "its files are in the tuner's folder"
        time.sleep(2 if how == "in TVM" else 0)  # until it is in there
    finally:
        process.kill()  # the tuner alone: no group, no signal that it could answer
    process.wait()
    limit = time.monotonic() + 60
    while is_alive(int(worker)):
        assert time.monotonic() < limit, "the worker outlives its tuner"
        time.sleep(0.1)
    assert Path(folder).is_dir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    scratch._sweep()
    assert Path(folder).is_dir(), "it is young: its lock may not be there yet"
    os.utime(folder, (1, 1))
    scratch._sweep()
    assert not Path(folder).exists()


def test_folders_of_others_and_of_the_living_are_not_swept(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(scratch, "_own", {})
    mine = scratch.scratch_folder()
    assert mine.parent == tmp_path and mine == scratch.scratch_folder()
    assert stat.S_IMODE(mine.stat().st_mode) == 0o700
    shared = tmp_path / "tvm-scan-run-shared"
    shared.mkdir()
    shared.chmod(0o755)
    (tmp_path / "tvm-scan-run-link").symlink_to(tmp_path / "notes")
    (tmp_path / "notes").mkdir(mode=0o700)
    (tmp_path / "tvm-scan-run-file").write_text("mine")
    dead = tmp_path / "tvm-scan-run-dead"
    dead.mkdir(mode=0o700)
    for path in tmp_path.iterdir():
        os.utime(path, (1, 1), follow_symlinks=False)
    scratch._sweep()
    left = {path.name for path in tmp_path.iterdir()}
    names = {"tvm-scan-run-shared", "tvm-scan-run-link", "notes", "tvm-scan-run-file", mine.name}
    assert left == names
    scratch._remove(os.getpid())
    assert not mine.exists()


PROGRAM = """
import json, sys
{before}
from tvm.target import Target
from tvm.s_tir import meta_schedule as ms
from tvm_scan import library
from tvm_scan.meta import tune

if __name__ == "__main__":
    {target}
    result = tune(library.cumsum({shape}), target, sys.argv[1], trials={trials}, progress=False,
        config=ms.runner.EvaluatorConfig(number=1, repeat=1, min_repeat_ms=0), {more})
    function = result.functions[0]
    print(json.dumps({{
        "interrupted": result.interrupted,
        "trials": [[str(t), t.seconds, t.error] for t in function.trials],
        "intrinsics": "tvm.s_tir.tensor_intrin" in sys.modules,
    }}))
"""


def test_ctrl_c_keeps_what_was_measured(tmp_path):
    program = PROGRAM.format(
        before="", target='target = Target.from_device("cpu")', shape="64, 4096", trials=38, more=""
    )
    (tmp_path / "program.py").write_text(program)
    folder = tmp_path / "records"
    process = forks.Forked(
        [sys.executable, "program.py", str(folder)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    limit = time.monotonic() + 120
    while not (folder / "database_tuning_record.json").is_file():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < limit
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: parent and workers
    out, error = process.communicate(timeout=60)
    assert process.returncode == 0, error
    report = json.loads(out)
    assert report["interrupted"]
    assert "all records are kept" in error
    assert "Traceback" not in error
    ran = [t for t in report["trials"] if t[2] is None]
    assert 1 <= len(ran) < 38
    assert len(RecordStore(folder).entries()) == len(ran) == len(report["trials"])


@pytest.mark.skipif(not cusim.available(), reason=str(cusim.why_unavailable()))
def test_the_cuda_search_runs_on_the_simulated_device(tmp_path):
    before = f"sys.path.insert(0, {str(ROOT)!r})\n"
    before += "from tests.support import cusim\ncusim.install()\n"
    before += "from tests.support.cuda_harness import CUDA_TARGET"
    program = PROGRAM.format(
        before=before,
        target="target = CUDA_TARGET",
        shape="3, 100",
        trials=7,
        more="initializer=cusim.install",
    )
    (tmp_path / "program.py").write_text(program)
    done = forks.run(
        [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "records")],
        workers=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [t[2] for t in report["trials"]] == [None] * 7, report
    assert not report["intrinsics"]
    assert {t[0].partition("(")[0] for t in report["trials"]} >= {
        "cuda/sequential",
        "cuda/lanes",
        "cuda/serial_tiles",
        "cuda/three_phase",
    }
    assert len(RecordStore(tmp_path / "records").entries()) == 7
