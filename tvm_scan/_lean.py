"""TVM without torch, for processes that have no use for it.

TVM and tvm-ffi import torch wherever it is installed, which takes longer than they do; the command
line and the workers of a search pass no torch tensors.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from typing import Any

#: A worker looks for modules where this process does, and not in the folder that it is started in.
_START = (
    "import sys; sys.path[:] = {path!r}; "
    "from tvm_scan._lean import leave_torch_out; leave_torch_out(); "
    "from runpy import run_module; run_module({module!r}, run_name='__main__', alter_sys=True)"
)


class _NotForTVM:
    """Hides torch from TVM while TVM is being imported, and from nobody else."""

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        if name == "torch" and any(map(_is_loading, ("tvm", "tvm_ffi"))):
            raise ModuleNotFoundError("tvm_scan: TVM is imported without torch here", name=name)
        return None


def _is_loading(name: str) -> bool:
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return getattr(spec, "_initializing", False)


def leave_torch_out() -> None:
    """Let TVM's import go without torch, from now on; ``import torch`` works as ever."""
    sys.meta_path.insert(0, _NotForTVM())


def without_torch(command: Sequence[str]) -> list[str]:
    """Return ``python -m module ...`` as a command that imports TVM without torch."""
    python, option, module, *rest = command
    if option != "-m":
        raise ValueError(f"without_torch: expected python -m module, got {option!r}")
    return [python, "-c", _START.format(module=module, path=sys.path), *rest]


class _Subprocess:
    """The module ``subprocess``, but that TVM's workers are started without torch."""

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)

    def Popen(self, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        return subprocess.Popen(without_torch(command), **options)


def leave_torch_out_of_workers() -> None:
    """Start the processes of TVM's pools without torch, from now on."""
    from tvm.support import popen_pool

    popen_pool.subprocess = _Subprocess()
