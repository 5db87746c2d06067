"""Gated recurrences of matrix states by the names of their papers."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

from tvm_scan.torch.arguments import wide, widened
from tvm_scan.torch.declare.checked import checked
from tvm_scan.torch.ops.outer import outer_scan


@checked
def gla(
    q: Annotated[Tensor, "batch length heads keys"],
    k: Annotated[Tensor, "batch length heads keys"],
    v: Annotated[Tensor, "batch length heads values"],
    g: Annotated[Tensor, "batch length heads keys"],
    h0: Annotated[Tensor | None, "batch heads keys values"] = None,
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
        (batch, length, heads, keys), floating point; `g` are the logarithms of the
        gates, at most 0 for a state that stays bounded.
    v : Tensor
        (batch, length, heads, values).
    h0 : Tensor, optional
        The state before the scan, (batch, heads, keys, values); 0 if None.
    scale : float, optional
        ``keys ** -0.5`` by default.
    reverse : bool
        Scan from the last step to the first.
    return_last : bool
        Also return the state after the scan.

    Returns
    -------
    Tensor, or tuple of Tensor
        The outputs, with the shape and dtype of `v`; with `return_last` also the last state
        (batch, heads, keys, values), in float32 or float64.

    Raises
    ------
    ValueError
        If a shape or dtype is not as above, or tensors are on different devices.

    Notes
    -----
    Halves are computed in float32. Constant gates make it RetNet's retention, ``g = 0`` plain
    linear attention. No history of states is stored, for no derivative; for that of `g` a state
    for every 16 steps.
    """
    if scale is None:
        scale = q.shape[3] ** -0.5 if q.shape[3] else 1.0
    y, last = _matrix(wide(q) * scale, k, v, g, h0, "inclusive", reverse)
    y = y.to(v.dtype)
    return (y, last) if return_last else y


@checked
def rwkv6(
    r: Annotated[Tensor, "batch length heads keys"],
    k: Annotated[Tensor, "batch length heads keys"],
    v: Annotated[Tensor, "batch length heads values"],
    w: Annotated[Tensor, "batch length heads keys"],
    u: Annotated[Tensor, "heads keys"],
    h0: Annotated[Tensor | None, "batch heads keys values"] = None,
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
        (batch, length, heads, keys), floating point; `w` are the logarithms of the
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
        If a shape or dtype is not as above, or tensors are on different devices.
    """
    read = wide(r) * scale
    y, last = _matrix(read, k, v, w, h0, "exclusive", reverse)
    bonus = (read * wide(u) * wide(k)).sum(-1, keepdim=True)
    y = (y + bonus * wide(v)).to(v.dtype)
    return (y, last) if return_last else y


def _matrix(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, h0: Tensor | None, emit: str, reverse: bool
) -> tuple[Tensor, Tensor]:
    """Outputs, and the last state as (batch, heads, keys, values)."""
    q, k, v, g = widened(q, k, v, g)
    shape = (q.shape[0], q.shape[2], v.shape[3], q.shape[3])
    first = q.new_zeros(shape) if h0 is None else h0.to(q.dtype).mT
    y, last = outer_scan(g, k, v, q, first, None, "state", emit, reverse)
    return y, last.mT
