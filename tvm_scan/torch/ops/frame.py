"""Kernels over arrays (outer, length, inner), time in the middle."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tvm_scan.torch.kernels.cache import run_kernel
from tvm_scan.torch.kernels.spec import KernelSpec, dtype_name

#: The extents of every kernel over a frame.
SIZES = ("outer", "inner", "length")


def frame_of(shape: tuple[int, ...]) -> tuple[tuple[int, int, int], bool, tuple[int, int, int]]:
    """Return the sizes (outer, inner, length) of a kernel, whether time is last, and the shape.

    Of arrays (outer, length, inner). Without an inner axis, time is contiguous, and the outer
    axis becomes the inner one.
    """
    outer, length, inner = shape
    if inner == 1:
        return (1, outer, length), True, (1, outer, length)
    return (outer, inner, length), False, (outer, length, inner)


@functools.cache
def framed_kernel(factory: str, *options: str) -> Callable[..., KernelSpec]:
    """Return a function that names a kernel, of its dtype, its options, and whether time is last.

    Parameters
    ----------
    factory : str
        Name of the function in ``tvm_scan.loops``.
    *options : str
        Names of its options, in the order in which their values are given.
    """

    @functools.cache
    def named(dtype: torch.dtype, *values: Any) -> KernelSpec:
        by_name = dict(zip((*options, "time_last"), values, strict=True))
        return KernelSpec.of(factory, SIZES, dtype=dtype_name(dtype), **by_name)

    return named


def run_framed(factory: str, x: Tensor, arrays: tuple[Tensor, ...], **options: Any) -> None:
    """Run a kernel on arrays (outer, length, inner); its dtype is that of `x`."""
    sizes, time_last, shape = frame_of(x.shape)
    named = framed_kernel(factory, *options)
    spec = named(x.dtype, *options.values(), time_last)
    run_kernel(spec, sizes, *[array.reshape(shape) for array in arrays])
