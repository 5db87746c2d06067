"""Recurrences whose time axis is spread over processes.

Each process holds a slice of time. A slice acts on the state before it as one affine map, its
total gate and its last state from zero; those are gathered once, and every process composes the
maps before its own to the state that it starts from.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from tvm_scan.torch.functions import check
from tvm_scan.torch.linear import linear_recurrence
from tvm_scan.torch.mamba import selective_scan

__all__ = ["sequence_parallel", "sequence_parallel_selective_scan"]


class _Gather(torch.autograd.Function):
    """All processes' tensors, stacked; the adjoint adds up what each process sends back."""

    @staticmethod
    def forward(tensor: Tensor, group: Any, timeout: float | None) -> Tensor:
        parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
        given = tensor.contiguous()
        _wait(lambda: dist.all_gather(parts, given, group=group, async_op=True), group, timeout)
        return torch.stack(parts)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.group, ctx.timeout = inputs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        grad = grad.contiguous().clone()
        _wait(lambda: dist.all_reduce(grad, group=ctx.group, async_op=True), ctx.group, ctx.timeout)
        return grad[dist.get_rank(ctx.group)], None, None


def _wait(start: Callable[[], Any], group: Any, timeout: float | None) -> None:
    """Run a collective; a process that is gone or late is an error that says so."""
    try:
        work = start()
        if timeout is None:
            work.wait()
        else:
            work.wait(timedelta(seconds=timeout))
    except RuntimeError as error:
        raise RuntimeError(
            f"tvm_scan.torch.sequence_parallel: expected all {dist.get_world_size(group)} "
            f"processes of the group to take part, found that one ended or did not within the "
            f"timeout ({error}); look at the other processes' errors, and start the group anew"
        ) from error


def sequence_parallel(
    a: Tensor,
    x: Tensor,
    h0: Tensor | None = None,
    *,
    group: Any = None,
    dim: int = -1,
    reverse: bool = False,
    exclusive: bool = False,
    return_last: bool = False,
    reset: Tensor | None = None,
    timeout: float | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Run `linear_recurrence` along a time axis that is spread over a process group.

    Every process of the group calls this at the same time, and calls backward if one does.

    Parameters
    ----------
    a, x, h0, dim, reverse, exclusive, reset
        As in `linear_recurrence`, each process with its slice of time in the order of ranks.
        Slices may have different lengths, and none. `h0` is the state before the whole
        sequence, the same in every process: its gradient is the sum over the processes.
    group : ProcessGroup, optional
        The processes; all by default.
    return_last : bool
        Also return the state after this process's slice.
    timeout : float, optional
        Seconds to wait for the other processes, forward and backward; the group's own by
        default.

    Returns
    -------
    Tensor, or tuple of Tensor
        This process's slice of the states, and the state after it.

    Raises
    ------
    ValueError
        If there is no process group, or as in `linear_recurrence`.
    RuntimeError
        If another process ended, or did not take part within the timeout.

    Notes
    -----
    One all-gather of two states per process, and one all-reduce in the backward pass. Each
    process walks its slice twice.
    """
    _check_group("sequence_parallel")
    dim = dim % x.dim()
    gates = a.expand(x.shape)
    if reset is not None:
        gates = gates.masked_fill(reset, 0)
    options = {"dim": dim, "reverse": reverse}
    _, last = linear_recurrence(gates, x, None, return_last=True, **options)
    # A product of many halves is one of float32, as the states are.
    is_half = gates.dtype in (torch.float16, torch.bfloat16)
    total = gates.prod(dim, dtype=torch.float32 if is_half else gates.dtype).to(last.dtype)
    carry = _carry(total, last, h0, group, reverse, timeout)
    return linear_recurrence(
        gates, x, carry, exclusive=exclusive, return_last=return_last, **options
    )


def sequence_parallel_selective_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    *,
    group: Any = None,
    delta_softplus: bool = False,
    h0: Tensor | None = None,
    reset: Tensor | None = None,
    reverse: bool = False,
    return_last: bool = False,
    timeout: float | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Run `selective_scan` along a time axis that is spread over a process group.

    Every process of the group calls this at the same time, and calls backward if one does.

    Parameters
    ----------
    u, delta, A, B, C, D, z, delta_bias, delta_softplus, reset, reverse
        As in `selective_scan`, what varies in time as this process's slice of it, in the order
        of ranks. Slices may have different lengths, and none. The others are the same in every
        process: their gradients are the sums over the processes.
    group : ProcessGroup, optional
        The processes; all by default.
    h0 : Tensor, optional
        The state before the whole sequence, the same in every process.
    return_last : bool
        Also return the state after this process's slice.
    timeout : float, optional
        Seconds to wait for the other processes, forward and backward; the group's own by
        default.

    Returns
    -------
    Tensor, or tuple of Tensor
        This process's slice of the output, and the state after it.

    Raises
    ------
    ValueError
        If there is no process group, or as in `selective_scan`.
    RuntimeError
        If another process ended, or did not take part within the timeout.

    Notes
    -----
    The gates of a slice multiply to ``exp(A sum(dt))``, so no product of gates is formed. One
    all-gather of two states per process, and one all-reduce in the backward pass.
    """
    _check_group("sequence_parallel_selective_scan")
    options = {"delta_softplus": delta_softplus, "reset": reset, "reverse": reverse}
    _, last = selective_scan(u, delta, A, B, C, None, None, delta_bias, return_last=True, **options)
    real = last.dtype.to_real() if last.is_complex() else last.dtype
    dt = delta.to(real) if delta_bias is None else delta.to(real) + delta_bias.to(real)[:, None]
    dt = F.softplus(dt) if delta_softplus else dt
    total = (A.to(last.dtype) * dt.sum(2).unsqueeze(2)).exp()
    if reset is not None:
        total = total.masked_fill(reset.any(1)[:, None, None], 0)
    carry = _carry(total, last, h0, group, reverse, timeout)
    return selective_scan(
        u, delta, A, B, C, D, z, delta_bias, h0=carry, return_last=return_last, **options
    )


def _check_group(owner: str) -> None:
    ready = dist.is_available() and dist.is_initialized()
    check(ready, owner, "a process group", "none", "call torch.distributed.init_process_group")


def _carry(
    total: Tensor,
    last: Tensor,
    h0: Tensor | None,
    group: Any,
    reverse: bool,
    timeout: float | None,
) -> Tensor:
    """The state before this process's slice, of every slice's total gate and last state."""
    complex_states = last.is_complex()
    own = torch.stack((total, last))
    maps = _Gather.apply(torch.view_as_real(own) if complex_states else own, group, timeout)
    maps = torch.view_as_complex(maps) if complex_states else maps
    carry = torch.zeros_like(last) if h0 is None else h0.to(last.dtype).expand(last.shape)
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    # Every map takes part, so that no process has a gather without an adjoint.
    for other in reversed(range(size)) if reverse else range(size):
        before = other > rank if reverse else other < rank
        passed = maps[other, 0] * carry + maps[other, 1]
        # Through the map also where it is not used, without its numbers: they may be infinite.
        carry = torch.where(torch.full((), before, device=carry.device), passed, carry)
    return carry
