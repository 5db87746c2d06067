"""Covering subsets of parameters, on cases as the installed pytest makes them."""

import subprocess
import sys

from tests import ROOT
from tests.support import tiers

CASES = """
import pytest

@pytest.mark.parametrize("a", [1, 2, 3])
@pytest.mark.parametrize("b", [[1], [1], {}, {}])
@pytest.mark.parametrize(("c", "d"), [(0, 1), (1, 1)])
def test_it(a, b, c, d):
    pass
"""
PROGRAM = """
import sys
import pytest
from tests.support import tiers

class Plugin:
    def pytest_collection_modifyitems(self, items):
        cases = [tiers.parameters_of(item) for item in items]
        print("parameters", {name: len({case[name] for case in cases}) for name in cases[0]})
        print("taken", len(tiers.meeting(cases)), "of", len(cases))

arguments = [sys.argv[1], "--collect-only", "-q", "-p", "no:cacheprovider", "-c", "/dev/null"]
sys.exit(pytest.main(arguments, plugins=[Plugin()]))
"""


def test_a_product_is_thinned_to_every_value(tmp_path):
    """pytest 9 numbers cases where pytest 8 numbered values: nothing was left out any more."""
    (tmp_path / "test_cases.py").write_text(CASES)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "test_cases.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert "parameters {'c,d': 2, 'b': 4, 'a': 3}" in lines
    assert "taken 4 of 24" in lines


def test_one_of_so_many_alike_is_taken_and_all_of_them_in_turns(monkeypatch):
    taken = set()
    for seed in range(3):
        monkeypatch.setattr(tiers, "SEED", seed)
        part = tiers.part("test_a.py::test_b", 10, 3)
        assert 3 <= len(part) <= 4
        taken |= part
    assert taken == set(range(10))
    assert tiers.part("test_a.py::test_b", 2, 5) in ({0}, {1})
    assert tiers.part("test_a.py::test_b", 4, 1) == {0, 1, 2, 3}


def test_a_share_is_of_the_tests_that_a_folder_names():
    folder = tiers.Folder(alike={"test_a.py::test_b": 3, "test_c.py": 2})
    assert folder.share("test_a.py::test_b[x]")[1] == 3
    assert folder.share("test_c.py::test_d") == ("test_c.py", 2)
    assert folder.share("test_a.py::test_other[x]") == ("", 1)
    assert folder.stale("default", ["test_a.py::test_b[x]"]) == ["test_c.py"]
