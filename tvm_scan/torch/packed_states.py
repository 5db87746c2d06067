"""The states of Mamba-2 after each of the sequences that are packed into one row.

As PyTorch sees it a loop over slices whose ends are data, which nothing can trace. So programs
that are traced call an operator, whose derivative is another one.
"""

from typing import Any

import torch
from torch import Tensor

from tvm_scan.torch.functions import cumsum
from tvm_scan.torch.operator import operator
from tvm_scan.torch.selective_adjoint import one_by_one

__all__ = ["states_of_sequences"]


def states_of_sequences(
    gates: Tensor,
    drive: Tensor,
    B: Tensor,
    first: Tensor | None,
    reset: Tensor | None,
    offsets: Tensor,
) -> Tensor:
    """Return the state after each sequence, (sequences, heads, features, states).

    Parameters
    ----------
    gates : Tensor
        (1, length, heads), logarithms.
    drive : Tensor
        (1, length, heads, features): what is added, without `B`.
    B : Tensor
        (1, length, groups, states), of the dtype of `drive`.
    first : Tensor, optional
        (1, heads, features, states): the state before the first sequence, unless it is empty.
    reset : Tensor, optional
        (1, length), bool: where a state starts anew within a sequence.
    offsets : Tensor
        (sequences + 1,), integers from 0 to the length.
    """
    if first is not None:
        first = first.to(drive.dtype)
    starts, stops = offsets[:-1].to(torch.int64), offsets[1:].to(torch.int64)
    if reset is not None and drive.shape[1]:
        # What lies before the last reset of a sequence is left out, not multiplied by zero.
        steps = torch.arange(drive.shape[1], device=reset.device)
        latest = torch.where(reset[0], steps, 0).cummax(0).values
        starts = torch.minimum(torch.maximum(starts, latest[(stops - 1).clamp_min(0)]), stops)
        first = None if first is None else first.masked_fill(reset[0, 0], 0)
    bounds = torch.cat((starts.unsqueeze(1), stops.unsqueeze(1)), 1)
    traced = torch.compiler.is_compiling()
    return (sequence_states if traced else _states)(gates, drive, B, first, bounds)


def _states(
    gates: Tensor, drive: Tensor, B: Tensor, first: Tensor | None, bounds: Tensor
) -> Tensor:
    """What was added, times the gates since; differentiable any number of times.

    `bounds` are (sequences, 2): where each begins and ends.
    """
    heads = drive.shape[2]
    B = B[0].repeat_interleave(heads // B.shape[2], 1)
    states = []
    for start, stop in bounds.tolist():
        own = gates[0, start:stop]
        since = cumsum(own, 0, reverse=True, exclusive=True).exp().unsqueeze(2)
        state = torch.einsum("lhd,lhn->hdn", since * drive[0, start:stop], B[start:stop])
        if first is not None and start == 0 < stop:
            state = state + own.sum(0).exp()[:, None, None] * first[0]
        states.append(state)
    if not states:
        return drive.new_zeros((0, *drive.shape[2:], B.shape[2]))
    return torch.stack(states)


@operator
def sequence_states(
    gates: Tensor, drive: Tensor, B: Tensor, first: Tensor | None, bounds: Tensor
) -> Tensor:
    """`states_of_sequences` as an operator."""
    return _states(gates, drive, B, first, bounds).contiguous()


@sequence_states.fake
def _(gates: Tensor, drive: Tensor, B: Tensor, first: Tensor | None, bounds: Tensor) -> Tensor:
    return drive.new_empty((bounds.shape[0], *drive.shape[2:], B.shape[3]))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    gates, drive, B, first, bounds = ctx.saved_tensors
    found = sequence_states_backward(grad, gates, drive, B, first, bounds)
    return *found[:3], None if first is None else found[3], None


sequence_states.gradient(_backward, _setup)


@sequence_states.vmap
def _(info: Any, in_dims: Any, *arguments: Any) -> tuple[Any, Any]:
    found, dims = one_by_one(
        lambda *one: (sequence_states(*one),), info.batch_size, in_dims, arguments
    )
    return found[0], dims[0]


@operator
def sequence_states_backward(
    grad: Tensor, gates: Tensor, drive: Tensor, B: Tensor, first: Tensor | None, bounds: Tensor
) -> list[Tensor]:
    """Gradients of all that is not None, but the bounds."""
    groups = B.shape[2]
    shared = drive.shape[2] // groups
    found = [torch.zeros_like(t) for t in (gates, drive, B, first) if t is not None]
    for above, (start, stop) in zip(grad, bounds.tolist(), strict=True):
        here = slice(start, stop)
        own, added = gates[0, here], drive[0, here]
        row = B[0, here].repeat_interleave(shared, 1)
        since = cumsum(own, 0, reverse=True, exclusive=True).exp().unsqueeze(2)
        into = since * torch.einsum("hdn,lhn->lhd", above, row)
        found[1][0, here] = into
        of_row = torch.einsum("hdn,lhd->lhn", above, since * added)
        found[2][0, here] = of_row.unflatten(1, (groups, shared)).sum(2)
        # A gate acts on what was added before it.
        found[0][0, here] = cumsum((into * added).sum(2), 0, exclusive=True)
        if first is not None and start == 0 < stop:
            whole = own.sum(0).exp()[:, None, None] * above
            found[0][0, here] += (whole * first[0]).sum((1, 2))
            found[3][0] = whole
    return found


@sequence_states_backward.fake
def _(
    grad: Tensor, gates: Tensor, drive: Tensor, B: Tensor, first: Tensor | None, bounds: Tensor
) -> list[Tensor]:
    given = (gates, drive, B, first)
    return [torch.empty_like(t) for t in given if t is not None]


@sequence_states_backward.vmap
def _(info: Any, in_dims: Any, *arguments: Any) -> tuple[Any, Any]:
    return one_by_one(sequence_states_backward, info.batch_size, in_dims, arguments)
