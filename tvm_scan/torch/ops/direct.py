"""Calls without a detour: tensors as they usually are, straight to the kernel.

What the functions do in general (promote, broadcast, fold axes, dispatch) takes longer than a
small kernel. Where all that would change nothing, this allocates the result and runs the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tvm_scan.torch.arguments import FLOATS
from tvm_scan.torch.declare.dispatch import sees_nothing
from tvm_scan.torch.kernels import devices, runtime
from tvm_scan.torch.kernels.cache import call_key, kernel_at
from tvm_scan.torch.kernels.devices import CPU
from tvm_scan.torch.kernels.runtime import ALIGNMENT, compact_strides
from tvm_scan.torch.kernels.spec import KernelSpec
from tvm_scan.torch.ops.frame import frame_of

#: By kernel, axis, shape and dtype: the key of the built kernel, the shape of its arrays (None if
#: it is that of the tensors), and the strides that the tensors must have.
_ways: dict[tuple[Any, ...], tuple[Any, tuple[int, ...] | None, tuple[int, ...]]] = {}
_empty_like = torch.empty_like
#: Dtypes of kernels that carry what they read.
_DTYPES = (*FLOATS, torch.int32, torch.int64)


def direct(
    make: Callable[..., KernelSpec], options: tuple[object, ...], dim: int, *inputs: object
) -> Tensor | None:
    """Run a kernel on inputs of one shape and one real dtype, if nothing watches them.

    Parameters
    ----------
    make : callable
        ``make(dtype, *options, time_last)`` is the kernel.
    options : tuple
        See `make`.
    dim : int
        The time axis.
    *inputs : Tensor
        What the kernel reads; the last one is like the result.

    Returns
    -------
    Tensor or None
        None where the general way has to be taken.
    """
    if type(dim) is not int:
        return None
    for tensor in inputs:
        if not isinstance(tensor, Tensor):
            return None
    if not sees_nothing(inputs):
        return None
    # All of them are tensors, as the loop above has asked: a cast would cost time.
    return run_direct(make, options, dim, inputs)  # type: ignore[arg-type]


def run_direct(
    make: Callable[..., KernelSpec],
    options: tuple[object, ...],
    dim: int,
    inputs: tuple[Tensor, ...],
) -> Tensor | None:
    """`direct` for the implementation of an operator: it knows that nothing watches."""
    x = inputs[-1]
    shape, dtype = x.shape, x.dtype
    key = (make, options, dim, shape, dtype)
    way = _ways.get(key)
    if way is None:
        if not x.numel() or not -x.dim() <= dim < x.dim() or dtype not in _DTYPES:
            return None
        way = _remember(key)
    kernel, frame, strides = way
    # In a forked child another thread runs the kernels, and a GPU needs its stream.
    if runtime.substitute is not None or devices.device_of(x) is not CPU:
        return None
    arrays = []
    for tensor in inputs:
        if (
            not tensor.is_cpu
            or tensor.stride() != strides
            or tensor.shape != shape
            or tensor.dtype != dtype
            or tensor.data_ptr() % ALIGNMENT
            or tensor.is_neg()
        ):
            return None
        if tensor.requires_grad:
            tensor = tensor.detach()
        arrays.append(tensor if frame is None else tensor.view(frame))
    out = _empty_like(x)
    if out.data_ptr() % ALIGNMENT:
        return None
    kernel_at(kernel).call(*arrays, out if frame is None else out.view(frame))
    return out


def _remember(key: tuple[Any, ...]) -> Any:
    make, options, dim, shape, dtype = key
    axis = dim % len(shape)
    sizes, time_last, frame = frame_of(
        (math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))
    )
    kernel = call_key(make(dtype, *options, time_last), sizes, CPU)
    if len(_ways) > 4096:
        _ways.clear()
    same = tuple(shape) == frame
    return _ways.setdefault(key, (kernel, None if same else frame, compact_strides(shape)))
