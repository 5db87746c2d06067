"""Paths of the CUDA compiler in the ``cuda`` extra, for machines without a CUDA toolkit."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path


def toolkit_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables that point TVM's NVRTC path at the headers installed by pip.

    TVM looks for headers under ``CUDA_PATH``, next to ``nvcc``, or in ``/usr/local/cuda``. The
    packages of the ``cuda`` extra put them elsewhere, and their C++ library in a folder of its
    own, which needs an include option.

    Parameters
    ----------
    environ : Mapping[str, str], optional
        The present environment; ``os.environ`` by default. It is read, not changed.

    Returns
    -------
    variables : dict[str, str]
        What to add to the environment before CUDA code is compiled. Empty where a toolkit is
        found already, and where the ``cuda`` extra is not installed.
    """
    environ = os.environ if environ is None else environ
    has_toolkit = (
        "CUDA_PATH" in environ
        or shutil.which("nvcc", path=environ.get("PATH", os.defpath)) is not None
        or Path("/usr/local/cuda/bin/nvcc").exists()
    )
    root = None if has_toolkit else _pip_toolkit()
    if root is None:
        return {}
    option = shlex.quote(f"-I{root / 'include' / 'cccl'}")
    options = f"{option} {environ.get('TVM_CUDA_NVRTC_EXTRA_OPTS', '')}".strip()
    return {"CUDA_PATH": str(root), "TVM_CUDA_NVRTC_EXTRA_OPTS": options}


def _pip_toolkit() -> Path | None:
    """Return the folder into which the nvidia-cuda-* packages of CUDA 13 install."""
    spec = find_spec("nvidia")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        root = Path(folder) / "cu13"
        if (root / "include" / "cuda_runtime.h").exists():
            return root
    return None
