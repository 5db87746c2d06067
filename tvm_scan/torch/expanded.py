"""The selective scan of differentiable parts, with every state in memory."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tvm_scan.torch.affine import affine_scan

__all__ = ["expanded", "wide_of"]


def wide_of(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of the state: float32, or float64 for float64 inputs."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def expanded(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    bias: Tensor | None,
    reset: Tensor | None,
    h0: Tensor | None,
    softplus: bool,
    reverse: bool,
) -> tuple[Tensor, Tensor]:
    """Compute the same with every state in memory, from differentiable parts.

    For complex `A` and for second derivatives. Shapes are those of `selective_scan_grouped`.
    """
    wide = torch.promote_types(wide_of(u.dtype), A.dtype)
    real = wide_of(u.dtype)
    dt = delta.to(real) if bias is None else delta.to(real) + bias.unsqueeze(-1)
    dt = F.softplus(dt) if softplus else dt
    decay = (dt.unsqueeze(3) * A.unsqueeze(-1)).exp()
    if reset is not None:
        decay = decay.masked_fill((reset != 0)[:, None, None, None], 0)
    drive = (dt * u.to(real)).unsqueeze(3) * B.to(wide).unsqueeze(2)
    shape = drive.shape
    flat = [t.to(wide).flatten(0, 3).unsqueeze(-1) for t in (decay, drive)]
    initial = None if h0 is None else h0.to(wide).flatten().unsqueeze(-1)
    states = affine_scan(*flat, initial, "inclusive", reverse).view(shape)
    y = (states * C.to(wide).unsqueeze(2)).sum(3)
    y = 2 * y.real if y.is_complex() else y
    y = y if D is None else y + D.unsqueeze(-1) * u.to(real)
    y = y if z is None else y * F.silu(z.to(real))
    if shape[-1]:
        last = states[..., 0 if reverse else -1]
    else:
        last = states.new_zeros(shape[:-1]) if h0 is None else h0.to(wide)
    return y.to(u.dtype), last
