"""Scans of a matrix state that outer products are added to, as one torch operator.

On arrays (batch, length, heads, .): for each batch and head, with the state H (lanes, states),

- ``inclusive``: ``H = diag(w) H + x a'; y = H c``
- ``exclusive``: ``y = H c; H = diag(w) H + x a'``
- ``late``: ``H = H + x a'; y = H c; H = diag(w) H``

where the decay ``w = exp(g)`` belongs to the lanes, to the states, or is one for the head, and
then has no last axis. Where there is a reset, the product with the decay is 0, whatever the state
is: a NaN or an infinity before it is forgotten. The gradients of a, x, c and h0 are the three
again, the other way round in time, or with lanes and states swapped; that of g is in
`outer_gates`. No history of states is ever stored.
"""

from typing import Any

import torch
from torch import Tensor

from tvm_scan.torch.declare.operator import operator
from tvm_scan.torch.kernels.cache import run_kernel
from tvm_scan.torch.kernels.runtime import aligned_like
from tvm_scan.torch.kernels.spec import KernelSpec, dtype_name
from tvm_scan.torch.ops.affine import affine_scan, unless
from tvm_scan.torch.ops.cumulative import cumulative
from tvm_scan.torch.ops.outer_gates import gate_gradient

_ADJOINT = {"inclusive": "late", "late": "inclusive", "exclusive": "exclusive"}
_OTHER = {"lane": "state", "state": "lane", "head": "head"}


@operator(like="x h0")
def outer_scan(
    g: Tensor,
    a: Tensor,
    x: Tensor,
    c: Tensor,
    h0: Tensor,
    reset: Tensor | None,
    gate: str,
    emit: str,
    reverse: bool,
) -> tuple[Tensor, Tensor]:
    """Return y, like x, and the last state.

    `h0` is (batch, heads, lanes, states), `reset` (batch, length), int8.
    """
    batch, length, heads, lanes = x.shape
    y = aligned_like(x)
    last = aligned_like(h0)
    if not y.numel() or not a.shape[3]:
        return y.zero_(), last.copy_(h0)
    spec = KernelSpec.of(
        "outer_products",
        ("batch", "heads", "lanes", "length"),
        dtype=dtype_name(x.dtype),
        emit=emit,
        gate=gate,
        has_reset=reset is not None,
        reverse=reverse,
        states=a.shape[3],
    )
    starts = () if reset is None else (reset,)
    run_kernel(spec, (batch, heads, lanes, length), g.exp(), a, x, c, *starts, h0, last, y)
    return y, last


def _backward(ctx: Any, dy: Tensor, d_last: Tensor) -> tuple[Tensor | None, ...]:
    g, a, x, c, h0, reset, y, last = ctx.saved_tensors
    gate, emit, reverse = ctx.gate, ctx.emit, ctx.reverse
    other, back = _OTHER[gate], _ADJOINT[emit]
    # Lanes and states swapped, so that the sum runs over the lanes.
    dc, _ = outer_scan(g, x, a, dy, h0.mT, reset, other, emit, reverse)
    dx, d_h0 = outer_scan(g, c, dy, a, d_last, reset, gate, back, not reverse)
    da, _ = outer_scan(g, dy, c, x, d_last.mT, reset, other, back, not reverse)
    dg = None
    if ctx.needs_input_grad[0]:
        operands = (g, a, x, c, dy, h0, d_last, reset)
        dg = gate_gradient(*(t if t is None else t.detach() for t in operands), gate, emit, reverse)
        if torch.is_grad_enabled():
            # That has no derivative: it is the derivative of the same in another form.
            pairs = (y, dy), (x, dx), (c, dc), (a, da), (last, d_last), (h0, d_h0)
            form = _gate_gradient(pairs, reset, gate, emit, reverse)
            dg = dg + (form - form.detach())
    return dg, da, dx, dc, d_h0


def _gate_gradient(
    pairs: tuple[tuple[Tensor, Tensor], ...],
    reset: Tensor | None,
    gate: str,
    emit: str,
    reverse: bool,
) -> Tensor:
    """Return what `gate_gradient` does, of operators that have derivatives, with fewer digits.

    `pairs` are y, x, c, a, the last state and the first, each with its gradient. What ``g[t]``
    gains over ``g[t+1]`` is ``c dc - a da`` at the step (Yang et al. 2023, arXiv 2312.06635).
    """
    *timed, end, start = pairs
    gained, lost, *_ = (p * q for p, q in (timed[2:] if gate == "state" else timed))
    axis = {"lane": (-1,), "state": (-2,), "head": (-2, -1)}[gate]
    if gate == "head":
        gained, lost = gained.sum(-1), lost.sum(-1)
    if emit == "late":
        held, change, backward = start, lost - gained, reverse
    else:
        held, backward = end, not reverse
        change = -lost if emit == "exclusive" else gained - lost
    dg = _total(change, (held[0] * held[1]).sum(axis), reset, backward, False)
    if emit == "exclusive":
        dg = dg + _total(gained, None, reset, backward, True)
    return dg if reset is None else unless(_like(reset, dg), dg)


def _like(reset: Tensor, tensor: Tensor) -> Tensor:
    return reset.view(*reset.shape, *[1] * (tensor.dim() - 2)).expand(tensor.shape)


def _total(
    tensor: Tensor, held: Tensor | None, reset: Tensor | None, reverse: bool, exclusive: bool
) -> Tensor:
    """Sum along the second axis, from `held` on; a reset ends the sum that goes on without it."""
    framed = tensor.flatten(2)
    if reset is None:
        total = cumulative(framed, "add", reverse, exclusive).view(tensor.shape)
        return total if held is None else held.unsqueeze(1) + total
    # The sum of one sequence alone: in that of all of them a NaN would reach the others.
    ones, emit = torch.ones_like(framed), "exclusive" if exclusive else "late"
    start = None if held is None else held.flatten(1)
    total = affine_scan(ones, framed, start, _like(reset, framed), emit, reverse)
    return total.view(tensor.shape)


outer_scan.gradient(_backward, "g a x c h0 reset results")
