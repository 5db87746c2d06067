"""The state-space duality of Mamba-2: matrix states with one gate a head.

Dao and Gu 2024, arXiv 2405.21060.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from tvm_scan.torch.arguments import check, widened
from tvm_scan.torch.declare.checked import checked
from tvm_scan.torch.functions.mamba import with_packed
from tvm_scan.torch.ops.outer import outer_scan


@checked
def ssd(
    x: Annotated[Tensor, "batch length heads features"],
    dt: Annotated[Tensor, "batch length heads"],
    A: Annotated[Tensor, "heads"],
    B: Annotated[Tensor, "batch length groups states"],
    C: Annotated[Tensor, "batch length groups states"],
    D: Annotated[Tensor | None, "heads | heads features"] = None,
    z: Annotated[Tensor | None, "batch length heads features"] = None,
    dt_bias: Annotated[Tensor | None, "heads"] = None,
    *,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, math.inf),
    h0: Annotated[Tensor | None, "batch heads features states"] = None,
    reset: Annotated[Tensor | None, "bool batch length"] = None,
    cu_seqlens: Annotated[Tensor | None, "integers sequences+1"] = None,
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
        The gate, (batch, length, heads, features).
    dt_bias : Tensor, optional
        (heads,).
    dt_softplus : bool
        Whether dt goes through softplus.
    dt_limit : pair of float
        The least and greatest d.
    h0 : Tensor, optional
        The state before the scan, (batch, heads, features, states); 0 if None.
    reset : Tensor, optional
        (batch, length), bool: where it is True the state starts anew from 0 before the step.
    cu_seqlens : Tensor, optional
        (sequences + 1,), integers: offsets of sequences packed into one row, from 0 to the
        length; batch must be 1. `h0` is the state before the one that is scanned first, the others
        start from 0.
    reverse : bool
        Scan from the last step to the first.
    return_last : bool
        Also return the state after the scan.

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
    batch, _, heads, features = x.shape
    groups = B.shape[2]
    if groups == 0 or heads % groups:
        check(False, owner, f"groups that divide the {heads} heads", groups, "reshape B and C")
    reset = with_packed(owner, reset, cu_seqlens, x.shape[:2], reverse)
    x_wide, dt_wide, A_wide, B_wide, C_wide = widened(x, dt, A, B, C)
    common = x_wide.dtype
    gates, drive = terms(x_wide, dt_wide, A_wide, dt_bias, dt_softplus, dt_limit)
    B_wide, C_wide = (t.repeat_interleave(heads // groups, 2) for t in (B_wide, C_wide))
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
