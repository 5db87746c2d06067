"""The base of layers: checks of their sizes, and of what they are called with."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tvm_scan.torch.arguments import check, check_devices, check_tensors
from tvm_scan.torch.functions.linear import linear_recurrence


class Layer(nn.Module):
    """A module whose input and state are checked before each call."""

    #: Whether the input may be of another dtype than the parameters.
    _mixes = False
    #: Whether states may be complex.
    _complex = False

    @property
    def _owner(self) -> str:
        return f"nn.{type(self).__name__}"

    def _features(self) -> int:
        """Return the features of an input."""
        raise NotImplementedError

    def _axes_of_states(self) -> dict[str, tuple[int, ...]]:
        """Return the axes of each tensor of a state, behind the batch."""
        raise NotImplementedError

    def _check_sizes(self, **sizes: object) -> None:
        """Raise unless every size is an integer above zero."""
        for name, size in sizes.items():
            fits = isinstance(size, int) and not isinstance(size, bool) and size > 0
            check(fits, self._owner, f"{name} as an integer above 0", repr(size), "pass its size")

    def _check(self, x: Tensor, axes: str, **states: Tensor) -> None:
        """Raise unless input, states and all parameters fit together."""
        owner, parameters = self._owner, dict(self.named_parameters())
        check_tensors(owner, x=x, **states)
        check_devices(owner, {"x": x, **parameters})
        fits = x.dim() == axes.count(",") + 1 and x.shape[-1] == self._features()
        expected = f"x of ({axes}) with d_model {self._features()}"
        check(fits, owner, expected, tuple(x.shape), "reshape or transpose it")
        dtype = next(iter(parameters.values())).dtype
        free = self._mixes or torch.is_autocast_enabled(x.device.type)
        fits = x.is_floating_point() and (free or x.dtype == dtype)
        check(fits, owner, f"x of {'floats' if free else dtype}", x.dtype, "convert it with .to")
        for name, tail in self._axes_of_states().items() if states else ():
            state = states[name]
            fits = tuple(state.shape) == (x.shape[0], *tail)
            expected = f"{name} of (batch, {', '.join(map(str, tail))}) with the batch of x"
            check(fits, owner, expected, tuple(state.shape), "pass what a call before returned")
            fits = state.is_floating_point() or (self._complex and state.is_complex())
            expected = f"{name} of {'complex numbers' if self._complex else 'floats'}"
            check(fits, owner, expected, state.dtype, "pass what a call before returned")


class LinearLayer(Layer):
    """A layer whose state is that of a linear recurrence, whose gates do not see it."""

    def _terms(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gates of every step, and what it adds to the state."""
        raise NotImplementedError

    def _emit(self, h: Tensor, x: Tensor) -> Tensor:
        """Return the outputs, given the states after the steps."""
        return h

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Run a sequence (batch, length, d_model) from a state; return outputs and the state."""
        self._check(x, "batch, length, d_model", **({} if state is None else {"state": state}))
        h, last = linear_recurrence(*self._terms(x), state, dim=1, return_last=True)
        return self._emit(h, x), last

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Run one step: (batch, d_model) and the state before it."""
        self._check(x, "batch, d_model", state=state)
        gates, drive = self._terms(x)
        h = gates * state + drive
        return self._emit(h, x), h
