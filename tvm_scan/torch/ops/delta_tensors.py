"""The tensors of a delta rule, in the order in which the operators take them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor


class DeltaTensors(NamedTuple):
    """The tensors that a delta rule reads, all of one wide dtype.

    Attributes
    ----------
    q, k : Tensor
        (batch, length, heads, keys).
    v : Tensor
        (batch, length, value heads, values).
    g : Tensor or None
        Logarithms of the gates, (batch, length, value heads) or with an axis of keys.
    beta : Tensor or None
        (batch, length, value heads): the rate of a delta rule with one vector.
    a, b : Tensor or None
        Like `k`, of the rule with two vectors, that has no rate: what reads the state, and what
        is added with what it read.
    A_log, dt_bias : Tensor or None
        Parameters of what is read of `g`: (value heads,), and like `g` without its first axes.
    h0 : Tensor
        States before time, (sequences, value heads, keys, values).
    offsets : Tensor or None
        (sequences + 1,), int64: where sequences begin that are packed into one row.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor | None
    beta: Tensor | None
    a: Tensor | None
    b: Tensor | None
    A_log: Tensor | None
    dt_bias: Tensor | None
    h0: Tensor
    offsets: Tensor | None

    @property
    def timed(self) -> dict[str, Tensor]:
        """The tensors that have tokens, by name."""
        named = self._asdict()
        return {n: named[n] for n in TIMED if named[n] is not None}

    @property
    def learned(self) -> dict[str, Tensor]:
        """The parameters of what is read, by name."""
        named = self._asdict()
        return {n: named[n] for n in LEARNED if named[n] is not None}

    @property
    def differentiable(self) -> tuple[str, ...]:
        """Names of the tensors that are there and have gradients, in order."""
        return (*self.timed, *self.learned, "h0")

    @property
    def group(self) -> int:
        """Number of heads of values for each of keys."""
        heads = self.q.shape[2]
        return self.v.shape[2] // heads if heads else 1

    def scaled_by(self, scale: float | None) -> float:
        """Return the scale of the queries; of None, that of their number of keys.

        Which a program that is traced with a symbol for that number would be bound to.
        """
        if scale is not None:
            return scale
        keys = self.q.shape[3]
        return float(keys**-0.5) if keys else 1.0

    def options(self) -> Mapping[str, object]:
        """Return constants of the loops."""
        gate = "none" if self.g is None else ("head" if self.g.dim() == 3 else "key")
        return {
            "gate": gate,
            "group": self.group,
            "keys": self.q.shape[3],
            "rule": "general" if self.beta is None else "delta",
            "values": self.v.shape[3],
        }


#: Names of what has tokens.
TIMED = ("q", "k", "v", "g", "beta", "a", "b")
#: Names of the parameters of what is read.
LEARNED = ("A_log", "dt_bias")
