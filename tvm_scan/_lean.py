"""TVM without torch, for processes that have no use for it.

TVM and tvm-ffi import torch wherever it is installed, which takes longer than they do; the command
line passes no torch tensors.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from typing import Any

__all__ = ["leave_torch_out"]


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
    sys.meta_path.insert(0, _NotForTVM())  # type: ignore[arg-type]
