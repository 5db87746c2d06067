"""The selective scan and its adjoint of differentiable parts, with every state in memory.

They are run on one chunk of time at a time; see `chunked`. Shapes are those of
`selective_scan_grouped`. Conjugates are computed: a view with a bit is what torch does not resolve
where an operator is called below a dispatch mode.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tvm_scan.torch.arguments import wide_of
from tvm_scan.torch.ops.affine import affine_scan, shifted, unless
from tvm_scan.torch.ops.selective_tensors import SelectiveTensors


def expanded(t: SelectiveTensors, softplus: bool, reverse: bool) -> tuple[Tensor, Tensor]:
    """Return the output, in the dtype of the state, and the last state, of at least one step."""
    *_, states = _terms_and_states(t, softplus, reverse)
    y = _read(states, t)
    y = y if t.z is None else y * F.silu(t.z.to(y.dtype))
    # A copy, which holds no other states.
    return y, states[..., 0 if reverse else -1].clone()


def expanded_adjoint(
    g_out: Tensor, g_last: Tensor, t: SelectiveTensors, softplus: bool, reverse: bool
) -> dict[str, Tensor]:
    """Return the gradients by name, of what is there, in the dtypes of the state.

    With ``p[t]`` the adjoint of the state of a step, ``p[t] = g_y[t] conj(C[t]) +
    conj(decay[t+1]) p[t+1]``: a scan of its own. Everything else is a sum over one axis.
    """
    v, dt, decay, drive, states = _terms_and_states(t, softplus, reverse)
    _, _, A, B, C, D, z, bias, reset, h0 = t
    assert h0 is not None  # the state at the head of a chunk is always there
    real = dt.dtype
    u, g_out = t.u.to(real), g_out.to(real)
    g_y = g_out if z is None else g_out * F.silu(z.to(real))
    twice = 2 if states.is_complex() else 1  # y is twice the real part
    incoming = twice * g_y.unsqueeze(3) * _spread(C, states.dtype).conj_physical()
    gates = decay.conj_physical() if decay.is_complex() else decay
    p = _scan(gates, incoming, g_last, reset, "late", not reverse)
    start = -1 if reverse else 0
    begins = None if reset is None else reset[:, None, None, None]
    # What lies before a reset is left out of products, not multiplied by zero.
    before = unless(begins, _shifted(states, h0.to(states.dtype), reverse))
    at_first = None if begins is None else begins[..., start]
    passed = p * (decay * before).conj_physical()  # the adjoint of the exponent dt A
    g_drive = _real(p * _spread(B, states.dtype).conj_physical()).sum(3)
    g_dt = _real(passed * A.unsqueeze(-1).conj_physical()).sum(3) + g_drive * u
    gradients = {
        "u": g_drive * dt,
        "delta": g_dt * v.sigmoid() if softplus else g_dt,
        "A": (passed * dt.unsqueeze(3)).sum((0, 4)),
        "B": _gathered(p * drive.unsqueeze(3), B),
        "C": _gathered(twice * g_y.unsqueeze(3) * states.conj_physical(), C),
        "h0": unless(at_first, gates[..., start]) * unless(at_first, p[..., start]),
    }
    if D is not None:
        gradients["u"] = gradients["u"] + D.unsqueeze(-1) * g_y
        gradients["D"] = (g_y * u).sum((0, 3))
    if z is not None:
        sigmoid = z.to(real).sigmoid()
        slope = sigmoid * (1 + z.to(real) * (1 - sigmoid))
        gradients["z"] = g_out * _read(states, t) * slope
    if bias is not None:
        gradients["bias"] = gradients["delta"].sum((0, 3))
    return gradients


def _terms_and_states(
    t: SelectiveTensors, softplus: bool, reverse: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Delta with its bias, dt, the decays, dt u, and the states after every step."""
    assert t.h0 is not None  # the state at the head of a chunk is always there
    real = wide_of(t.u.dtype)
    v = t.delta.to(real) if t.bias is None else t.delta.to(real) + t.bias.unsqueeze(-1)
    dt = F.softplus(v) if softplus else v
    decay = (dt.unsqueeze(3) * t.A.unsqueeze(-1)).exp()
    drive = dt * t.u.to(real)
    x = drive.unsqueeze(3) * _spread(t.B, decay.dtype)
    states = _scan(decay, x, t.h0.to(decay.dtype), t.reset, "inclusive", reverse)
    return v, dt, decay, drive, states


def _spread(projection: Tensor, dtype: torch.dtype) -> Tensor:
    """B or C as (batch, groups, channels, states, length), each axis whole or 1."""
    projection = projection.to(dtype)
    return projection.unsqueeze(2) if projection.dim() == 4 else projection[None, ..., None]


def _gathered(every: Tensor, projection: Tensor) -> Tensor:
    """The gradient of B or C, from that of what `_spread` makes of it."""
    every = every if projection.is_complex() else _real(every)
    return every.sum(2) if projection.dim() == 4 else every.sum((0, 4))


def _read(states: Tensor, t: SelectiveTensors) -> Tensor:
    y = (states * _spread(t.C, states.dtype)).sum(3)
    y = 2 * y.real if y.is_complex() else y
    return y if t.D is None else y + t.D.unsqueeze(-1) * t.u.to(y.dtype)


def _real(tensor: Tensor) -> Tensor:
    return tensor.real if tensor.is_complex() else tensor


def _scan(
    a: Tensor, x: Tensor, before: Tensor, reset: Tensor | None, emit: str, reverse: bool
) -> Tensor:
    rows = [t.flatten(0, 3).unsqueeze(-1) for t in (a, x)]
    if reset is not None:
        reset = reset[:, None, None, None].expand(x.shape).flatten(0, 3).unsqueeze(-1)
    start = before.flatten().unsqueeze(-1)
    return affine_scan(*rows, start, reset, emit, reverse).view(x.shape)


def _shifted(states: Tensor, before: Tensor, reverse: bool) -> Tensor:
    rows = states.flatten(0, 3).unsqueeze(-1)
    return shifted(rows, before.flatten().unsqueeze(-1), reverse).view(states.shape)
