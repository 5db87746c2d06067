"""A recurrence whose time axis is spread over processes.

Each process holds a slice of time. A slice acts on the state before it as one affine map, its
total gate and its last state from zero; those are gathered once, and every process composes the
maps before its own to the state that it starts from.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tvm_scan.torch.functions import check, linear_recurrence

__all__ = ["sequence_parallel"]


class _Gather(torch.autograd.Function):
    """All processes' tensors, stacked; the adjoint adds up what each process sends back."""

    @staticmethod
    def forward(tensor: Tensor, group: Any) -> Tensor:
        parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, tensor.contiguous(), group=group)
        return torch.stack(parts)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.group = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        grad = grad.contiguous()
        dist.all_reduce(grad, group=ctx.group)
        return grad[dist.get_rank(ctx.group)], None


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

    Returns
    -------
    Tensor, or tuple of Tensor
        This process's slice of the states, and the state after it.

    Raises
    ------
    ValueError
        If there is no process group, or as in `linear_recurrence`.

    Notes
    -----
    One all-gather of two states per process, and one all-reduce in the backward pass. Each
    process walks its slice twice. A process that ends leaves the others with the group's own
    error, at the latest after its timeout.
    """
    owner = "sequence_parallel"
    ready = dist.is_available() and dist.is_initialized()
    check(ready, owner, "a process group", "none", "call torch.distributed.init_process_group")
    dim = dim % x.dim()
    gates = a.expand(x.shape)
    if reset is not None:
        gates = gates.masked_fill(reset, 0)
    options = {"dim": dim, "reverse": reverse}
    _, last = linear_recurrence(gates, x, None, return_last=True, **options)
    maps = _Gather.apply(torch.stack((gates.prod(dim).to(last.dtype), last)), group)
    carry = torch.zeros_like(last) if h0 is None else h0.to(last.dtype).expand(last.shape)
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    # Every map takes part, so that no process has a gather without an adjoint.
    for other in reversed(range(size)) if reverse else range(size):
        before = other > rank if reverse else other < rank
        carry = torch.where(torch.tensor(before), maps[other, 0] * carry + maps[other, 1], carry)
    return linear_recurrence(
        gates, x, carry, exclusive=exclusive, return_last=return_last, **options
    )
