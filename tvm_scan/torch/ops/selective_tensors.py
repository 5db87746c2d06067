"""The tensors of the selective scan, as one bundle."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor


class SelectiveTensors(NamedTuple):
    """Tensors that a selective scan reads.

    Attributes
    ----------
    u, delta : Tensor
        (batch, groups, channels, length), of one dtype with `B`, `C` and `z`.
    A : Tensor
        (groups, channels, states), of the dtype of the state; may be complex.
    B, C : Tensor
        (batch, groups, states, length), or (groups, channels, states) if they are fixed in time;
        with a complex `A` they may be complex.
    D : Tensor or None
        (groups, channels), of the dtype of the state or the real one that goes with it.
    z : Tensor or None
        Like `u`.
    bias : Tensor or None
        Like `D`.
    reset : Tensor or None
        (batch, length), int8.
    h0 : Tensor or None
        (batch, groups, channels, states), like `A`.
    """

    u: Tensor
    delta: Tensor
    A: Tensor
    B: Tensor
    C: Tensor
    D: Tensor | None
    z: Tensor | None
    bias: Tensor | None
    reset: Tensor | None
    h0: Tensor | None

    @property
    def state_shape(self) -> tuple[int, int, int, int]:
        """Shape of the states at one step: (batch, groups, channels, states)."""
        batch, groups, channels, _ = self.u.shape
        return batch, groups, channels, self.A.shape[2]

    @property
    def is_kernel(self) -> bool:
        """Return whether there is a kernel for the states, which are real, and some."""
        return not self.A.is_complex() and bool(self.A.shape[2])

    def named(self) -> dict[str, Tensor]:
        """Tensors that are there, but the first state, by name."""
        return {n: t for n, t in self._asdict().items() if t is not None and n != "h0"}

    @property
    def differentiable(self) -> dict[str, Tensor]:
        """Tensors that are there and have gradients, by name."""
        return {n: t for n, t in self._asdict().items() if t is not None and n != "reset"}

    def options(self) -> dict[str, Any]:
        """Options of the loop that these take: what is there, and what is fixed in time."""
        there = {f"has_{n}": getattr(self, n) is not None for n in ("D", "z", "bias", "reset")}
        return there | {"fixed_B": self.B.dim() == 3, "fixed_C": self.C.dim() == 3}
