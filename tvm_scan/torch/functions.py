"""Cumulative functions on tensors of any shape, and how all functions check and fold arguments."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from tvm_scan.torch import cumulative as ops
from tvm_scan.torch.direct import direct
from tvm_scan.torch.extremum import extremum, positions
from tvm_scan.torch.places import is_placed

__all__ = [
    "SMALL_INTEGERS",
    "Extremum",
    "axis_of",
    "check",
    "check_tensor",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "framed",
    "logcumsumexp",
]

#: Dtypes without recurrences of their own.
SMALL_INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16)
_FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_DTYPES = {*_FLOATS, *SMALL_INTEGERS, torch.int32, torch.int64, torch.complex64, torch.complex128}


class Extremum(NamedTuple):
    """Running extrema and where they were taken, as ``torch.return_types.cummax``."""

    values: Tensor
    indices: Tensor


def check(holds: bool, owner: str, expected: str, found: object, fix: str) -> None:
    """Raise ``ValueError`` in the project's form unless `holds`."""
    if not holds:
        raise ValueError(f"tvm_scan.torch.{owner}: expected {expected}, got {found}; {fix}")


def check_tensor(owner: str, name: str, value: object) -> None:
    """Raise unless `value` is a tensor on a CPU or a GPU."""
    if not isinstance(value, Tensor):
        found = type(value).__name__
        check(False, owner, f"{name} to be a tensor", found, "convert it with torch.as_tensor")
    elif not is_placed(value) and value.device.type != "meta":
        check(False, owner, f"{name} on a CPU or GPU", value.device, "move it with .cpu()")
    elif value.dtype not in _DTYPES:
        expected = f"{name} of floats of 16 bits or more, of complex64, integers or bool"
        check(False, owner, expected, value.dtype, "convert it with .to")
    elif value.layout is not torch.strided:
        check(False, owner, f"{name} with strides", value.layout, "convert it with .to_dense()")


def axis_of(owner: str, x: Tensor, dim: int) -> int:
    """Return the number of an axis from the front; raise where there is none."""
    dims = max(x.dim(), 1)
    if not -dims <= dim < dims:
        expected = f"dim between {-dims} and {dims - 1}"
        check(False, owner, expected, dim, "name an axis of the tensor")
    return dim % dims


def framed(x: Tensor, dim: int) -> Tensor:
    """Fold the axes before and after time: (outer, length, inner)."""
    shape = x.shape
    if not shape:
        return x.reshape(1, 1, 1)
    return x.reshape(math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :]))


def cumsum(
    x: Tensor,
    dim: int,
    *,
    dtype: torch.dtype | None = None,
    reverse: bool = False,
    exclusive: bool = False,
) -> Tensor:
    """Sum along an axis: ``y[t] = y[t-1] + x[t]``.

    Parameters
    ----------
    x : Tensor
        Any shape: floats, complex, integers or bool. Integers and bool are summed
        as int64; halves carry in float32.
    dim : int
        The time axis.
    dtype : torch.dtype, optional
        Convert `x` first, as in ``torch.cumsum``.
    reverse : bool
        Sum from the last step to the first.
    exclusive : bool
        Emit the sum before each step, so that the first is 0.

    Returns
    -------
    Tensor
        The shape of `x`, contiguous.

    Raises
    ------
    ValueError
        If `x` is no tensor, or has no such axis.
    """
    return _cumulative("cumsum", x, dim, "add", dtype, reverse, exclusive)


def cumprod(
    x: Tensor,
    dim: int,
    *,
    dtype: torch.dtype | None = None,
    reverse: bool = False,
    exclusive: bool = False,
) -> Tensor:
    """Multiply along an axis: ``y[t] = y[t-1] x[t]``.

    Parameters, result and errors are those of `cumsum`. The gradient divides by nothing, so it
    is right at zeros.
    """
    return _cumulative("cumprod", x, dim, "mul", dtype, reverse, exclusive)


def _cumulative(
    owner: str,
    x: Tensor,
    dim: int,
    op: str,
    dtype: torch.dtype | None,
    reverse: bool,
    exclusive: bool,
) -> Tensor:
    check_tensor(owner, "x", x)
    dim = axis_of(owner, x, dim)
    if dtype is not None:
        x = x.to(dtype)
    if not (x.is_floating_point() or x.is_complex()):
        x = x.to(torch.int64)
    result = direct(ops.cumulative_spec, (op, reverse, exclusive), dim, x)
    if result is not None:
        return result
    return ops.cumulative(framed(x, dim), op, reverse, exclusive).view(x.shape)


def cummax(x: Tensor, dim: int, *, reverse: bool = False) -> Extremum:
    """Take the running maximum along an axis, and where it was taken.

    Parameters
    ----------
    x : Tensor
        Any shape: floats, integers or bool.
    dim : int
        The time axis.
    reverse : bool
        Walk from the last step to the first.

    Returns
    -------
    Extremum
        ``values`` and ``indices`` (int64), both of the shape of `x`. As in torch the index of
        equal values is the latest of the walk, and a NaN lasts. Gradients flow to the elements
        that the indices name.

    Raises
    ------
    ValueError
        If `x` is no tensor, is complex, or has no such axis.
    """
    return _extremum("cummax", x, dim, False, reverse)


def cummin(x: Tensor, dim: int, *, reverse: bool = False) -> Extremum:
    """Take the running minimum along an axis; see `cummax`."""
    return _extremum("cummin", x, dim, True, reverse)


def _extremum(owner: str, x: Tensor, dim: int, smallest: bool, reverse: bool) -> Extremum:
    check_tensor(owner, "x", x)
    check(not x.is_complex(), owner, "numbers with an order", x.dtype, "take .abs() or .real")
    dim = axis_of(owner, x, dim)
    keys = x.to(torch.int32) if x.dtype in SMALL_INTEGERS else x
    if torch.compiler.is_compiling() or forward_ad._current_level >= 0:
        indices = positions(framed(keys.detach(), dim), smallest, reverse).view(x.shape)
        return Extremum(x.gather(dim, indices), indices)
    values, indices = extremum(framed(keys, dim), smallest, reverse)
    return Extremum(values.view(x.shape).to(x.dtype), indices.view(x.shape))


def logcumsumexp(x: Tensor, dim: int, *, reverse: bool = False) -> Tensor:
    """``y[t] = log(exp(y[t-1]) + exp(x[t]))`` along an axis, without overflow.

    Parameters
    ----------
    x : Tensor
        Any shape, floating point.
    dim : int
        The time axis.
    reverse : bool
        Walk from the last step to the first.

    Returns
    -------
    Tensor
        The shape of `x`. Infinities and NaN as in ``torch.logcumsumexp``.

    Raises
    ------
    ValueError
        If `x` is no floating-point tensor, or has no such axis.
    """
    owner = "logcumsumexp"
    check_tensor(owner, "x", x)
    check(x.is_floating_point(), owner, "a floating-point tensor", x.dtype, "convert it")
    return ops.log_sum_exp(framed(x, axis_of(owner, x, dim)), reverse).view(x.shape)
