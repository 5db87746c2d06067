"""The command that runs the CUDA tests under compute-sanitizer, with a tool in its place."""

import os
from importlib import import_module

import pytest

from tests import ROOT, sanitize
from tests.support import cusim
from tests.support.tiers import everything

TOOL = """#!/bin/sh
echo "$TVM_SCAN_REAL_GPU $@" >> "$(dirname "$0")/told"
case "$2" in racecheck) exit 9;; synccheck) exit 1;; esac
"""


@pytest.fixture
def tool(tmp_path, monkeypatch):
    path = tmp_path / "compute-sanitizer"
    path.write_text(TOOL)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path / "told"


def test_every_tool_runs_the_tests_on_the_real_device(tool, monkeypatch, capfd):
    monkeypatch.setattr(sanitize, "_has_gpu", lambda _: True)
    assert sanitize.main(["-x"]) == 1
    told = tool.read_text().splitlines()
    assert [line.split()[2] for line in told] == list(sanitize.SANITIZERS)
    for line in told:
        assert line.startswith("1 --tool ") and "--target-processes all " in line
        assert "-m pytest -m gpu" in line and "tests/gpu/test_table.py" in line
        assert line.endswith(" -x")
    said = capfd.readouterr().out.splitlines()
    assert [line.split(": ")[2] for line in said] == [
        "clean",
        "found errors",
        "pytest ended with 1",
        "clean",
    ]
    assert sanitize.main(["--tool", "memcheck", "tests/programs/test_delta.py::test_x"]) == 0
    assert "test_cuda_table" not in tool.read_text().splitlines()[-1]


def test_nothing_checked_is_not_clean(tool, monkeypatch, capfd):
    if not cusim.is_simulated():
        pytest.skip("there is a GPU, which would be used")
    assert sanitize.main([]) == 2
    assert "expected a GPU, got none" in capfd.readouterr().out
    monkeypatch.setattr(sanitize.shutil, "which", lambda _: None)
    assert sanitize.main([]) == 2
    assert not tool.exists()


def test_the_files_are_there_and_run_on_a_device():
    for path in sanitize.FILES:
        folder, _, name = path.partition("/")
        assert (ROOT / "tests" / f"{path}.py").exists(), path
        gpu = import_module(f"tests.{folder}.conftest").FOLDER.gpu
        assert gpu == everything or any(p.startswith(f"{name}.py") for p in gpu), path
