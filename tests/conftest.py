"""Installs the simulated CUDA device before any test imports TVM."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# For `import cusim` and `import cuda_harness`, whatever pytest's import mode.
sys.path.insert(0, str(Path(__file__).resolve().parent))

import cusim  # noqa: E402

if cusim.available():
    cusim.install()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "gpu: runs a CUDA kernel, on the simulated device, or on a real one where "
        "TVM_SCAN_REAL_GPU=1 is set; skipped where there is neither",
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is None:
        return
    import tvm

    if not tvm.cuda(0).exist:
        pytest.skip(cusim.why_unavailable() or "expected a CUDA device, got none")
