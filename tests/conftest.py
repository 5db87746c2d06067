"""Installs the simulated CUDA device before any test imports TVM; the command line as a fixture."""

import os
import sys
import tempfile

import pytest

from tests.support import cusim

# A cache of kernels of this run's own: that of the user holds other versions' kernels.
os.environ.setdefault("TVM_SCAN_CACHE", tempfile.mkdtemp(prefix="tvm-scan-test-cache-"))
# Plans that do not depend on which machine the tests run on; tests/meta/test_shipped.py turns
# it on.
os.environ.setdefault("TVM_SCAN_RECORDS", "off")

if cusim.available():
    cusim.install()


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--update-golden`` writes the golden files anew, to be read as a diff."""
    parser.addoption("--update-golden", action="store_true", help="write tests/golden/ anew")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests of CUDA kernels where there is neither a simulated nor a real device."""
    if item.get_closest_marker("gpu") is None:
        return
    import tvm

    if not tvm.cuda(0).exist:
        pytest.skip(cusim.why_unavailable() or "expected a CUDA device, got none")


@pytest.fixture
def command(monkeypatch, capsys):
    """The command line in this process: exit code, output, errors."""

    from tvm_scan.cli.app import run

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["tvm-scan", *map(str, arguments)])
        with pytest.raises(SystemExit, match=r"^\d+$") as done:
            run()
        text = capsys.readouterr()
        return done.value.code, text.out, text.err

    return call
