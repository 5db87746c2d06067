"""Delta rules of torch's operators, a chunk of steps at a time: what no kernel computes.

That is the derivative of the adjoint, and the adjoint on a GPU. A chunk has all its states in
memory; between chunks there are the states that they begin with, and the adjoints that they end
with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from tvm_scan.reads import reads_of
from tvm_scan.torch.ops.delta_tensors import LEARNED, DeltaTensors
from tvm_scan.torch.ops.reads import value_of

#: Steps in a chunk.
STEPS = 32
Named = dict[str, Tensor]


class Reading:
    """The reading of tensors through chains, by torch's operators, and the way back.

    Parameters
    ----------
    tensors : DeltaTensors
        As they are given.
    scale : float or None
        Of the queries.
    reads : str
        See `tvm_scan.reads`; `w` are the gates, of which there are the logarithms here.

    Attributes
    ----------
    plain : DeltaTensors
        What is read.
    """

    def __init__(self, tensors: DeltaTensors, scale: float | None, reads: str) -> None:
        self._scale, chains = tensors.scaled_by(scale), reads_of(reads)
        self._chains = {n: c for n, c in chains.items() if n != "w"}
        if tensors.g is not None:
            self._chains["g"] = chains["w"][:-1]
        rows = tensors.v.shape[0]
        # Parameters with a row for each of the batch, as their gradients have.
        learned = {n: t.expand(rows, *t.shape) for n, t in tensors.learned.items()}
        self._raw = tensors.timed | learned
        plain, self._pull = torch.func.vjp(self._read, self._raw)  # type: ignore[misc]
        self.plain = tensors._replace(**plain, A_log=None, dt_bias=None)

    def _read(self, raw: Named) -> Named:
        plain = {n: t for n, t in raw.items() if n not in LEARNED}
        parameters: dict[str, Tensor | float] = {"scale": self._scale}
        for name in raw.keys() & set(LEARNED):
            parameter = raw[name].unsqueeze(1)
            missing = raw["g"].dim() - parameter.dim()
            parameters[name] = parameter.unflatten(-1, (-1, *[1] * missing))
        for name, chain in self._chains.items():
            plain[name] = value_of(chain, raw[name], parameters)
        return plain

    def pull(self, grads: Named) -> Named:
        """Return the gradients of the tensors, given those of what is read."""
        (gradient,) = self._pull({n: grads[n] for n in self.plain.timed})
        return dict(gradient)

    def second(self, grads: Named, weights: Named) -> tuple[Named, Named]:
        """Differentiate ``pull(grads)``, weighted; the gradients of `grads` and of the tensors."""

        def pulled(grads: Named, raw: Named) -> Named:
            (gradient,) = torch.func.vjp(self._read, raw)[1](grads)
            return dict(gradient)

        _, pull = torch.func.vjp(pulled, grads, self._raw)  # type: ignore[misc]
        of_grads, of_raw = pull(weights)
        return of_grads, of_raw


def sequences(tensors: DeltaTensors) -> Iterator[tuple[DeltaTensors, slice, slice]]:
    """Yield sequences that are packed into one row: each alone, and where its state and it lie."""
    if tensors.offsets is None:
        yield tensors, slice(None), slice(None)
        return
    for number, (start, stop) in enumerate(pairwise(tensors.offsets.tolist())):
        timed = {n: t[:, start:stop] for n, t in tensors.timed.items()}
        state = slice(number, number + 1)
        part = tensors._replace(**timed, h0=tensors.h0[state], offsets=None)
        yield part, state, slice(start, stop)


def steps(named: Named, state: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """Return the output and the state after time, step after step."""
    keys = {n: named[n].repeat_interleave(group, 2) for n in "qkab" if n in named}
    outputs = []
    for t in range(named["v"].shape[1]):
        q, k = keys["q"][:, t, :, :, None], keys["k"][:, t, :, :, None]
        v = named["v"][:, t]
        passed = state
        if "g" in named:
            gate = named["g"][:, t].exp()
            passed = state * (gate[..., None, None] if gate.dim() == 2 else gate[..., None])
        if "beta" in named:
            update = named["beta"][:, t, :, None] * (v - (k * passed).sum(2))
            state = passed + k * update.unsqueeze(2)
        else:
            a, b = keys["a"][:, t, :, :, None], keys["b"][:, t, :, :, None]
            read = (a * state).sum(2, keepdim=True)
            state = passed + k * v.unsqueeze(2) + b * read
        outputs.append((q * state).sum(2))
    return torch.stack(outputs, 1), state


def _pull(
    named: Named, state: Tensor, group: int, g_y: Tensor, g_state: Tensor
) -> tuple[Named, Tensor]:
    """Return the gradients of what a chunk reads, and of the state that it begins with."""

    def run(named: Named, state: Tensor) -> tuple[Tensor, Tensor]:
        return steps(named, state, group)

    # The package's types know only the form that has a third result.
    _, pull = torch.func.vjp(run, named, state)  # type: ignore[misc]
    grads, g_head = pull((g_y, g_state))
    return grads, g_head


class _Sequence:
    """One sequence, or several of one length side by side, in chunks.

    Attributes
    ----------
    heads, tails : list of Tensor
        The state before each chunk, and the adjoint of the state after it.
    """

    def __init__(self, tensors: DeltaTensors, g_y: Tensor, g_last: Tensor) -> None:
        self.timed, self.group, self.g_y = tensors.timed, tensors.group, g_y
        length = tensors.v.shape[1]
        self.parts = [slice(n, min(n + STEPS, length)) for n in range(0, length, STEPS)]
        self.heads: list[Tensor] = []
        state = tensors.h0
        for part in self.parts:
            self.heads.append(state)
            if part is not self.parts[-1]:
                state = steps(self.of(part), state, self.group)[1]
        self.tails = [g_last] * len(self.parts)

    def of(self, part: slice) -> Named:
        """Return the tensors of a chunk."""
        return {n: t[:, part] for n, t in self.timed.items()}

    def back(self) -> tuple[Named, Tensor | None]:
        """Return the gradients, and leave the tails."""
        grads: list[Named] = []
        carry = None
        for index in reversed(range(len(self.parts))):
            part, tail = self.parts[index], self.tails[index]
            gradients, carry = _pull(
                self.of(part), self.heads[index], self.group, self.g_y[:, part], tail
            )
            grads.insert(0, gradients)
            if index:
                self.tails[index - 1] = carry
        return _joined(grads), carry


def adjoint(tensors: DeltaTensors, g_y: Tensor, g_last: Tensor) -> tuple[Named, Tensor]:
    """Return the gradients of `delta_scan` by name, and that of the states before time."""
    rows: list[Named] = []
    g_h0 = g_last.clone()
    for part, states, tokens in sequences(tensors):
        grads, carry = _Sequence(part, g_y[:, tokens], g_last[states]).back()
        rows.append(grads)
        if carry is not None:
            g_h0[states] = carry
    return _joined([row for row in rows if row]), g_h0


def second(tensors: DeltaTensors, g_y: Tensor, g_last: Tensor, wanted: Named) -> Named:
    """Return the gradients of the sum of what `adjoint` returns, weighted by `wanted`.

    Between chunks the weights of the adjoints go forward in time, and those of the states back.

    Returns
    -------
    dict of Tensor
        By the names of the tensors, and ``g_y``, ``g_last`` and ``h0``.
    """
    rows: list[Named] = []
    to_last, to_h0 = [], []
    for part, states, tokens in sequences(tensors):
        sequence = _Sequence(part, g_y[:, tokens], g_last[states])
        of_sequence = {n: w[:, tokens] for n, w in wanted.items() if n != "h0"}
        row, last, first = _second(sequence, of_sequence, wanted["h0"][states])
        rows.append(row)
        to_last.append(last)
        to_h0.append(first)
    grads = _joined([row for row in rows if row])
    return grads | {"g_last": torch.cat(to_last), "h0": torch.cat(to_h0)}


def _second(sequence: _Sequence, wanted: Named, weight: Tensor) -> tuple[Named, Tensor, Tensor]:
    group = sequence.group
    sequence.back()  # for its tails
    rows: list[Named] = []
    to_heads: list[Tensor] = []

    def run(named: Named, head: Tensor, g_y: Tensor, tail: Tensor) -> tuple[Named, Tensor]:
        return _pull(named, head, group, g_y, tail)

    for part, head, tail in zip(sequence.parts, sequence.heads, sequence.tails, strict=True):
        operands = (sequence.of(part), head, sequence.g_y[:, part], tail)
        _, pull = torch.func.vjp(run, *operands)  # type: ignore[misc]
        weights = {n: wanted[n][:, part] for n in sequence.timed}
        grads, to_head, g_y, weight = pull((weights, weight))
        rows.append(grads | {"g_y": g_y})
        to_heads.append(to_head)
    carry = torch.zeros_like(weight)
    for index in reversed(range(len(rows))):
        # What was asked of a state later goes on to the chunk that made it.
        part = sequence.parts[index]
        named = sequence.of(part)
        zero = torch.zeros_like(named["v"])
        grads, through = _pull(named, sequence.heads[index], group, zero, carry)
        for name, grad in grads.items():
            rows[index][name] = rows[index][name] + grad
        carry = to_heads[index] + through
    return _joined(rows), weight, carry


def _joined(rows: Sequence[dict[str, Any]]) -> Named:
    """Join the chunks, or the sequences, of everything along time."""
    if not rows:
        return {}
    return {name: torch.cat([row[name] for row in rows], 1) for name in rows[0]}
