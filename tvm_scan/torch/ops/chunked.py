"""The selective scan chunk by chunk, of torch's operators: what the kernels do not compute.

That is a complex `A`, and the derivative of the adjoint. The parts of a chunk, `expanded` and
`expanded_adjoint`, hold every state of that chunk; between chunks there are states at the heads
and adjoints at the tails alone. So memory is that of the inputs, plus a few times ``length /
CHUNK`` states, plus a few times the states of one chunk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tvm_scan.torch.arguments import wide_of
from tvm_scan.torch.ops.expanded import expanded, expanded_adjoint
from tvm_scan.torch.ops.selective_tensors import SelectiveTensors
from tvm_scan.torch.private import transforms_active

#: Steps in a chunk: the heads of the chunks then take states / CHUNK times one input.
CHUNK = 32

_TIMED = ("u", "delta", "B", "C", "z", "reset", "g_out")
#: Arguments by name, without those that are None.
Named = Mapping[str, Tensor]


def forward(
    named: Named, first: Tensor, softplus: bool, reverse: bool
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Return the output, the last state, and the states at the heads of chunks."""
    outputs, heads = [], []
    state, length = first, named["u"].shape[3]
    for index in range(_count(length)):
        heads.append(state)
        part = _chunk(named, length, index, reverse)
        out, state = expanded(_bundle(_wide(part), state), softplus, reverse)
        outputs.append(out.to(named["u"].dtype))
    return _joined(outputs, named["u"], reverse), state, heads


def adjoint(
    named: Named,
    g_out: Tensor,
    g_last: Tensor,
    heads: Sequence[Tensor],
    softplus: bool,
    reverse: bool,
) -> dict[str, Tensor]:
    """Return the gradients by name, in the dtypes of the arguments; `h0` in that of the state."""
    sums = _Sums(named, reverse)
    with_upstream, carry, length = {**named, "g_out": g_out}, g_last, g_out.shape[3]
    for index in reversed(range(len(heads))):
        part = _wide(_chunk(with_upstream, length, index, reverse))
        bundle = _bundle(part, heads[index])
        gradients = expanded_adjoint(part["g_out"], carry, bundle, softplus, reverse)
        carry = gradients.pop("h0")
        sums.add(index, gradients)
    return {**sums.totals(), "h0": carry}


def second(
    named: Named,
    g_out: Tensor,
    g_last: Tensor,
    heads: Sequence[Tensor],
    wanted: Named,
    softplus: bool,
    reverse: bool,
) -> dict[str, Tensor]:
    """Return the gradients of the sum of what `adjoint` returns, weighted by `wanted`.

    With heads ``h``, tails ``p``, ``h[k+1] = F(h[k])`` and ``p[k], g[k] = G(h[k], p[k+1])`` for
    each chunk, the weights of p go forward in time through G, and those of h back through F.

    Returns
    -------
    dict of Tensor
        By the names of the arguments, and ``g_out``, ``g_last`` and ``h0``.
    """
    with_upstream, count, length = {**named, "g_out": g_out}, len(heads), g_out.shape[3]
    tails = [g_last] * count
    with torch.no_grad():
        for index in reversed(range(1, count)):
            part = _wide(_chunk(with_upstream, length, index, reverse))
            bundle = _bundle(part, heads[index])
            gradients = expanded_adjoint(part["g_out"], tails[index], bundle, softplus, reverse)
            tails[index - 1] = gradients["h0"]
    sums = _Sums(with_upstream, reverse)
    weight = wanted.get("h0", torch.zeros_like(g_last))
    to_heads = []
    for index in range(count):
        part = _wide(_chunk(with_upstream, length, index, reverse))
        part |= {"g_last": tails[index], "h0": heads[index]}
        weights = {**_chunk(wanted, length, index, reverse), "h0": weight}
        gradients = _weighted_gradient(part, weights, softplus, reverse)
        to_heads.append(gradients.pop("h0"))
        weight = gradients.pop("g_last")
        sums.add(index, gradients)
    carry = None
    with torch.no_grad():
        for index in reversed(range(count)):
            if carry is not None:
                bundle = _bundle(_wide(_chunk(named, length, index, reverse)), heads[index])
                zero = torch.zeros_like(bundle.u)
                gradients = expanded_adjoint(zero, carry, bundle, softplus, reverse)
                to_heads[index] = to_heads[index] + gradients.pop("h0")
                sums.add(index, gradients)
            carry = to_heads[index]
    carry = torch.zeros_like(g_last) if carry is None else carry
    return {**sums.totals(), "g_last": weight, "h0": carry}


def _weighted_gradient(
    part: Named, weights: Named, softplus: bool, reverse: bool
) -> dict[str, Tensor]:
    """Differentiate the weighted sum of a chunk's gradients."""
    names = [n for n in part if n != "reset"]
    asked = {n: w for n, w in weights.items() if n in part}

    def weighted(*values: Tensor) -> tuple[Tensor, ...]:
        every = {**part, **dict(zip(names, values, strict=True))}
        bundle = _bundle(every, every["h0"])
        grads = expanded_adjoint(every["g_out"], every["g_last"], bundle, softplus, reverse)
        return tuple(grads[n] for n in asked)

    def like(grads: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(w.to(g.dtype) for w, g in zip(asked.values(), grads, strict=True))

    inputs = [part[n] for n in names]
    if transforms_active():  # which forbid autograd.grad
        transformed: Any = torch.func.vjp(weighted, *inputs)  # three only of one with has_aux
        grads, pull = transformed
        gradients = pull(like(grads))
    else:
        with torch.enable_grad():
            leaves = [t.detach().requires_grad_() for t in inputs]
            grads = weighted(*leaves)
            gradients = torch.autograd.grad(
                grads, leaves, like(grads), allow_unused=True, materialize_grads=True
            )
    return dict(zip(names, gradients, strict=True))


def _count(length: int) -> int:
    return -(-length // CHUNK)


def _chunk(named: Named, length: int, index: int, reverse: bool) -> dict[str, Tensor]:
    """Arguments' parts that belong to a chunk; `index` counts as the scan goes."""
    steps = min(CHUNK, length - index * CHUNK)
    start = length - index * CHUNK - steps if reverse else index * CHUNK
    return {
        name: tensor.narrow(-1, start, steps) if _varies(name, tensor) else tensor
        for name, tensor in named.items()
    }


def _varies(name: str, tensor: Tensor) -> bool:
    """Return whether an argument has a time axis, its last; B and C may have none."""
    return name in _TIMED and not (name in "BC" and tensor.dim() == 3)


def _wide(part: Named) -> dict[str, Tensor]:
    """The arguments in the dtype of the state where they have another."""
    real = wide_of(part["u"].dtype)
    return {n: t if n == "reset" or t.is_complex() else t.to(real) for n, t in part.items()}


def _bundle(named: Mapping[str, Any], h0: Tensor) -> SelectiveTensors:
    """Tensors of the scan, None for absent ones, and the state before it."""
    fields: dict[str, Any] = {name: named.get(name) for name in SelectiveTensors._fields}
    return SelectiveTensors(**(fields | {"h0": h0}))


def _joined(parts: Sequence[Tensor], like: Tensor, reverse: bool) -> Tensor:
    """Chunks in the order of the scan, as one tensor."""
    if not parts:
        return torch.zeros_like(like)
    return torch.cat(tuple(parts[::-1] if reverse else parts), -1)


class _Sums:
    """Gradients of all chunks: side by side where there is time, else added up."""

    def __init__(self, named: Named, reverse: bool) -> None:
        self._named, self._reverse = named, reverse
        self._parts: dict[tuple[str, int], Tensor] = {}
        self._count = _count(named["u"].shape[3])

    def add(self, index: int, gradients: Named) -> None:
        """Add the gradients of one chunk."""
        for name, part in gradients.items():
            timed = _varies(name, self._named[name])
            # What is added up over chunks stays in the dtype of the state.
            key = (name, index if timed else 0)
            self._parts[key] = self._parts[key] + part if key in self._parts else part

    def totals(self) -> dict[str, Tensor]:
        """The gradients, in the dtypes of the arguments."""
        totals = {}
        for name, like in self._named.items():
            if name == "reset":
                continue
            if not _varies(name, like):
                total = self._parts.get((name, 0), torch.zeros_like(like))
            else:
                parts = [self._parts[name, i] for i in range(self._count)]
                total = _joined(parts, like, self._reverse)
            totals[name] = total.to(like.dtype)
        return totals
