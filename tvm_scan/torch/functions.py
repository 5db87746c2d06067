"""The functions on tensors of any shape: arguments checked, axes moved, dtypes promoted."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from tvm_scan.torch import cumulative as ops
from tvm_scan.torch.affine import affine_scan, affine_spec
from tvm_scan.torch.direct import direct

__all__ = [
    "Extremum",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "linear_recurrence",
    "logcumsumexp",
]

_SMALL_INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16)


class Extremum(NamedTuple):
    """Running extrema and where they were taken, as ``torch.return_types.cummax``."""

    values: Tensor
    indices: Tensor


def check(holds: bool, owner: str, expected: str, found: object, fix: str) -> None:
    """Raise ``ValueError`` in the project's form unless `holds`."""
    if not holds:
        raise ValueError(f"tvm_scan.torch.{owner}: expected {expected}, got {found}; {fix}")


def check_tensor(owner: str, name: str, value: object) -> None:
    """Raise unless `value` is a tensor on the CPU."""
    if not isinstance(value, Tensor):
        found = type(value).__name__
        check(False, owner, f"{name} to be a tensor", found, "convert it with torch.as_tensor")
    elif not value.is_cpu and value.device.type != "meta":
        check(False, owner, f"{name} on the CPU", value.device, "move it with .cpu()")


def _axis(owner: str, x: Tensor, dim: int) -> int:
    dims = max(x.dim(), 1)
    if not -dims <= dim < dims:
        expected = f"dim between {-dims} and {dims - 1}"
        check(False, owner, expected, dim, "name an axis of the tensor")
    return dim % dims


def _framed(x: Tensor, dim: int) -> Tensor:
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
        Any shape, on the CPU: floats, complex, integers or bool. Integers and bool are summed
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
        If `x` is no tensor on the CPU, or has no such axis.
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
    dim = _axis(owner, x, dim)
    if dtype is not None:
        x = x.to(dtype)
    if not (x.is_floating_point() or x.is_complex()):
        x = x.to(torch.int64)
    result = direct(ops.cumulative_spec, (op, reverse, exclusive), dim, x)
    if result is not None:
        return result
    return ops.cumulative(_framed(x, dim), op, reverse, exclusive).view(x.shape)


def cummax(x: Tensor, dim: int, *, reverse: bool = False) -> Extremum:
    """Take the running maximum along an axis, and where it was taken.

    Parameters
    ----------
    x : Tensor
        Any shape, on the CPU: floats, integers or bool.
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
        If `x` is no tensor on the CPU, is complex, or has no such axis.
    """
    return _extremum("cummax", x, dim, False, reverse)


def cummin(x: Tensor, dim: int, *, reverse: bool = False) -> Extremum:
    """Take the running minimum along an axis; see `cummax`."""
    return _extremum("cummin", x, dim, True, reverse)


def _extremum(owner: str, x: Tensor, dim: int, smallest: bool, reverse: bool) -> Extremum:
    check_tensor(owner, "x", x)
    check(not x.is_complex(), owner, "numbers with an order", x.dtype, "take .abs() or .real")
    dim = _axis(owner, x, dim)
    keys = x.detach()
    keys = keys.to(torch.int32) if x.dtype in _SMALL_INTEGERS else keys
    indices = ops.positions(_framed(keys, dim), smallest, reverse).view(x.shape)
    return Extremum(x.gather(dim, indices), indices)


def logcumsumexp(x: Tensor, dim: int, *, reverse: bool = False) -> Tensor:
    """``y[t] = log(exp(y[t-1]) + exp(x[t]))`` along an axis, without overflow.

    Parameters
    ----------
    x : Tensor
        Any shape, floating point, on the CPU.
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
        If `x` is no floating-point tensor on the CPU, or has no such axis.
    """
    owner = "logcumsumexp"
    check_tensor(owner, "x", x)
    check(x.is_floating_point(), owner, "a floating-point tensor", x.dtype, "convert it")
    return ops.log_sum_exp(_framed(x, _axis(owner, x, dim)), reverse).view(x.shape)


def linear_recurrence(
    a: Tensor | complex,
    x: Tensor,
    h0: Tensor | None = None,
    *,
    dim: int = -1,
    reverse: bool = False,
    exclusive: bool = False,
    return_last: bool = False,
    reset: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Run ``h[t] = a[t] h[t-1] + x[t]`` along an axis.

    Parameters
    ----------
    a : Tensor or number
        The gates; broadcast to the shape of `x`.
    x : Tensor
        The inputs, any shape, on the CPU: floats, complex or int32/int64. All tensors are
        promoted to one dtype; halves carry in float32.
    h0 : Tensor, optional
        The state before the walk, broadcast to the shape of `x` without `dim`; 0 if None.
    dim : int
        The time axis.
    reverse : bool
        Walk from the last step to the first.
    exclusive : bool
        Emit the state before each step instead of after it.
    return_last : bool
        Also return the state after the walk.
    reset : Tensor, optional
        bool, broadcast to the shape of `x`: where it is True the state starts anew from 0, so
        that ``h[t] = x[t]``.

    Returns
    -------
    Tensor, or tuple of Tensor
        The states, with the shape of `x`; with `return_last` also the last one, without `dim`.

    Raises
    ------
    ValueError
        If an argument is no tensor on the CPU, does not broadcast, or has a dtype without
        recurrences (bool and integers below 32 bits).
    """
    owner = "linear_recurrence"
    emit = "exclusive" if exclusive else "inclusive"
    if h0 is None and reset is None and not return_last and _has_recurrences(x):
        result = direct(affine_spec, (emit, False, reverse), dim, a, x)
        if result is not None:
            return result
    check_tensor(owner, "x", x)
    if isinstance(a, Tensor):
        check_tensor(owner, "a", a)
        gates = a
    else:
        turns = isinstance(a, complex) and not x.is_complex()
        gates = x.new_full((), a, dtype=x.dtype.to_complex() if turns else x.dtype)
    dim = _axis(owner, x, dim)
    check(x.dim() > 0, owner, "x with a time axis", "a scalar", "unsqueeze it")
    dtype = torch.promote_types(gates.dtype, x.dtype)
    if h0 is not None:
        check_tensor(owner, "h0", h0)
        dtype = torch.promote_types(dtype, h0.dtype)
    check(
        dtype not in _SMALL_INTEGERS,
        owner,
        "floats, complex, int32 or int64",
        dtype,
        "convert it with .to(torch.int64)",
    )
    if reset is not None:
        check_tensor(owner, "reset", reset)
        gates = gates.masked_fill(reset, 0) if gates.dim() else torch.where(reset, 0, gates)
    state_shape = x.shape[:dim] + x.shape[dim + 1 :]
    gates = _expand(owner, "a", gates.to(dtype), x.shape)
    initial = None
    if h0 is not None:
        initial = _expand(owner, "h0", h0.to(dtype), state_shape)
        initial = _framed(initial.unsqueeze(dim), dim).squeeze(1)
    x = x.to(dtype)
    framed_a, framed_x = _framed(gates, dim), _framed(x, dim)
    framed = affine_scan(framed_a, framed_x, initial, emit, reverse)
    h = framed.view(x.shape)
    if not return_last:
        return h
    if x.shape[dim] == 0:
        last = x.new_zeros(state_shape) if h0 is None else h0.to(dtype).expand(state_shape)
        return h, last
    end = 0 if reverse else -1
    last = framed[:, end]
    if exclusive:
        last = framed_a[:, end] * last + framed_x[:, end]
    return h, last.reshape(state_shape)


def _has_recurrences(x: object) -> bool:
    return isinstance(x, Tensor) and x.dtype not in _SMALL_INTEGERS


def _expand(owner: str, name: str, tensor: Tensor, shape: torch.Size) -> Tensor:
    try:
        return tensor.expand(shape)
    except RuntimeError:
        raise ValueError(
            f"tvm_scan.torch.{owner}: expected {name} to broadcast to {tuple(shape)}, got "
            f"{tuple(tensor.shape)}; give it one entry per state or per step"
        ) from None
