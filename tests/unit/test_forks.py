"""Programs that are forked (tests/support/forks.py) see what those of a fresh interpreter see."""

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.support import forks
from tvm_scan.meta.measure.progress import shielded

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks are for Linux")
PROGRAM = """
import json, os, sys
seen = [sys.argv, os.getcwd(), os.environ["WORD"], sys.stdin.read(), __name__, os.getppid()]
print(json.dumps([*seen, sys.path[0]]))
print("an error", file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""


def start(how, tmp_path):
    """The words of a program, as code, as a module of the folder, and as a file."""
    (tmp_path / "program.py").write_text(PROGRAM)
    words = {"code": ["-c", PROGRAM], "module": ["-m", "program"], "file": ["program.py"]}[how]
    return [sys.executable, *words, "3", "last"]


@pytest.mark.parametrize("how", ["code", "module", "file"])
def test_a_program_sees_what_it_sees_in_a_fresh_interpreter(how, tmp_path):
    seen = {}
    for run in (forks.run, subprocess.run):
        seen[run] = run(
            start(how, tmp_path),
            cwd=tmp_path,
            env={**os.environ, "WORD": "of its own"},
            input="what it reads",
            capture_output=True,
            text=True,
        )
    forked, fresh = seen.values()
    for done in (forked, fresh):
        assert (done.returncode, done.stderr) == (3, "an error\n")
    assert json.loads(forked.stdout) == json.loads(fresh.stdout)


def test_errors_and_signals_are_how_it_ends():
    for code, said in (("raise ValueError('no')", "ValueError: no"), ("exit('text')", "text\n")):
        done = forks.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 1
        assert said in done.stderr
    for number in (signal.SIGINT, signal.SIGKILL):
        code = f"import os; os.kill(os.getpid(), {int(number)}); print('not reached')"
        done = forks.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (-number, "")


def test_a_group_of_its_own_is_killed_alone():
    words = [sys.executable, "-c", "import time; print('here', flush=True); time.sleep(600)"]
    with forks.Forked(words, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout.readline() == b"here\n"
        assert os.getpgid(process.pid) == process.pid
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM


@pytest.mark.parametrize("torch", [False, True])
def test_what_is_loaded(torch):
    code = "import sys; print('tvm' in sys.modules, 'torch' in sys.modules)"
    words = [sys.executable, "-c", code]
    done = forks.run(words, torch=torch, capture_output=True, text=True, check=True)
    assert done.stdout == f"True {torch}\n"


def test_variables_that_are_read_at_an_import_start_a_fresh_interpreter():
    words = [sys.executable, "-c", "import sys; print('tvm' in sys.modules)"]
    env = {**os.environ, "OMP_NUM_THREADS": "1" + os.environ["OMP_NUM_THREADS"]}
    assert forks.run(words, env=env, capture_output=True, text=True).stdout == "False\n"


def test_it_is_this_interpreter_that_runs():
    with pytest.raises(ValueError, match=r"expected a program for .*, got"):
        forks.run(["true", "-c", "pass"])


def test_signals_are_blocked_as_in_the_thread_that_asks():
    code = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))"

    def is_blocked():
        words = [sys.executable, "-c", code]
        return forks.run(words, capture_output=True, text=True, check=True).stdout == "True\n"

    assert shielded(is_blocked)
    assert not is_blocked()
