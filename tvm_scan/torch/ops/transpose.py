"""Swapping the last two axes, faster than torch copies a transposed view."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from tvm_scan.torch.kernels import devices
from tvm_scan.torch.kernels.cache import run_kernel
from tvm_scan.torch.kernels.runtime import aligned_empty
from tvm_scan.torch.kernels.spec import KernelSpec, dtype_name


@functools.cache
def _spec(dtype: torch.dtype, result: torch.dtype) -> KernelSpec:
    options = (("dtype", dtype_name(dtype)), ("result", dtype_name(result)))
    return KernelSpec("transpose", options, ("outer", "rows", "columns"), no_scan=True)


def transposed(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a contiguous ``tensor.transpose(-1, -2)`` of another dtype."""
    *outer, rows, columns = tensor.shape
    out = aligned_empty((*outer, columns, rows), dtype, tensor.device)
    if not out.numel():
        return out
    if devices.device_of(tensor) is not devices.CPU:
        return out.copy_(tensor.transpose(-1, -2))
    count = math.prod(outer)
    flat = tensor.reshape(count, rows, columns)
    spec = _spec(tensor.dtype, dtype)
    run_kernel(spec, (count, rows, columns), flat, out.view(count, columns, rows))
    return out
