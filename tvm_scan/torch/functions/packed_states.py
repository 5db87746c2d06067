"""The states of Mamba-2 after each of the sequences that are packed into one row.

As PyTorch sees it a loop over slices whose ends are data, which nothing can trace. So programs
that are traced call an operator, whose derivative is another one.
"""

from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tvm_scan.torch.declare.mapped import one_by_one
from tvm_scan.torch.declare.operator import operator, without_autocast
from tvm_scan.torch.functions.cumulative import cumsum


class PackedRow(NamedTuple):
    """A row of Mamba-2 that several sequences are packed into.

    Attributes
    ----------
    gates : Tensor
        (1, length, heads), logarithms.
    drive : Tensor
        (1, length, heads, features): what is added, without `B`.
    B : Tensor
        (1, length, groups, states), of the dtype of `drive`.
    first : Tensor or None
        (1, heads, features, states): the state before the first sequence, unless it is empty.
    reset : Tensor or None
        (1, length), bool or int8: where a state starts anew within a sequence.
    offsets : Tensor
        (sequences + 1,), integers from 0 to the length.
    """

    gates: Tensor
    drive: Tensor
    B: Tensor
    first: Tensor | None
    reset: Tensor | None
    offsets: Tensor

    def differentiable(self) -> dict[str, Tensor]:
        """Return the tensors that are there and have gradients, by name."""
        named = {"gates": self.gates, "drive": self.drive, "B": self.B}
        return named if self.first is None else {**named, "first": self.first}


def states_of_sequences(row: PackedRow) -> Tensor:
    """Return the state after each sequence, (sequences, heads, features, states)."""
    if row.first is not None:
        row = row._replace(first=row.first.to(row.drive.dtype))
    if row.reset is not None:
        row = row._replace(reset=row.reset.to(torch.int8))
    traced = torch.compiler.is_compiling() or row.offsets.is_meta
    states: Tensor = sequence_states(*row) if traced else _states(row)
    return states


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


@without_autocast
def _states(row: PackedRow) -> Tensor:
    """Sums of what was added, times the gates since; differentiable any number of times."""
    gates, drive, B, first, reset, offsets = row
    B = B[0].repeat_interleave(drive.shape[2] // B.shape[2], 1)
    states = []
    for start, stop in _bounds(reset, offsets):
        gates_of_sequence = gates[0, start:stop]
        since = cumsum(gates_of_sequence, 0, reverse=True, exclusive=True).exp().unsqueeze(2)
        state = torch.einsum("lhd,lhn->hdn", since * drive[0, start:stop], B[start:stop])
        if first is not None and start == 0 < stop and (reset is None or not bool(reset[0, 0])):
            state = state + gates_of_sequence.sum(0).exp()[:, None, None] * first[0]
        states.append(state)
    if not states:
        return drive.new_zeros((0, *drive.shape[2:], B.shape[2]))
    return torch.stack(states)


@operator(mapped=one_by_one)
def sequence_states(row: PackedRow) -> Tensor:
    """`states_of_sequences` as an operator."""
    states: Tensor = _states(row)
    return states.contiguous()


@sequence_states.fake
def _(row: PackedRow) -> Tensor:
    return row.drive.new_empty((row.offsets.shape[0] - 1, *row.drive.shape[2:], row.B.shape[3]))


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    row = PackedRow(*ctx.saved_tensors)
    gradients = sequence_states_backward(grad, *row)
    named = dict(zip(row.differentiable(), gradients, strict=True))
    return tuple(named.get(name) for name in PackedRow._fields)


sequence_states.gradient(_backward, " ".join(PackedRow._fields))


@operator(mapped=one_by_one)
def sequence_states_backward(grad: Tensor, row: PackedRow) -> list[Tensor]:
    """Return the gradients of the `differentiable` tensors."""

    def states(named: dict[str, Tensor]) -> Tensor:
        value: Tensor = _states(row._replace(**named))
        return value

    # The package's types know only the form that has a third result.
    _, pull = torch.func.vjp(states, row.differentiable())  # type: ignore[misc]
    (gradients,) = pull(grad)
    return [gradient.contiguous() for gradient in gradients.values()]


@sequence_states_backward.fake
def _(row: PackedRow) -> list[Tensor]:
    return [t.new_empty(t.shape) for t in row.differentiable().values()]
