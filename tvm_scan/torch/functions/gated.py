"""Gated linear recurrences by the names of their papers, made of the linear recurrence."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tvm_scan.torch.arguments import check_mask, check_number, check_shape, check_tensors, wide
from tvm_scan.torch.functions.linear import linear_recurrence

__all__ = ["hgrn", "rglru"]


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
        (batch, length, channels), floating point; the gates before their sigmoid.
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
        If a shape or dtype is not as above, or tensors are on different devices.

    Notes
    -----
    Halves are computed in float32. ``1 - a^2`` is ``-expm1(2 log a)``, without cancellation; where
    it is 0 its square root has the gradient 0.
    """
    owner = "rglru"
    gates = {"input_gate": input_gate, "recurrence_gate": recurrence_gate}
    check_tensors(owner, {"h0": h0, "reset": reset}, x=x, **gates, decay=decay)
    check_shape(owner, x.shape, 3, x=x, **gates)
    check_shape(owner, x.shape[2:], 1, decay=decay)
    log_a = -scale * F.softplus(wide(decay)) * wide(recurrence_gate).sigmoid()
    square = -torch.expm1(2 * log_a)
    size = torch.where(square > 0, square.clamp_min(torch.finfo(square.dtype).tiny).sqrt(), 0)
    gates_a = log_a.exp()
    if reset is not None:
        check_mask(owner, reset, x.shape[:2])
        reset = reset.unsqueeze(2)
        size = torch.where(reset, 1, size)
    drive = size * wide(input_gate).sigmoid() * wide(x)
    return _narrow(_vector(owner, gates_a, drive, h0, reverse, return_last, reset), x.dtype)


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
        (batch, length, channels), floating point; the gate before its sigmoid.
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
        If a shape or dtype is not as above, or tensors are on different devices.

    Notes
    -----
    Halves are computed in float32. ``1 - f`` is computed from ``sigmoid(-forget_gate)``, without
    cancellation.
    """
    owner = "hgrn"
    bound = {"lower_bound": lower_bound} if isinstance(lower_bound, Tensor) else {}
    check_tensors(owner, {"h0": h0}, x=x, forget_gate=forget_gate, **bound)
    check_shape(owner, x.shape, 3, x=x, forget_gate=forget_gate)
    if isinstance(lower_bound, Tensor):
        check_shape(owner, x.shape[2:], 1, lower_bound=lower_bound)
        lower_bound = wide(lower_bound)
    else:
        check_number(owner, "lower_bound", lower_bound)
    gate = wide(forget_gate)
    keep = (1 - lower_bound) * torch.sigmoid(-gate)  # 1 - f
    forget = lower_bound + (1 - lower_bound) * torch.sigmoid(gate)
    return _narrow(_vector(owner, forget, keep * wide(x), h0, reverse, return_last), x.dtype)


def _vector(
    owner: str,
    a: Tensor,
    x: Tensor,
    h0: Tensor | None,
    reverse: bool,
    return_last: bool,
    reset: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    if h0 is not None:
        check_shape(owner, torch.Size((x.shape[0], x.shape[2])), 2, h0=h0)
        h0 = wide(h0)
    return linear_recurrence(a, x, h0, dim=1, reverse=reverse, return_last=return_last, reset=reset)


def _narrow(
    result: Tensor | tuple[Tensor, Tensor], dtype: torch.dtype
) -> Tensor | tuple[Tensor, Tensor]:
    if isinstance(result, tuple):
        return result[0].to(dtype), result[1]
    return result.to(dtype)
