"""Cumulative functions on tensors of any shape."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from tvm_scan.torch.arguments import SMALL_INTEGERS, axis_of, check_tensors, framed
from tvm_scan.torch.declare.checked import checked
from tvm_scan.torch.ops import cumulative as ops
from tvm_scan.torch.ops.direct import direct
from tvm_scan.torch.ops.extremum import extremum, positions
from tvm_scan.torch.private import dual_level_is_open


class Extremum(NamedTuple):
    """Running extrema and where they were taken, as ``torch.return_types.cummax``.

    Attributes
    ----------
    values : Tensor
        The extrema, with the shape and dtype of the input.
    indices : Tensor
        Where along the axis each was taken, int64, of the same shape.
    """

    values: Tensor
    indices: Tensor


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
    as_it_is = dtype is None and isinstance(x, Tensor)
    if as_it_is and (x.is_floating_point() or x.dtype == torch.int64):
        result = direct(ops.cumulative_spec, (op, reverse, exclusive), dim, x)
        if result is not None:
            return result
    check_tensors(owner, x=x)
    dim = axis_of(owner, x, dim)
    if dtype is not None:
        x = x.to(dtype)
        check_tensors(owner, x=x)
    if not (x.is_floating_point() or x.is_complex()):
        x = x.to(torch.int64)
    return ops.cumulative(framed(x, dim), op, reverse, exclusive).view(x.shape)


@checked
def cummax(x: Annotated[Tensor, "ordered ..."], dim: int, *, reverse: bool = False) -> Extremum:
    """Take the running maximum along an axis, and where it was taken.

    Parameters
    ----------
    x : Tensor
        Any shape: floats, integers or bool.
    dim : int
        The time axis.
    reverse : bool
        Scan from the last step to the first.

    Returns
    -------
    Extremum
        ``values`` and ``indices`` (int64), both of the shape of `x`. As in torch the index of
        equal values is the latest of the scan, and a NaN lasts. Gradients flow to the elements
        that the indices name.

    Raises
    ------
    ValueError
        If `x` is no tensor, is complex, or has no such axis.
    """
    return _extremum("cummax", x, dim, False, reverse)


@checked
def cummin(x: Annotated[Tensor, "ordered ..."], dim: int, *, reverse: bool = False) -> Extremum:
    """Take the running minimum along an axis; see `cummax`."""
    return _extremum("cummin", x, dim, True, reverse)


def _extremum(owner: str, x: Tensor, dim: int, smallest: bool, reverse: bool) -> Extremum:
    dim = axis_of(owner, x, dim)
    keys = x.to(torch.int32) if x.dtype in SMALL_INTEGERS else x
    if torch.compiler.is_compiling() or dual_level_is_open():
        indices = positions(framed(keys.detach(), dim), smallest, reverse).view(x.shape)
        return Extremum(x.gather(dim, indices), indices)
    values, indices = extremum(framed(keys, dim), smallest, reverse)
    return Extremum(values.view(x.shape).to(x.dtype), indices.view(x.shape))


@checked
def logcumsumexp(x: Annotated[Tensor, "..."], dim: int, *, reverse: bool = False) -> Tensor:
    """``y[t] = log(exp(y[t-1]) + exp(x[t]))`` along an axis, without overflow.

    Parameters
    ----------
    x : Tensor
        Any shape, floating point.
    dim : int
        The time axis.
    reverse : bool
        Scan from the last step to the first.

    Returns
    -------
    Tensor
        The shape of `x`. Infinities and NaN as in ``torch.logcumsumexp``.

    Raises
    ------
    ValueError
        If `x` is no floating-point tensor, or has no such axis.
    """
    return ops.log_sum_exp(framed(x, axis_of("logcumsumexp", x, dim)), reverse).view(x.shape)
