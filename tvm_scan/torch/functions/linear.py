"""The linear recurrence on tensors of any shape."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from tvm_scan.torch.arguments import (
    SMALL_INTEGERS,
    axis_of,
    check,
    framed,
)
from tvm_scan.torch.declare.checked import check_of
from tvm_scan.torch.ops.affine import affine_scan, affine_spec, unless
from tvm_scan.torch.ops.direct import direct


def linear_recurrence(
    a: Annotated[Tensor | complex, "any ..."],
    x: Annotated[Tensor, "any ..."],
    h0: Annotated[Tensor | None, "any ..."] = None,
    *,
    dim: int = -1,
    reverse: bool = False,
    exclusive: bool = False,
    return_last: bool = False,
    reset: Annotated[Tensor | None, "bool ..."] = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Run ``h[t] = a[t] h[t-1] + x[t]`` along an axis.

    Parameters
    ----------
    a : Tensor or number
        The gates; broadcast to the shape of `x`.
    x : Tensor
        The inputs, any shape: floats, complex or int32/int64. All tensors are
        promoted to one dtype; halves carry in float32.
    h0 : Tensor, optional
        The state before the scan, broadcast to the shape of `x` without `dim`; 0 if None.
    dim : int
        The time axis.
    reverse : bool
        Scan from the last step to the first.
    exclusive : bool
        Emit the state before each step instead of after it.
    return_last : bool
        Also return the state after the scan.
    reset : Tensor, optional
        bool, broadcast to the shape of `x`: where it is True the state starts anew from 0 before
        the step, so that ``h[t] = x[t]`` whatever was before it, NaN and infinity included. With
        `exclusive` 0 is emitted there.

    Returns
    -------
    Tensor, or tuple of Tensor
        The states, with the shape of `x`; with `return_last` also the last one, without `dim`.

    Raises
    ------
    ValueError
        If an argument is no tensor, does not broadcast, or has a dtype without
        recurrences (bool and integers below 32 bits).
    """
    owner = "linear_recurrence"
    emit = "exclusive" if exclusive else "inclusive"
    has_recurrences = isinstance(x, Tensor) and x.dtype not in SMALL_INTEGERS
    if h0 is None and reset is None and not return_last and has_recurrences:
        result = direct(affine_spec, (emit, False, False, reverse), dim, a, x)
        if result is not None:
            return result
    _check(a=a, x=x, h0=h0, reset=reset)
    gates = a if isinstance(a, Tensor) else number_like(x, a)
    dim = axis_of(owner, x, dim)
    check(x.dim() > 0, owner, "x with a time axis", "a scalar", "unsqueeze it")
    dtype = torch.promote_types(gates.dtype, x.dtype)
    if h0 is not None:
        dtype = torch.promote_types(dtype, h0.dtype)
    expected, fix = "floats, complex, int32 or int64", "convert it with .to(torch.int64)"
    check(dtype not in SMALL_INTEGERS, owner, expected, dtype, fix)
    mask = None
    if reset is not None:
        mask = framed(_expand(owner, "reset", reset.to(torch.int8), x.shape), dim)
    state_shape = x.shape[:dim] + x.shape[dim + 1 :]
    gates = _expand(owner, "a", gates.to(dtype), x.shape)
    initial = None
    if h0 is not None:
        initial = _expand(owner, "h0", h0.to(dtype), state_shape)
        initial = framed(initial.unsqueeze(dim), dim).squeeze(1)
    x = x.to(dtype)
    framed_a, framed_x = framed(gates, dim), framed(x, dim)
    states = affine_scan(framed_a, framed_x, initial, mask, emit, reverse)
    h = (unless(mask, states) if exclusive else states).view(x.shape)
    if not return_last:
        return h
    if x.shape[dim] == 0:
        last = x.new_zeros(state_shape) if h0 is None else h0.to(dtype).expand(state_shape)
        return h, last
    end = 0 if reverse else -1
    last = states[:, end]
    if exclusive:
        start = None if mask is None else mask[:, end]
        last = unless(start, framed_a[:, end]) * unless(start, last) + framed_x[:, end]
    return h, last.reshape(state_shape)


_check = check_of(linear_recurrence)


def number_like(x: Tensor, number: complex) -> Tensor:
    """Return a number as a tensor of the dtype of `x`, or of the complex one that goes with it."""
    dtype = x.dtype
    if isinstance(number, complex):  # with halves that of float32
        dtype = torch.promote_types(dtype, torch.complex64)
    return x.new_full((), number, dtype=dtype)


def _expand(owner: str, name: str, tensor: Tensor, shape: torch.Size) -> Tensor:
    # Of as many axes only: a batch that is not known is not to be compared with another axis.
    if tensor.dim() == len(shape) and tensor.shape == shape:
        return tensor
    try:
        return tensor.expand(shape)
    except RuntimeError:
        raise ValueError(
            f"tvm_scan.torch.{owner}: expected {name} to broadcast to {tuple(shape)}, got "
            f"{tuple(tensor.shape)}; give it one entry per state or per step"
        ) from None
