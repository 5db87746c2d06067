"""The gradient of the gates of `outer_scan`, of sums alone.

What a gate is asked for is the sum, over the pairs of an input before it and an output after it,
of what that input does to the loss through that output. From one step to the next that changes by
what the step's output gains and its input loses; to add up those differences is cheap, but loses
most digits where gates are small or sequences long. So nothing is subtracted here, and time is
cut into chunks, so that the states of one alone are in memory, and those that chunks begin with.

On a CPU a kernel scans each chunk again, with the state and back with its adjoint, whose product
is the gradient. On a GPU, where that would be a thread for each head, a chunk's pairs are
formed by products of matrices; what enters it is the state at its head, and what leaves it meets
the adjoint of the state at its tail.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tvm_scan.torch.declare.operator import operator
from tvm_scan.torch.kernels import devices
from tvm_scan.torch.kernels.cache import run_kernel
from tvm_scan.torch.kernels.runtime import aligned_empty
from tvm_scan.torch.kernels.spec import KernelSpec, dtype_name
from tvm_scan.torch.ops.affine import unless

#: Steps in a chunk, and lanes that are scanned together: those of the kernel.
_STEPS = _LANES = 16
#: Entries of pairs that are formed at once, unless one chunk has more.
_AT_ONCE = 1 << 20

#: The arguments of `gate_gradient`, whose gate is of a head or of a state.
_Asked = tuple[
    Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None, str, str, bool
]


@operator(like="g")
def gate_gradient(
    g: Tensor,
    a: Tensor,
    x: Tensor,
    c: Tensor,
    dy: Tensor,
    h0: Tensor,
    d_last: Tensor,
    reset: Tensor | None,
    gate: str,
    emit: str,
    reverse: bool,
) -> Tensor:
    """Return the gradient of `g` in `outer_scan`; it has no derivative of its own.

    `dy` and `d_last` are the gradients of its results, all else are its arguments.
    """
    if not g.numel() or not h0.numel():
        return torch.zeros_like(g, memory_format=torch.contiguous_format)
    if gate == "lane":  # the same, with lanes and states swapped
        a, x, c, dy, h0, d_last, gate = x, a, dy, c, h0.mT, d_last.mT, "state"
    run = _by_kernel if devices.device_of(g) is devices.CPU else _by_products
    return run((g, a, x, c, dy, h0, d_last, reset, gate, emit, reverse))


def _by_kernel(asked: _Asked) -> Tensor:
    g, a, x, c, dy, h0, d_last, reset, gate, emit, reverse = asked
    batch, length, heads, lanes = x.shape
    options = (
        ("dtype", dtype_name(x.dtype)),
        ("emit", emit),
        ("gate", gate),
        ("has_reset", reset is not None),
        ("reverse", reverse),
        ("states", a.shape[3]),
    )
    spec = KernelSpec("outer_gates", options, ("batch", "heads", "lanes", "length"), no_scan=True)
    checkpoints = aligned_empty((-(-length // _STEPS), *h0.shape), h0.dtype, h0.device)
    partial_sums = aligned_empty((-(-lanes // _LANES), *g.shape), g.dtype, g.device)
    operands = (g.exp(), a, x, c, dy, *(() if reset is None else (reset,)), h0, d_last)
    run_kernel(spec, (batch, heads, lanes, length), *operands, checkpoints, partial_sums)
    total: Tensor = partial_sums[0] if len(partial_sums) == 1 else partial_sums.sum(0)
    return total


def _by_products(asked: _Asked) -> Tensor:
    g, a, x, c, dy, h0, d_last, reset, gate, emit, reverse = asked
    gates = g.unsqueeze(3) if gate == "head" else g
    # In the order of `inclusive`: the gate of a step, its input, its output.
    late, ahead = int(emit == "late"), -int(emit == "exclusive")
    count = -(-(g.shape[1] + late) // _STEPS)

    def laid(tensor: Tensor, shift: int) -> Tensor:
        """Move time by `shift` and cut it; what is missing is 0: a gate of 1, and no input."""
        tensor = tensor.flip(1) if reverse else tensor
        missing = count * _STEPS - tensor.shape[1] - shift
        padded: Tensor = F.pad(tensor, (0, 0, 0, 0, shift, missing))
        cut: Tensor = padded.unflatten(1, (count, _STEPS))
        return cut.permute(0, 3, 1, 2, 4)

    timed = ((gates, late), (a, 0), (x, 0), (c, ahead), (dy, ahead))
    resets = None if reset is None else laid(reset[..., None, None], late)
    operands = [laid(*pair) for pair in timed]
    gradient = _by_chunks(operands, resets, h0, d_last)
    gradient = gradient.permute(0, 2, 3, 1, 4).flatten(1, 2).narrow(1, late, g.shape[1])
    return (gradient.flip(1) if reverse else gradient).reshape(g.shape).contiguous()


def _by_chunks(
    operands: list[Tensor], resets: Tensor | None, first: Tensor, last: Tensor
) -> Tensor:
    """Gradient of gates from `g, a, x, c, dy` (batch, heads, chunks, steps, .) and both ends."""
    g, a, x, c, dy = operands
    # Resets from the head of a chunk to a step, and those behind the step.
    cut, cut_after = (None, None) if resets is None else (resets.cumsum(3), _behind(resets))
    since, after = unless(cut, g.cumsum(3).exp()), unless(cut_after, _behind(g).exp())
    added = unless(cut_after, x).mT @ (unless(cut_after, a) * after)
    asked = unless(cut, dy).mT @ (unless(cut, c) * since)
    whole, ended = since[:, :, :, -1:], None if cut is None else cut[:, :, :, -1:]
    heads = _carried(first, whole, ended, added, False)
    tails = _carried(last, whole, ended, asked, True)
    # What the state at the head does through each output, each input through the adjoint at the
    # tail, and the one through the other.
    through = [c * (dy @ heads), a * (x @ tails), (heads * tails).sum(3, keepdim=True)]
    if g.shape[4] == 1:
        through = [part.sum(4, keepdim=True) for part in through]
    into, out, over = (
        unless(mask, part * weight)
        for part, weight, mask in zip(
            through, (since, after, whole), (cut, cut_after, ended), strict=True
        )
    )
    total = into.flip(3).cumsum(3).flip(3) + _one_later(out.cumsum(3)) + over
    at_once = max(1, _AT_ONCE * g.shape[2] // (g.numel() * _STEPS))
    parts = [t.split(at_once, 2) for t in operands]
    masks = [None] * len(parts[0]) if resets is None else resets.split(at_once, 2)
    return total + torch.cat([_of_pairs(*part) for part in zip(*parts, masks, strict=True)], 2)


def _one_later(tensor: Tensor) -> Tensor:
    return F.pad(tensor[:, :, :, :-1], (0, 0, 1, 0))


def _behind(tensor: Tensor) -> Tensor:
    """The sum of what comes after a step of a chunk."""
    return F.pad(tensor[:, :, :, 1:], (0, 0, 0, 1)).flip(3).cumsum(3).flip(3)


def _carried(
    state: Tensor, whole: Tensor, ended: Tensor | None, added: Tensor, backward: bool
) -> Tensor:
    """The states, or their adjoints, that chunks begin with."""
    states = torch.empty_like(added)
    for n in range(added.shape[2])[:: -1 if backward else 1]:
        states[:, :, n] = state
        decayed = unless(None if ended is None else ended[:, :, n], whole[:, :, n] * state)
        state = decayed + added[:, :, n]
    return states


def _of_pairs(
    g: Tensor, a: Tensor, x: Tensor, c: Tensor, dy: Tensor, resets: Tensor | None
) -> Tensor:
    """Sum, for every gate, what inputs before it do through outputs behind it, in one chunk."""
    at = torch.arange(g.shape[3], device=g.device)
    is_early = (at[:, None] <= at)[..., None]  # an output (row) that no gate parts from the input

    def between(tensor: Tensor) -> Tensor:
        return tensor.unsqueeze(4).masked_fill(is_early, 0).cumsum(3)

    weights = dy @ x.mT
    if g.shape[4] == 1:
        pairs = (weights * (c @ a.mT)).unsqueeze(5)
    else:
        pairs = weights.unsqueeze(5) * c.unsqueeze(4) * a.unsqueeze(3)
    pairs *= between(g).exp_()
    if resets is not None:
        pairs.masked_fill_(between(resets).bool(), 0)
    before = pairs.masked_fill_(is_early, 0).cumsum(4)
    return _one_later(before.masked_fill_(is_early, 0).sum(3))
