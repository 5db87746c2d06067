"""How others run the selective scan in PyTorch; each method written out here for the bench.

``loop`` is one step after another, as lean as autograd allows: slices come from ``unbind``, whose
gradient is one stack. ``transformers`` is the eager path of the installed transformers, which
indexes the expanded arrays at every step, so that the gradient of every step is as large as all of
them. ``doubling`` adds from a distance that doubles. ``tree`` halves the sequence and calls itself,
as accelerated-scan's reference does. ``sweeps`` goes up and down a tree in place with a gradient of
its own, as mamba.py does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "doubling",
    "linear_loop",
    "selective",
    "selective_loop",
    "sweeps",
    "transformers",
    "tree",
]


def doubling(a: Tensor, x: Tensor) -> Tensor:
    """``h[t] = a[t] h[t-1] + x[t]`` along the last axis in log2(L) passes over all of it."""
    reach = 1
    while reach < x.shape[-1]:
        x = torch.cat((x[..., :reach], x[..., reach:] + a[..., reach:] * x[..., :-reach]), -1)
        a = torch.cat((a[..., :reach], a[..., reach:] * a[..., :-reach]), -1)
        reach *= 2
    return x


def tree(a: Tensor, x: Tensor) -> Tensor:
    """The same by pairs: scan every second step of a sequence half as long, then fill in."""
    if x.shape[-1] == 1:
        return x
    odd = x.shape[-1] % 2
    a, x = F.pad(a, (0, odd)), F.pad(x, (0, odd))
    (a0, a1), (x0, x1) = (t.unflatten(-1, (-1, 2)).unbind(-1) for t in (a, x))
    second = tree(a1 * a0, a1 * x0 + x1)
    first = a0 * F.pad(second[..., :-1], (1, 0)) + x0
    both = torch.stack((first, second), -1).flatten(-2)
    return both[..., : both.shape[-1] - odd]


def sweeps(a: Tensor, x: Tensor) -> Tensor:
    """The same up and down a tree, in place."""
    return _Sweeps.apply(a, x)


class _Sweeps(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, x: Tensor) -> Tensor:
        h = _swept(a, x)
        ctx.save_for_backward(a, h)
        return h

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        a, h = ctx.saved_tensors
        later = F.pad(a[..., 1:], (0, 1))
        back = _swept(later.flip(-1), grad.flip(-1)).flip(-1)
        return back * F.pad(h[..., :-1], (1, 0)), back


def _swept(a: Tensor, x: Tensor) -> Tensor:
    length = x.shape[-1]
    padding = (1 << (length - 1).bit_length()) - length
    # Time before the last axis: neighbours in memory are neighbours in state, not in time.
    a, x = (F.pad(t, (0, padding)).movedim(-1, 0).contiguous() for t in (a, x))
    step = 1

    def join(first: slice, second: slice) -> None:
        x[second] += a[second] * x[first]
        a[second] *= a[first]

    while step < len(x):
        join(slice(step - 1, None, 2 * step), slice(2 * step - 1, None, 2 * step))
        step *= 2
    step //= 2
    while step > 1:
        step //= 2
        join(slice(2 * step - 1, -step, 2 * step), slice(3 * step - 1, None, 2 * step))
    return x[:length].movedim(0, -1)


def linear_loop(a: Tensor, x: Tensor) -> Tensor:
    """The same, one step after another."""
    state, states = torch.zeros_like(x[..., 0]), []
    for gate, value in zip(a.unbind(-1), x.unbind(-1), strict=True):
        state = gate * state + value
        states.append(state)
    return torch.stack(states, -1)


def selective(scan: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """A selective scan that expands the gates and scans them."""

    def run(u, delta, A, B, C, D, z, bias) -> Tensor:
        dt = F.softplus(delta + bias[:, None])
        decay = torch.exp(dt[:, :, None] * A[:, :, None])
        drive = (dt * u)[:, :, None] * B[:, None]
        y = (scan(decay, drive) * C[:, None]).sum(2) + D[:, None] * u
        return y * F.silu(z)

    return run


def selective_loop(u, delta, A, B, C, D, z, bias) -> Tensor:
    """A selective scan one step after another, which expands one step at a time."""
    dt = F.softplus(delta + bias[:, None])
    h, ys = u.new_zeros(u.shape[0], *A.shape), []
    steps = zip(*(t.unbind(-1) for t in (dt, dt * u, B, C)), strict=True)
    for step, drive, b, c in steps:
        h = torch.exp(step.unsqueeze(-1) * A) * h + drive.unsqueeze(-1) * b.unsqueeze(1)
        ys.append((h @ c.unsqueeze(-1)).squeeze(-1))
    return (torch.stack(ys, 2) + D[:, None] * u) * F.silu(z)


def transformers(u, delta, A, B, C, D, z, bias) -> Tensor:
    """The eager path of Hugging Face's MambaMixer."""
    from transformers.models.mamba.modeling_mamba import mamba_selective_scan

    return mamba_selective_scan(u, delta, A, B, C, D, z, bias, True)
