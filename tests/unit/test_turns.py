"""Tests that passed take turns on the same sources; whatever changes makes all of them run."""

import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests import ROOT
from tests.support import turns
from tests.support.turns import TURNS, Turns


@pytest.fixture
def repository(tmp_path):
    for name in ("schedules/tree.py", "tests/unit/test_a.py", "pages/a.md", ".ci/run"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path


def outcome(name, result):
    return SimpleNamespace(nodeid=name, outcome=result)


def run(folder, key, outcomes):
    """What a run leaves out, after which it takes the rest."""
    taken = Turns(folder, key)
    left = taken.left_out(outcomes)
    for name, result in outcomes.items():
        if name not in left:
            taken.pytest_runtest_logreport(outcome(name, "passed"))
            taken.pytest_runtest_logreport(outcome(name, result))
            taken.pytest_runtest_logreport(outcome(name, "passed"))
    taken.keep()
    return left


def test_every_test_has_its_turn(tmp_path):
    outcomes = {f"tests/a.py::test_{i}": "passed" for i in range(400)}
    assert not run(tmp_path, "key", outcomes)
    ran = [set(outcomes) - run(tmp_path, "key", outcomes) for _ in range(TURNS)]
    assert set().union(*ran) == set(outcomes)
    assert sum(map(len, ran)) == len(outcomes)
    assert max(map(len, ran)) < len(outcomes) / 3
    assert not run(tmp_path, "another key", outcomes)


@pytest.mark.parametrize("result", ["failed", "skipped"])
def test_what_did_not_pass_runs_each_time(tmp_path, result):
    outcomes = {"tests/a.py::test_a": "passed", "tests/a.py::test_b": result}
    left = [run(tmp_path, "key", outcomes) for _ in range(1 + TURNS)]
    assert all("tests/a.py::test_b" not in names for names in left)
    # A test that passed before and fails in its turn is left out no more.
    failing = dict.fromkeys(outcomes, "failed")
    for _ in range(TURNS):
        run(tmp_path, "key", failing)
    assert not run(tmp_path, "key", failing)


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "schedules/tree.py").write_text("another tree"),
        lambda root: (root / "pages/a.md").unlink(),
        lambda root: (root / "pages/a.md").rename(root / "pages/b.md"),
        lambda root: (root / "meta.py").write_text(""),
        lambda root: (root / ".ci/run").write_text("another run"),
    ],
)
def test_a_changed_file_makes_all_run(repository, change):
    before = turns.digest(repository)
    assert turns.digest(repository) == before
    change(repository)
    assert turns.digest(repository) != before


def test_a_changed_builder_or_package_makes_all_run(repository, monkeypatch):
    before = turns.digest(repository)
    with monkeypatch.context() as patch:
        patch.setattr(turns._toolchain, "fingerprint", lambda: "another compiler")
        assert turns.digest(repository) != before
    with monkeypatch.context() as patch:
        packages = [SimpleNamespace(name="numpy", version="0")]
        patch.setattr(turns.importlib.metadata, "distributions", lambda: packages)
        assert turns.digest(repository) != before
    variables = {**os.environ, "TVM_NUM_THREADS": "77"}
    assert turns.digest(repository, variables) != turns.digest(repository, dict(os.environ))
    assert turns.digest(repository, {"LINES": "1"}) == turns.digest(repository, {"LINES": "2"})


def test_what_a_run_leaves_behind_changes_nothing(repository):
    before = turns.digest(repository)
    for name in (".venv/a.py", "pages/__pycache__/a.pyc", ".git/index", "tvm_scan.egg-info/a"):
        path = repository / name
        path.parent.mkdir(parents=True)
        path.write_text("")
    assert turns.digest(repository) == before


def test_every_file_that_git_knows_is_in_the_hash():
    if not (ROOT / ".git").exists():
        pytest.skip("expected a clone, got an archive")
    names = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).split()
    in_hash = {str(path.relative_to(ROOT)) for path in turns.sources()}
    others = {name for name in names if (ROOT / name).exists()} - in_hash
    assert all(name.startswith(".") for name in others), others


CONFTEST = """
from pathlib import Path
from tests.support.turns import Turns

def pytest_configure(config):
    config.pluginmanager.register(Turns(Path(__file__).parent / "kept", "key"))
"""
OWN = """
import pytest

@pytest.mark.parametrize("n", range(40))
def test_own(n):
    assert n != 7
"""


def test_a_second_run_says_what_it_leaves_out(tmp_path):
    """With workers, who collect, and a controller, who keeps."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_own.py").write_text(OWN)
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", str(tmp_path)]
    texts = [
        subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True).stdout
        for _ in range(2)
    ]
    passed = [int(re.search(r"(\d+) passed", text)[1]) for text in texts]
    left = re.search(r"(\d+) tests that passed before on these very sources", texts[1])
    assert "left out" not in texts[0]
    assert all("1 failed" in text for text in texts)
    assert passed[0] == passed[1] + int(left[1]) == 39
    assert 0 < passed[1] < 20
    (kept,) = (tmp_path / "kept").iterdir()
    assert json.loads(kept.read_text())["runs"] == 2
