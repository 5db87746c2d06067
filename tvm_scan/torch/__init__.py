"""PyTorch: scans with gradients, and compiled recurrences on torch tensors.

Nothing here imports TVM before a kernel has to be built: kernels that are in the on-disk cache
need its runtime library alone.
"""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from tvm_scan._guard import ensure_compatible
from tvm_scan.torch import compat
from tvm_scan.torch.functions.convolution import causal_conv1d
from tvm_scan.torch.functions.cumulative import (
    Extremum,
    cummax,
    cummin,
    cumprod,
    cumsum,
    logcumsumexp,
)
from tvm_scan.torch.functions.delta import delta_rule, gated_delta_rule, kda, rwkv7
from tvm_scan.torch.functions.delta_product import gated_delta_product
from tvm_scan.torch.functions.gated import hgrn, rglru
from tvm_scan.torch.functions.higher_order import associative_scan, scan
from tvm_scan.torch.functions.linear import linear_recurrence
from tvm_scan.torch.functions.mamba import selective_scan
from tvm_scan.torch.functions.matrix import gla, rwkv6
from tvm_scan.torch.functions.ssd import ssd
from tvm_scan.torch.kernels.runtime import configure_threads

if TYPE_CHECKING:
    from tvm_scan.torch import distributed, nn, store
    from tvm_scan.torch.compiled.call import CompiledScan, compile_primfunc
    from tvm_scan.torch.functions.filters import lfilter
    from tvm_scan.torch.huggingface import Patch, patch_transformers
    from tvm_scan.torch.kernels.records import loops_of, use_records

ensure_compatible()
configure_threads()

__all__ = [
    "CompiledScan",
    "Extremum",
    "Patch",
    "associative_scan",
    "causal_conv1d",
    "compat",
    "compile_primfunc",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "delta_rule",
    "distributed",
    "gated_delta_product",
    "gated_delta_rule",
    "gla",
    "hgrn",
    "kda",
    "lfilter",
    "linear_recurrence",
    "logcumsumexp",
    "loops_of",
    "nn",
    "patch_transformers",
    "rglru",
    "rwkv6",
    "rwkv7",
    "scan",
    "selective_scan",
    "ssd",
    "store",
    "use_records",
]

_LAZY = {
    "CompiledScan": "compiled.call",
    "Patch": "huggingface",
    "compile_primfunc": "compiled.call",
    "lfilter": "functions.filters",
    "loops_of": "kernels.records",
    "patch_transformers": "huggingface",
    "use_records": "kernels.records",
}
_SUBMODULES = ("distributed", "nn", "store")
#: Names that moved -> where they are.
_MOVED = {
    "compile": "compile_primfunc",
    "mamba_chunk_scan_combined": "compat.mamba_chunk_scan_combined",
    "selective_scan_fn": "compat.selective_scan_fn",
}


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return import_module(f"{__name__}.{name}")
    if name in _MOVED:
        new = _MOVED[name]
        said = f"tvm_scan.torch.{name} is now tvm_scan.torch.{new}"
        warnings.warn(said, DeprecationWarning, stacklevel=2)
        return attrgetter(new)(sys.modules[__name__])
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
