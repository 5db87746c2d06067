"""Repairs of TVM stand in one room, and are looked through with every version of it."""

import ast
from importlib import metadata

import pytest

from tests import ROOT

FILES = sorted((ROOT / "tvm_scan" / "relax" / "repairs").glob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_repair_names_the_version_of_tvm_that_it_was_found_necessary_in(path):
    """Fails with the next version: try the tests without this file, then delete it or rename."""
    if path.stem == "torch_casts":
        pytest.skip("repairs nothing itself")
    version = "TVM " + ".".join(metadata.version("apache-tvm").split(".")[:2])
    assert version in ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
