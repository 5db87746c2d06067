"""The state-space duality of Mamba-2: matrix states with one gate a head.

Dao and Gu 2024, arXiv 2405.21060.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from tvm_scan.torch.arguments import (
    check,
    check_shape,
    check_tensors,
    widened,
)
from tvm_scan.torch.functions.mamba import with_packed
from tvm_scan.torch.ops.outer import outer_scan

__all__ = ["ssd", "terms"]


def ssd(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    *,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, math.inf),
    h0: Tensor | None = None,
    reset: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    reverse: bool = False,
    return_last: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Run the recurrence of Mamba-2 (Dao and Gu 2024, arXiv 2405.21060).

    ::

        d[t]   = clamp(softplus(dt[t] + dt_bias), *dt_limit)
        S[t]   = exp(d[t] A) S[t-1] + d[t] x[t] B[t]'         for each head
        y[t]   = S[t] C[t] + D x[t]
        out[t] = y[t] silu(z[t])

    Parameters
    ----------
    x : Tensor
        (batch, length, heads, features), floating point.
    dt : Tensor
        (batch, length, heads).
    A : Tensor
        (heads,): one decay a head, negative for a state that stays bounded.
    B, C : Tensor
        (batch, length, groups, states): the heads of a group share them.
    D : Tensor, optional
        (heads,) or (heads, features). Without it there is no skip connection.
    z : Tensor, optional
        The gate, with the shape of `x`.
    dt_bias : Tensor, optional
        (heads,).
    dt_softplus : bool
        Whether dt goes through softplus.
    dt_limit : pair of float
        The least and greatest d.
    h0 : Tensor, optional
        The state before the walk, (batch, heads, features, states); 0 if None.
    reset : Tensor, optional
        (batch, length), bool: where it is True the state starts anew from 0 before the step.
    cu_seqlens : Tensor, optional
        (sequences + 1,), integers: offsets of sequences packed into one row, from 0 to the
        length; batch must be 1. `h0` is the state before the one that is walked first, the others
        start from 0.
    reverse : bool
        Walk from the last step to the first.
    return_last : bool
        Also return the state after the walk.

    Returns
    -------
    Tensor, or tuple of Tensor
        The outputs, with the shape and dtype of `x`; with `return_last` also the last state
        (batch, heads, features, states), in float32 or float64.

    Raises
    ------
    ValueError
        If a shape or dtype is not as above, or tensors are on different devices.

    Notes
    -----
    Halves are computed in float32. No history of states is stored, for no derivative; for those
    of `dt` and `A` a state for every 16 steps. `B` and `C` are repeated for the heads of their
    group.
    """
    owner = "ssd"
    may = {"D": D, "z": z, "dt_bias": dt_bias, "h0": h0, "reset": reset, "cu_seqlens": cu_seqlens}
    check_tensors(owner, may, x=x, dt=dt, A=A, B=B, C=C)
    _check(owner, x, dt, A, B, C, D, z, dt_bias, h0)
    batch, _, heads, features = x.shape
    groups = B.shape[2]
    reset = with_packed(owner, reset, cu_seqlens, x.shape[:2], reverse)
    x_wide, dt_wide, A_wide, B_wide, C_wide = widened(x, dt, A, B, C)
    common = x_wide.dtype
    gates, drive = terms(x_wide, dt_wide, A_wide, dt_bias, dt_softplus, dt_limit)
    shared = heads // groups if groups else 1
    B_wide, C_wide = (t.repeat_interleave(shared, 2) for t in (B_wide, C_wide))
    states = B.shape[3]
    first = x_wide.new_zeros((batch, heads, features, states)) if h0 is None else h0.to(common)
    mask = None if reset is None else reset.to(torch.int8)
    y, last = outer_scan(gates, B_wide, drive, C_wide, first, mask, "head", "inclusive", reverse)
    if D is not None:
        y = y + x_wide * (D if D.dim() == 2 else D.unsqueeze(1)).to(common)
    if z is not None:
        y = y * F.silu(z.to(common))
    y = y.to(x.dtype)
    return (y, last) if return_last else y


def terms(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    dt_bias: Tensor | None,
    softplus: bool,
    limit: tuple[float, float],
) -> tuple[Tensor, Tensor]:
    """Return logarithms of the gates, (batch, length, heads), and what is added, without B."""
    if dt_bias is not None:
        dt = dt + dt_bias.to(x.dtype)
    if softplus:
        dt = F.softplus(dt)
    if tuple(limit) != (0.0, math.inf) or not softplus:
        dt = dt.clamp(*limit)
    return dt * A, x * dt.unsqueeze(3)


def _check(
    owner: str,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    h0: Tensor | None,
) -> None:
    check_shape(owner, x.shape, 4, x=x)
    heads, features = x.shape[2:]
    check_shape(owner, x.shape[:3], 3, dt=dt)
    check_shape(owner, x.shape[2:3], 1, A=A)
    check(B.dim() == 4, owner, "B with 4 axes", tuple(B.shape), "reshape it")
    groups, states = B.shape[2:]
    check_shape(owner, torch.Size((*x.shape[:2], groups, states)), 4, B=B, C=C)
    if groups == 0 or heads % groups:
        check(False, owner, f"groups that divide the {heads} heads", groups, "reshape B and C")
    if D is not None:
        check_shape(owner, x.shape[2:] if D.dim() == 2 else x.shape[2:3], D.dim(), D=D)
    if z is not None:
        check_shape(owner, x.shape, 4, z=z)
    if dt_bias is not None:
        check_shape(owner, x.shape[2:3], 1, dt_bias=dt_bias)
    if h0 is not None:
        check_shape(owner, torch.Size((x.shape[0], heads, features, states)), 4, h0=h0)
