"""Sequential float64 loops for the torch functions, and their gradients by torch itself."""

import torch
import torch.nn.functional as F


def linear_loop(a, x, h0=None, *, reverse=False, exclusive=False):
    """States and last state along the last axis, in the inputs' dtype, differentiable."""
    state = torch.zeros_like(x[..., 0]) if h0 is None else h0
    states = [None] * x.shape[-1]
    steps = range(x.shape[-1])
    for t in reversed(steps) if reverse else steps:
        before, state = state, a[..., t] * state + x[..., t]
        states[t] = before if exclusive else state
    return torch.stack(states, -1), state


def selective_loop(
    u, delta, A, B, C, D=None, z=None, bias=None, *, softplus, h0=None, reset=None, reverse=False
):
    """The selective scan step after step; B and C are (batch, groups, states, length)."""
    channels, length = u.shape[1:]
    dt = delta if bias is None else delta + bias[:, None]
    dt = F.softplus(dt) if softplus else dt
    B, C = (t.repeat_interleave(channels // t.shape[1], 1) for t in (B, C))
    h = u.new_zeros((*u.shape[:2], A.shape[1])) if h0 is None else h0
    h = h.to(torch.promote_types(h.dtype, A.dtype))
    ys = [None] * length
    for t in reversed(range(length)) if reverse else range(length):
        if reset is not None:
            h = torch.where(reset[:, t, None, None], 0, h)
        step = dt[:, :, t, None]
        h = torch.exp(step * A) * h + step * B[..., t] * u[:, :, t, None]
        ys[t] = (h * C[..., t]).sum(-1)
    y = torch.stack(ys, 2)
    y = 2 * y.real if y.is_complex() else y
    y = y if D is None else y + D[:, None] * u
    return (y if z is None else y * F.silu(z)), h
