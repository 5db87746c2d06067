"""PyTorch: scans with gradients, and compiled recurrences on torch tensors.

Nothing here imports TVM before a kernel has to be built: kernels that are in the on-disk cache
need its runtime library alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tvm_scan._guard import ensure_compatible
from tvm_scan.torch.functions import (
    Extremum,
    cummax,
    cummin,
    cumprod,
    cumsum,
    logcumsumexp,
)
from tvm_scan.torch.gated import hgrn, rglru
from tvm_scan.torch.higher_order import associative_scan, scan
from tvm_scan.torch.linear import linear_recurrence
from tvm_scan.torch.mamba import selective_scan, selective_scan_fn
from tvm_scan.torch.mamba_ssm import mamba_chunk_scan_combined
from tvm_scan.torch.matrix import gla, rwkv6
from tvm_scan.torch.runtime import configure_threads
from tvm_scan.torch.ssd import ssd

if TYPE_CHECKING:
    from tvm_scan.torch import nn, store
    from tvm_scan.torch.call import CompiledScan, compile
    from tvm_scan.torch.filters import lfilter
    from tvm_scan.torch.huggingface import Patch, patch_transformers
    from tvm_scan.torch.records import loops_of, use_records

ensure_compatible()
configure_threads()

__all__ = [
    "CompiledScan",
    "Extremum",
    "Patch",
    "associative_scan",
    "compile",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "gla",
    "hgrn",
    "lfilter",
    "linear_recurrence",
    "logcumsumexp",
    "loops_of",
    "mamba_chunk_scan_combined",
    "nn",
    "patch_transformers",
    "rglru",
    "rwkv6",
    "scan",
    "selective_scan",
    "selective_scan_fn",
    "ssd",
    "store",
    "use_records",
]

_LAZY = {
    "CompiledScan": "call",
    "Patch": "huggingface",
    "compile": "call",
    "lfilter": "filters",
    "loops_of": "records",
    "patch_transformers": "huggingface",
    "use_records": "records",
}
_SUBMODULES = ("distributed", "nn", "store")


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return import_module(f"{__name__}.{name}")
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
