"""Gated linear recurrences by the names of their papers, made of the scans.

Vector states: `rglru`, `hgrn`. Matrix states: `gla`, `rwkv6`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tvm_scan.torch.functions import check, check_tensor, linear_recurrence
from tvm_scan.torch.outer import outer_scan

__all__ = ["gla", "hgrn", "rglru", "rwkv6"]


def rglru(
    x: Tensor,
    input_gate: Tensor,
    recurrence_gate: Tensor,
    decay: Tensor,
    h0: Tensor | None = None,
    *,
    scale: float = 8.0,
    reverse: bool = False,
    reset: Tensor | None = None,
    return_last: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Run the real-gated linear recurrent unit (De et al. 2024, arXiv 2402.19427).

    ::

        a[t] = exp(-scale softplus(decay) sigmoid(recurrence_gate[t]))
        h[t] = a[t] h[t-1] + sqrt(1 - a[t]^2) sigmoid(input_gate[t]) x[t]

    Parameters
    ----------
    x, input_gate, recurrence_gate : Tensor
        (batch, length, channels), floating point, on the CPU; the gates before their sigmoid.
    decay : Tensor
        (channels,): the parameter Lambda of the paper.
    h0 : Tensor, optional
        The state before the walk, (batch, channels); 0 if None.
    scale : float
        The constant c of the paper.
    reverse : bool
        Walk from the last step to the first.
    reset : Tensor, optional
        (batch, length), bool: where it is True the state starts anew, and ``h[t]`` is the gated
        input, not scaled.
    return_last : bool
        Also return the state after the walk.

    Returns
    -------
    Tensor, or tuple of Tensor
        The states, with the shape of `x`; with `return_last` also (batch, channels).

    Raises
    ------
    ValueError
        If a shape or dtype is not as above, or a tensor is not on the CPU.

    Notes
    -----
    Halves are computed in float32. ``1 - a^2`` is ``-expm1(2 log a)``, without cancellation; where
    it is 0 its square root has the gradient 0.
    """
    owner = "rglru"
    _check(owner, x.shape, 3, x=x, input_gate=input_gate, recurrence_gate=recurrence_gate)
    _check(owner, x.shape[2:], 1, decay=decay)
    x_wide, *gates = (_wide(t) for t in (x, input_gate, recurrence_gate))
    log_a = -scale * F.softplus(_wide(decay)) * gates[1].sigmoid()
    square = -torch.expm1(2 * log_a)
    size = torch.where(square > 0, square.clamp_min(torch.finfo(square.dtype).tiny).sqrt(), 0)
    gates_a = log_a.exp()
    if reset is not None:
        _check_mask(owner, reset, x)
        size = torch.where(reset.unsqueeze(2), 1, size)
        gates_a = gates_a.masked_fill(reset.unsqueeze(2), 0)
    drive = size * gates[0].sigmoid() * x_wide
    return _narrow(_vector(gates_a, drive, h0, reverse, return_last), x.dtype)


def hgrn(
    x: Tensor,
    forget_gate: Tensor,
    h0: Tensor | None = None,
    *,
    lower_bound: Tensor | float = 0.0,
    reverse: bool = False,
    return_last: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Run the hierarchically gated recurrence (Qin et al. 2023, arXiv 2311.04823).

    ::

        f[t] = lower_bound + (1 - lower_bound) sigmoid(forget_gate[t])
        h[t] = f[t] h[t-1] + (1 - f[t]) x[t]

    Parameters
    ----------
    x, forget_gate : Tensor
        (batch, length, channels), floating point, on the CPU; the gate before its sigmoid.
    h0 : Tensor, optional
        The state before the walk, (batch, channels); 0 if None.
    lower_bound : Tensor or float
        Least value of the forget gate: a number, or (channels,), in [0, 1).
    reverse : bool
        Walk from the last step to the first.
    return_last : bool
        Also return the state after the walk.

    Returns
    -------
    Tensor, or tuple of Tensor
        The states, with the shape of `x`; with `return_last` also (batch, channels).

    Raises
    ------
    ValueError
        If a shape or dtype is not as above, or a tensor is not on the CPU.

    Notes
    -----
    Halves are computed in float32. ``1 - f`` is computed from ``sigmoid(-forget_gate)``, without
    cancellation.
    """
    owner = "hgrn"
    _check(owner, x.shape, 3, x=x, forget_gate=forget_gate)
    if isinstance(lower_bound, Tensor):
        _check(owner, x.shape[2:], 1, lower_bound=lower_bound)
        lower_bound = _wide(lower_bound)
    gate = _wide(forget_gate)
    keep = (1 - lower_bound) * torch.sigmoid(-gate)  # 1 - f
    forget = lower_bound + (1 - lower_bound) * torch.sigmoid(gate)
    return _narrow(_vector(forget, keep * _wide(x), h0, reverse, return_last), x.dtype)


def gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    h0: Tensor | None = None,
    *,
    scale: float | None = None,
    reverse: bool = False,
    return_last: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Run gated linear attention (Yang et al. 2023, arXiv 2312.06635).

    ::

        S[t] = diag(exp(g[t])) S[t-1] + k[t] v[t]'
        o[t] = S[t]' (scale q[t])

    Parameters
    ----------
    q, k, g : Tensor
        (batch, length, heads, keys), floating point, on the CPU; `g` are the logarithms of the
        gates, at most 0 for a state that stays bounded.
    v : Tensor
        (batch, length, heads, values).
    h0 : Tensor, optional
        The state before the walk, (batch, heads, keys, values); 0 if None.
    scale : float, optional
        ``keys ** -0.5`` by default.
    reverse : bool
        Walk from the last step to the first.
    return_last : bool
        Also return the state after the walk.

    Returns
    -------
    Tensor, or tuple of Tensor
        The outputs, with the shape and dtype of `v`; with `return_last` also the last state
        (batch, heads, keys, values), in float32 or float64.

    Raises
    ------
    ValueError
        If a shape or dtype is not as above, or a tensor is not on the CPU.

    Notes
    -----
    Halves are computed in float32. Constant gates make it RetNet's retention, ``g = 0`` plain
    linear attention. No history of states is stored, for no derivative.
    """
    _check_matrix("gla", q, k, v, g, h0)
    scale = q.shape[3] ** -0.5 if scale is None else scale
    y, last = _matrix(_wide(q) * scale, k, v, g, h0, "inclusive", reverse)
    y = y.to(v.dtype)
    return (y, last) if return_last else y


def rwkv6(
    r: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor,
    u: Tensor,
    h0: Tensor | None = None,
    *,
    scale: float = 1.0,
    reverse: bool = False,
    return_last: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Run the recurrence of RWKV-6 (Peng et al. 2024, arXiv 2404.05892).

    ::

        o[t] = (S[t-1] + diag(u) k[t] v[t]')' (scale r[t])
        S[t] = diag(exp(w[t])) S[t-1] + k[t] v[t]'

    Parameters
    ----------
    r, k, w : Tensor
        (batch, length, heads, keys), floating point, on the CPU; `w` are the logarithms of the
        decays: ``-exp`` of what the model projects.
    v : Tensor
        (batch, length, heads, values).
    u : Tensor
        (heads, keys): the bonus of the current step.
    h0, scale, reverse, return_last
        As in `gla`; `scale` is 1 by default.

    Returns
    -------
    Tensor, or tuple of Tensor
        As in `gla`.

    Raises
    ------
    ValueError
        If a shape or dtype is not as above, or a tensor is not on the CPU.
    """
    _check_matrix("rwkv6", r, k, v, w, h0)
    _check("rwkv6", r.shape[2:], 2, u=u)
    read = _wide(r) * scale
    y, last = _matrix(read, k, v, w, h0, "exclusive", reverse)
    bonus = (read * _wide(u) * _wide(k)).sum(-1, keepdim=True)
    y = (y + bonus * _wide(v)).to(v.dtype)
    return (y, last) if return_last else y


def _matrix(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, h0: Tensor | None, emit: str, reverse: bool
) -> tuple[Tensor, Tensor]:
    """Outputs, and the last state as (batch, heads, keys, values)."""
    q, k, v, g = (_wide(t) for t in (q, k, v, g))
    common = _common(q, k, v, g)
    q, k, v, g = (t.to(common) for t in (q, k, v, g))
    shape = (q.shape[0], q.shape[2], v.shape[3], q.shape[3])
    first = q.new_zeros(shape) if h0 is None else h0.to(common).mT
    y, last = outer_scan(g, k, v, q, first, "state", emit, reverse)
    return y, last.mT


def _common(*tensors: Tensor) -> torch.dtype:
    """The dtype that all tensors are promoted to."""
    common = tensors[0].dtype
    for tensor in tensors[1:]:
        common = torch.promote_types(common, tensor.dtype)
    return common


def _vector(
    a: Tensor, x: Tensor, h0: Tensor | None, reverse: bool, return_last: bool
) -> Tensor | tuple[Tensor, Tensor]:
    initial = None if h0 is None else _wide(h0)
    return linear_recurrence(a, x, initial, dim=1, reverse=reverse, return_last=return_last)


def _narrow(
    result: Tensor | tuple[Tensor, Tensor], dtype: torch.dtype
) -> Tensor | tuple[Tensor, Tensor]:
    if isinstance(result, tuple):
        return result[0].to(dtype), result[1]
    return result.to(dtype)


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _check(owner: str, shape: torch.Size, axes: int, **tensors: Tensor) -> None:
    for name, tensor in tensors.items():
        check_tensor(owner, name, tensor)
        found = tuple(tensor.shape)
        check(len(found) == axes, owner, f"{name} with {axes} axes", found, "reshape it")
        check(found == tuple(shape), owner, f"{name} of shape {tuple(shape)}", found, "reshape it")
        check(tensor.is_floating_point(), owner, f"floats in {name}", tensor.dtype, "convert it")


def _check_mask(owner: str, reset: Tensor, x: Tensor) -> None:
    check_tensor(owner, "reset", reset)
    shape, found = tuple(x.shape[:2]), tuple(reset.shape)
    check(found == shape, owner, f"reset of shape {shape}", found, "reshape it")
    check(reset.dtype == torch.bool, owner, "a bool reset", reset.dtype, "convert it")


def _check_matrix(
    owner: str, q: Tensor, k: Tensor, v: Tensor, g: Tensor, h0: Tensor | None
) -> None:
    query, gate = ("q", "g") if owner == "gla" else ("r", "w")
    _check(owner, q.shape, 4, **{query: q, "k": k, gate: g})
    check_tensor(owner, "v", v)
    check(v.dim() == 4, owner, "v with 4 axes", tuple(v.shape), "reshape it")
    _check(owner, torch.Size((*q.shape[:3], v.shape[3])), 4, v=v)
    if h0 is not None:
        _check(owner, torch.Size((q.shape[0], *q.shape[2:], v.shape[3])), 4, h0=h0)
