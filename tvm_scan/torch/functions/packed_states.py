"""The states of Mamba-2 after each of the sequences that are packed into one row.

As PyTorch sees it a loop over slices whose ends are data, which nothing can trace. So programs
that are traced call an operator, whose derivative is another one.
"""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from tvm_scan.torch.declare.mapped import one_by_one
from tvm_scan.torch.declare.operator import operator, without_autocast
from tvm_scan.torch.functions.cumulative import cumsum


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
    mask = None if reset is None else reset.to(torch.int8)
    traced = torch.compiler.is_compiling() or offsets.is_meta
    return (sequence_states if traced else _states)(gates, drive, B, first, mask, offsets)


def _bounds(reset: Tensor | None, offsets: Tensor) -> list[list[int]]:
    """Steps at which the state of each sequence begins, and at which the sequence ends.

    What lies before the last reset of a sequence is left out, not multiplied by zero.
    """
    pairs = [list(pair) for pair in pairwise(offsets.tolist())]
    if reset is not None:
        resets = reset[0].nonzero().flatten().tolist()
        for pair in pairs:
            pair[0] = max([pair[0], *(t for t in resets if pair[0] <= t < pair[1])])
    return pairs


def _is_first(reset: Tensor | None, start: int, stop: int) -> bool:
    """Return whether a sequence goes on from the state before the row."""
    return start == 0 < stop and (reset is None or not bool(reset[0, 0]))


@without_autocast
def _states(
    gates: Tensor,
    drive: Tensor,
    B: Tensor,
    first: Tensor | None,
    reset: Tensor | None,
    offsets: Tensor,
) -> Tensor:
    """Sums of what was added, times the gates since; differentiable any number of times."""
    heads = drive.shape[2]
    B = B[0].repeat_interleave(heads // B.shape[2], 1)
    states = []
    for start, stop in _bounds(reset, offsets):
        gates_of_sequence = gates[0, start:stop]
        since = cumsum(gates_of_sequence, 0, reverse=True, exclusive=True).exp().unsqueeze(2)
        state = torch.einsum("lhd,lhn->hdn", since * drive[0, start:stop], B[start:stop])
        if first is not None and _is_first(reset, start, stop):
            state = state + gates_of_sequence.sum(0).exp()[:, None, None] * first[0]
        states.append(state)
    if not states:
        return drive.new_zeros((0, *drive.shape[2:], B.shape[2]))
    return torch.stack(states)


@operator(mapped=one_by_one)
def sequence_states(
    gates: Tensor,
    drive: Tensor,
    B: Tensor,
    first: Tensor | None,
    reset: Tensor | None,
    offsets: Tensor,
) -> Tensor:
    """`states_of_sequences` as an operator."""
    states: Tensor = _states(gates, drive, B, first, reset, offsets)
    return states.contiguous()


@sequence_states.fake
def _(*operands: Tensor) -> Tensor:
    _, drive, B, _, _, offsets = operands
    return drive.new_empty((offsets.shape[0] - 1, *drive.shape[2:], B.shape[3]))


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    gates, drive, B, first, reset, offsets = ctx.saved_tensors
    gradients = sequence_states_backward(grad, gates, drive, B, first, reset, offsets)
    return *gradients[:3], None if first is None else gradients[3]


sequence_states.gradient(_backward, "gates drive B first reset offsets")


@operator(mapped=one_by_one)
def sequence_states_backward(
    grad: Tensor,
    gates: Tensor,
    drive: Tensor,
    B: Tensor,
    first: Tensor | None,
    reset: Tensor | None,
    offsets: Tensor,
) -> list[Tensor]:
    """Gradients of all that is not None, but the resets and the offsets."""
    groups = B.shape[2]
    shared = drive.shape[2] // groups
    gradients = [torch.zeros_like(t) for t in (gates, drive, B, first) if t is not None]
    for above, (start, stop) in zip(grad, _bounds(reset, offsets), strict=True):
        here = slice(start, stop)
        gates_of_sequence, added = gates[0, here], drive[0, here]
        row = B[0, here].repeat_interleave(shared, 1)
        since = cumsum(gates_of_sequence, 0, reverse=True, exclusive=True).exp().unsqueeze(2)
        into = since * torch.einsum("hdn,lhn->lhd", above, row)
        gradients[1][0, here] = into
        of_row = torch.einsum("hdn,lhd->lhn", above, since * added)
        gradients[2][0, here] = of_row.unflatten(1, (groups, shared)).sum(2)
        # A gate acts on what was added before it.
        gradients[0][0, here] = cumsum((into * added).sum(2), 0, exclusive=True)
        if first is not None and _is_first(reset, start, stop):
            whole = gates_of_sequence.sum(0).exp()[:, None, None] * above
            gradients[0][0, here] += (whole * first[0]).sum((1, 2))
            gradients[3][0] = whole
    return gradients


@sequence_states_backward.fake
def _(_: Tensor, *operands: Tensor | None) -> list[Tensor]:
    return [torch.empty_like(t) for t in operands[:4] if t is not None]
