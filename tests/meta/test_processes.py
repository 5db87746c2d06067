"""A search in a process of its own: Ctrl-C on this CPU, the simulated GPU end to end."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests import ROOT
from tests.support import cusim
from tvm_scan.meta import RecordStore

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
    process = subprocess.Popen(
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
    before = "from tests.support import cusim\ncusim.install()\n"
    before += "from tests.support.cuda_harness import CUDA_TARGET"
    program = PROGRAM.format(
        before=before,
        target="target = CUDA_TARGET",
        shape="3, 100",
        trials=7,
        more="initializer=cusim.install",
    )
    (tmp_path / "program.py").write_text(program)
    root = str(ROOT)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "records")],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": root},
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
