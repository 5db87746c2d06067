"""The variables that point TVM at a CUDA compiler installed by pip."""

import os
import shlex
from pathlib import Path

import pytest

from tvm_scan import _toolkit
from tvm_scan._toolkit import toolkit_environment


@pytest.fixture
def pip_toolkit(monkeypatch, tmp_path):
    """A pip-installed toolkit, on a machine without any other."""
    root = tmp_path / "site packages" / "nvidia" / "cu13"
    monkeypatch.setattr(_toolkit, "_pip_toolkit", lambda: root)
    if Path("/usr/local/cuda/bin/nvcc").exists():
        monkeypatch.setattr(Path, "exists", lambda self: False)
    return root


def test_points_at_the_pip_toolkit(pip_toolkit):
    variables = toolkit_environment({"PATH": "/nowhere"})
    assert variables["CUDA_PATH"] == str(pip_toolkit)
    options = shlex.split(variables["TVM_CUDA_NVRTC_EXTRA_OPTS"])
    assert options == [f"-I{pip_toolkit / 'include' / 'cccl'}"]


def test_keeps_the_options_of_the_user(pip_toolkit):
    variables = toolkit_environment({"PATH": "", "TVM_CUDA_NVRTC_EXTRA_OPTS": "--ftz=false"})
    assert shlex.split(variables["TVM_CUDA_NVRTC_EXTRA_OPTS"])[1:] == ["--ftz=false"]


def test_leaves_a_toolkit_alone(pip_toolkit, tmp_path):
    assert toolkit_environment({"CUDA_PATH": "/opt/cuda", "PATH": ""}) == {}
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\n")
    nvcc.chmod(0o755)
    assert toolkit_environment({"PATH": str(tmp_path)}) == {}


def test_changes_nothing(pip_toolkit):
    before = dict(os.environ)
    toolkit_environment()
    assert dict(os.environ) == before
