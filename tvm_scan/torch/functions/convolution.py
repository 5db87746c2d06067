"""The short causal convolution that stands before the scan in most of today's models."""

from __future__ import annotations

from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from tvm_scan.torch.arguments import check, widened
from tvm_scan.torch.declare.checked import checked
from tvm_scan.torch.declare.operator import without_autocast

#: What may be applied to the sum.
ACTIVATIONS = (None, "silu", "swish")


@checked
def causal_conv1d(
    x: Annotated[Tensor, "batch channels length"],
    weight: Annotated[Tensor, "channels width"],
    bias: Annotated[Tensor | None, "channels"] = None,
    initial_state: Annotated[Tensor | None, "batch channels state"] = None,
    *,
    seq_idx: Annotated[Tensor | None, "integers batch length"] = None,
    activation: str | None = None,
    return_last: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Convolve each channel with its own few weights, of this step and those before it.

    ::

        y[t] = activation(bias + weight[0] x[t - width + 1] + ... + weight[width - 1] x[t])

    Parameters
    ----------
    x : Tensor
        (batch, channels, length), floating point.
    weight : Tensor
        (channels, width).
    bias : Tensor, optional
        (channels,).
    initial_state : Tensor, optional
        What stands before time, (batch, channels, state), with ``width - 1`` steps; 0 if None.
    seq_idx : Tensor, optional
        (batch, length), integers: steps with the same number, which are neighbours, are one
        sequence, and nothing of another goes into it. A negative number is padding: the output
        there is 0. Not with `initial_state` or `return_last`.
    activation : {None, "silu", "swish"}
        What is applied to the sum; the two names are of one function.
    return_last : bool
        Also return the last ``width - 1`` inputs: the `initial_state` of what follows.

    Returns
    -------
    Tensor, or tuple of Tensor
        The shape and dtype of `x`; with `return_last` also (batch, channels, width - 1).

    Raises
    ------
    ValueError
        If a shape or dtype is not as above, tensors are on different devices, or options exclude
        each other.

    Notes
    -----
    Made of torch's operators. The products of halves are summed in float32.
    """
    owner = "causal_conv1d"
    check(activation in ACTIVATIONS, owner, '"silu", "swish" or no activation', activation,
          "apply it to the result")  # fmt: skip
    before = weight.shape[1] - 1
    check(before >= 0, owner, "a weight for each channel and step", tuple(weight.shape), "add one")
    if initial_state is not None:
        found = initial_state.shape[2]
        check(found == before, owner, f"initial_state of {before} steps", found, "cut or pad it")
    if seq_idx is not None:
        alone = initial_state is None and not return_last
        check(alone, owner, "seq_idx without states", "both", "convolve each sequence by itself")
    parts = [t for t in (x, weight, bias, initial_state) if t is not None]
    wide = iter(widened(*parts))
    wide_x, taps = next(wide), next(wide)
    offset = None if bias is None else next(wide)
    if initial_state is None:
        padded = F.pad(wide_x, (before, 0))
    else:
        padded = torch.cat((next(wide), wide_x), 2)
    if seq_idx is None and x.numel():
        y: Tensor = _together(padded, taps, offset)
    else:
        y = _step_by_step(padded, taps, offset, seq_idx)
    y = (y if activation is None else F.silu(y)).to(x.dtype)
    if seq_idx is not None:
        y = torch.where(seq_idx.unsqueeze(1) < 0, 0, y)
    if not return_last:
        return y
    return y, padded[..., padded.shape[2] - before :].to(x.dtype)


@without_autocast
def _together(padded: Tensor, taps: Tensor, bias: Tensor | None) -> Tensor:
    return F.conv1d(padded, taps.unsqueeze(1), bias, groups=taps.shape[0])


def _step_by_step(
    padded: Tensor, taps: Tensor, bias: Tensor | None, index: Tensor | None
) -> Tensor:
    """Sum the products whose steps are of one sequence; a choice, since a NaN times 0 stays."""
    width = taps.shape[1]
    length = padded.shape[2] - (width - 1)
    total = padded[..., width - 1 :] * taps[:, -1:]
    # Before time there is no sequence: the number there is none of a step that has an output.
    numbers = None if index is None else F.pad(index.to(torch.int64), (width - 1, 0), value=-1)
    for start in reversed(range(width - 1)):
        part = padded[..., start : start + length] * taps[:, start : start + 1]
        if numbers is not None:
            same = numbers[:, start : start + length] == numbers[:, width - 1 :]
            part = torch.where(same.unsqueeze(1), part, 0)
        total = total + part
    return total if bias is None else total + bias.unsqueeze(1)
