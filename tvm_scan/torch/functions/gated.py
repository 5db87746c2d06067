"""Gated linear recurrences by the names of their papers, made of the linear recurrence."""

from __future__ import annotations

from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tvm_scan.torch.arguments import wide
from tvm_scan.torch.declare.checked import checked
from tvm_scan.torch.functions.linear import linear_recurrence


@checked
def rglru(
    x: Annotated[Tensor, "batch length channels"],
    input_gate: Annotated[Tensor, "batch length channels"],
    recurrence_gate: Annotated[Tensor, "batch length channels"],
    decay: Annotated[Tensor, "channels"],
    h0: Annotated[Tensor | None, "batch channels"] = None,
    *,
    scale: float = 8.0,
    reverse: bool = False,
    reset: Annotated[Tensor | None, "bool batch length"] = None,
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
        The state before the scan, (batch, channels); 0 if None.
    scale : float
        The constant c of the paper.
    reverse : bool
        Scan from the last step to the first.
    reset : Tensor, optional
        (batch, length), bool: where it is True the state starts anew, and ``h[t]`` is the gated
        input, not scaled.
    return_last : bool
        Also return the state after the scan.

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
    log_a = -scale * F.softplus(wide(decay)) * wide(recurrence_gate).sigmoid()
    square = -torch.expm1(2 * log_a)
    size = torch.where(square > 0, square.clamp_min(torch.finfo(square.dtype).tiny).sqrt(), 0)
    gates_a = log_a.exp()
    if reset is not None:
        reset = reset.unsqueeze(2)
        size = torch.where(reset, 1, size)
    drive = size * wide(input_gate).sigmoid() * wide(x)
    options = {"reverse": reverse, "return_last": return_last, "reset": reset}
    return _recurrence(gates_a, drive, h0, x.dtype, **options)


@checked
def hgrn(
    x: Annotated[Tensor, "batch length channels"],
    forget_gate: Annotated[Tensor, "batch length channels"],
    h0: Annotated[Tensor | None, "batch channels"] = None,
    *,
    lower_bound: Annotated[Tensor | float, "channels"] = 0.0,
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
        The state before the scan, (batch, channels); 0 if None.
    lower_bound : Tensor or float
        Least value of the forget gate: a number, or (channels,), in [0, 1).
    reverse : bool
        Scan from the last step to the first.
    return_last : bool
        Also return the state after the scan.

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
    if isinstance(lower_bound, Tensor):
        lower_bound = wide(lower_bound)
    gate = wide(forget_gate)
    keep = (1 - lower_bound) * torch.sigmoid(-gate)  # 1 - f
    forget = lower_bound + (1 - lower_bound) * torch.sigmoid(gate)
    options = {"reverse": reverse, "return_last": return_last}
    return _recurrence(forget, keep * wide(x), h0, x.dtype, **options)


def _recurrence(
    a: Tensor, x: Tensor, h0: Tensor | None, dtype: torch.dtype, **options: Any
) -> Tensor | tuple[Tensor, Tensor]:
    """Run the linear recurrence; its states are returned in a dtype, the last one as it is."""
    h0 = None if h0 is None else wide(h0)
    result = linear_recurrence(a, x, h0, dim=1, **options)
    if isinstance(result, tuple):
        return result[0].to(dtype), result[1]
    return result.to(dtype)
