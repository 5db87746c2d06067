"""Calls without a detour: tensors as they usually are, straight to the kernel.

What the functions do in general (promote, broadcast, fold axes, dispatch) takes longer than a
small kernel. Where all that would change nothing, this allocates the result and runs the kernel.
"""

from __future__ import annotations

import functools
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
from tvm_scan.torch.kernels.runtime import ALIGNMENT, LARGE, aligned_empty, compact_strides
from tvm_scan.torch.kernels.spec import KernelSpec
from tvm_scan.torch.ops.frame import frame_of

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
    way = _way(make, options, dim, shape, dtype)
    if way is None:
        return None
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
    out = _empty_like(x) if x.nbytes < LARGE else aligned_empty(shape, dtype, x.device)
    if out.data_ptr() % ALIGNMENT:
        return None
    kernel_at(kernel).call(*arrays, out if frame is None else out.view(frame))
    return out


@functools.lru_cache(maxsize=4096)
def _way(
    make: Callable[..., KernelSpec],
    options: tuple[object, ...],
    dim: int,
    shape: torch.Size,
    dtype: torch.dtype,
) -> tuple[Any, tuple[int, ...] | None, tuple[int, ...]] | None:
    """The key of the built kernel, the shape of its arrays, and the strides of the tensors.

    The shape is None if it is that of the tensors. There is no way for tensors without elements,
    axes that are none, and dtypes that no kernel carries.
    """
    if 0 in shape or not -len(shape) <= dim < len(shape) or dtype not in _DTYPES:
        return None
    axis = dim % len(shape)
    sizes, time_last, frame = frame_of(
        (math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))
    )
    kernel = call_key(make(dtype, *options, time_last), sizes, CPU)
    return kernel, None if tuple(shape) == frame else frame, compact_strides(shape)
