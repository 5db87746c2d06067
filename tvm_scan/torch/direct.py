"""Calls without a detour: tensors as they usually are, straight to the kernel.

What the functions do in general (promote, broadcast, fold axes, dispatch) takes longer than a
small kernel. Where all that would change nothing, this allocates the result and runs the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from tvm_scan.torch.affine import frame_of
from tvm_scan.torch.kernels import KernelSpec, run_kernel
from tvm_scan.torch.operator import sees_nothing
from tvm_scan.torch.runtime import aligned_empty

__all__ = ["direct"]

_Layout = tuple[tuple[int, int, int], bool, tuple[int, int, int]]
#: By shape and axis: the sizes of a kernel, whether time is last, and the shape of its arrays.
_layouts: dict[tuple[torch.Size, int], _Layout] = {}


def direct(
    make: Callable[..., KernelSpec], options: tuple[object, ...], dim: int, *inputs: object
) -> Tensor | None:
    """Run a kernel on inputs of one shape and one real dtype.

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
    x = inputs[-1]
    if not sees_nothing(inputs):
        return None
    if not isinstance(x, Tensor) or x.is_complex():
        return None
    shape, dtype = x.shape, x.dtype
    for other in inputs:
        if other is not x and not (
            isinstance(other, Tensor) and other.shape == shape and other.dtype == dtype
        ):
            return None
    layout = _layouts.get((shape, dim))
    if layout is None:
        if not x.numel() or not -x.dim() <= dim < x.dim():
            return None
        layout = _layout(shape, dim)
    sizes, time_last, frame = layout
    out = aligned_empty(shape, dtype, x.device)
    arrays = [t.reshape(frame) for t in inputs]  # type: ignore[attr-defined]
    run_kernel(make(dtype, *options, time_last), sizes, *arrays, out.view(frame))
    return out


def _layout(shape: torch.Size, dim: int) -> _Layout:
    place = dim % len(shape)
    framed = (math.prod(shape[:place]), shape[place], math.prod(shape[place + 1 :]))
    if len(_layouts) > 4096:
        _layouts.clear()
    return _layouts.setdefault((shape, dim), frame_of(torch.empty(framed, device="meta")))
