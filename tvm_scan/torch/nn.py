"""Layers made of the scans, each with ``step`` for decoding one element at a time.

Sequences are (batch, length, features). ``forward`` takes and returns a state, so that a long
sequence may come in pieces; ``step`` takes (batch, features) and the state.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tvm_scan.torch.arguments import check, wide
from tvm_scan.torch.functions.mamba import selective_scan
from tvm_scan.torch.layer import Layer, LinearLayer

__all__ = ["LRU", "Mamba", "MambaState", "MinGRU"]


class MambaState(NamedTuple):
    """The state of a `Mamba` layer: the last inputs of its convolution, and the hidden state.

    Attributes
    ----------
    window : Tensor
        (batch, inner, d_conv - 1).
    hidden : Tensor
        (batch, inner, d_state).
    """

    window: Tensor
    hidden: Tensor


class Mamba(Layer):
    """The Mamba block (Gu and Dao 2023, arXiv 2312.00752).

    Parameters are named and shaped as in mamba-ssm's ``Mamba`` and Hugging Face's
    ``MambaMixer``, so that ``load_state_dict`` takes the weights of either.

    Parameters
    ----------
    d_model : int
        Features in and out.
    d_state, d_conv, expand : int
        States of a channel, width of the convolution, inner channels over `d_model`.
    dt_rank : int, optional
        Rank of the step size's projection; ``ceil(d_model / 16)`` by default.
    conv_bias, bias : bool
        Whether the convolution, and the projections in and out, have a bias.
    """

    def __init__(
        self,
        d_model: int,
        d_state: int = 16,
        d_conv: int = 4,
        expand: int = 2,
        dt_rank: int | None = None,
        conv_bias: bool = True,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self._check_sizes(d_model=d_model, d_state=d_state, d_conv=d_conv, expand=expand)
        if dt_rank is not None:
            self._check_sizes(dt_rank=dt_rank)
        inner = expand * d_model
        self.inner, self.d_state, self.d_conv = inner, d_state, d_conv
        self.dt_rank = math.ceil(d_model / 16) if dt_rank is None else dt_rank
        self.in_proj = nn.Linear(d_model, 2 * inner, bias=bias)
        self.conv1d = nn.Conv1d(inner, inner, d_conv, groups=inner, bias=conv_bias)
        self.x_proj = nn.Linear(inner, self.dt_rank + 2 * d_state, bias=False)
        self.dt_proj = nn.Linear(self.dt_rank, inner)
        self.A_log = nn.Parameter(torch.arange(1.0, d_state + 1).log().repeat(inner, 1))
        self.D = nn.Parameter(torch.ones(inner))
        self.out_proj = nn.Linear(inner, d_model, bias=bias)
        with torch.no_grad():
            # Step sizes between 0.001 and 0.1, evenly in their logarithm.
            nn.init.uniform_(self.dt_proj.weight, -(self.dt_rank**-0.5), self.dt_rank**-0.5)
            dt = torch.exp(torch.empty(inner).uniform_(math.log(1e-3), math.log(1e-1)))
            self.dt_proj.bias.copy_(dt + torch.log(-torch.expm1(-dt)))  # softplus undone

    def _features(self) -> int:
        return self.in_proj.in_features

    def _axes_of_states(self) -> dict[str, tuple[int, ...]]:
        return {"window": (self.inner, self.d_conv - 1), "hidden": (self.inner, self.d_state)}

    def _check_call(self, x: Tensor, axes: str, state: MambaState) -> None:
        fits = isinstance(state, MambaState)
        expected, fix = "state as a MambaState", "pass what a call before returned"
        check(fits, self._owner, expected, type(state).__name__, fix)
        self._check(x, axes, **state._asdict())

    def initial_state(self, batch: int) -> MambaState:
        """Return the state before the first step: zeros."""
        return MambaState(
            self.D.new_zeros(batch, self.inner, self.d_conv - 1),
            wide(self.A_log).new_zeros(batch, self.inner, self.d_state),
        )

    def forward(self, x: Tensor, state: MambaState | None = None) -> tuple[Tensor, MambaState]:
        """Run a sequence.

        Parameters
        ----------
        x : Tensor
            (batch, length, d_model).
        state : MambaState, optional
            Where an earlier piece of the sequence ended.

        Returns
        -------
        tuple of Tensor and MambaState
            Outputs, with the shape of `x`, and the state after them.
        """
        if state is None:
            self._check(x, "batch, length, d_model")
            state = self.initial_state(x.shape[0])
        else:
            self._check_call(x, "batch, length, d_model", state)
        u, z = self.in_proj(x).transpose(1, 2).chunk(2, 1)
        padded = torch.cat((state.window.to(u.dtype), u), 2)
        window = padded[:, :, padded.shape[2] - (self.d_conv - 1) :]
        u = F.silu(self.conv1d(padded)) if x.shape[1] else u
        sizes = (self.dt_rank, self.d_state, self.d_state)
        dt, B, C = self.x_proj(u.transpose(1, 2)).split(sizes, 2)
        delta = F.linear(dt, self.dt_proj.weight).transpose(1, 2)
        y, hidden = selective_scan(
            u,
            delta,
            -torch.exp(wide(self.A_log)),
            B.transpose(1, 2),
            C.transpose(1, 2),
            self.D,
            z,
            self.dt_proj.bias,
            delta_softplus=True,
            h0=state.hidden,
            return_last=True,
        )
        return self.out_proj(y.transpose(1, 2)), MambaState(window, hidden)

    def step(self, x: Tensor, state: MambaState) -> tuple[Tensor, MambaState]:
        """Run one step in plain torch: (batch, d_model) and the state before it."""
        self._check_call(x, "batch, d_model", state)
        u, z = self.in_proj(x).chunk(2, 1)
        window = torch.cat((state.window.to(u.dtype), u.unsqueeze(2)), 2)
        u = F.silu(self.conv1d(window).squeeze(2))
        dt, *projected = self.x_proj(u).split((self.dt_rank, self.d_state, self.d_state), 1)
        dt = wide(F.linear(dt, self.dt_proj.weight)) + wide(self.dt_proj.bias)
        dt = F.softplus(dt).unsqueeze(2)
        # What is computed from here on is float32 at least, as in the scan.
        u, z, B, C = (wide(t) for t in (u, z, *projected))
        decay = torch.exp(dt * -torch.exp(wide(self.A_log)))
        hidden = decay * state.hidden + dt * B.unsqueeze(1) * u.unsqueeze(2)
        y = ((hidden * C.unsqueeze(1)).sum(2) + wide(self.D) * u) * F.silu(z)
        return self.out_proj(y.to(window.dtype)), MambaState(window[:, :, 1:], hidden)


class LRU(LinearLayer):
    """The linear recurrent unit (Orvieto et al. 2023, arXiv 2303.06349).

    ``h = lambda h + gamma (B x); y = Re(C h) + D x`` with complex diagonal ``lambda`` inside the
    unit circle, by `linear_recurrence` on complex gates.

    Parameters
    ----------
    d_model, d_state : int
        Features in and out; complex states.
    radii : tuple of float
        Range of the initial moduli of ``lambda``.
    """

    _mixes = _complex = True

    def __init__(
        self, d_model: int, d_state: int, radii: tuple[float, float] = (0.9, 0.999)
    ) -> None:
        super().__init__()
        self._check_sizes(d_model=d_model, d_state=d_state)
        low, high = radii
        check(0 < low <= high < 1, "nn.LRU", "radii with 0 < low <= high < 1", radii, "shrink them")
        modulus = torch.sqrt(torch.rand(d_state) * (high**2 - low**2) + low**2)
        self.nu_log = nn.Parameter(torch.log(-torch.log(modulus)))
        self.theta_log = nn.Parameter(torch.log(torch.rand(d_state) * math.pi + 1e-4))
        self.B = nn.Parameter(torch.randn(d_state, d_model, 2) / math.sqrt(2 * d_model))
        self.C = nn.Parameter(torch.randn(d_model, d_state, 2) / math.sqrt(d_state))
        self.D = nn.Parameter(torch.randn(d_model))

    def _features(self) -> int:
        return len(self.D)

    def _axes_of_states(self) -> dict[str, tuple[int, ...]]:
        return {"state": (len(self.nu_log),)}

    def gates(self) -> Tensor:
        """Return ``lambda``, complex (d_state,); of parameters in halves, that of float32."""
        nu, theta = (torch.exp(wide(t)) for t in (self.nu_log, self.theta_log))
        return torch.polar(torch.exp(-nu), theta)

    def initial_state(self, batch: int) -> Tensor:
        """Return the state before the first step: complex zeros (batch, d_state)."""
        dtype = wide(self.B).dtype.to_complex()
        return self.B.new_zeros(batch, len(self.nu_log), dtype=dtype)

    def _terms(self, x: Tensor) -> tuple[Tensor, Tensor]:
        gates, B = self.gates(), torch.view_as_complex(wide(self.B))
        return gates, torch.sqrt(1 - gates.abs() ** 2) * F.linear(x.to(B.dtype), B)

    def _emit(self, h: Tensor, x: Tensor) -> Tensor:
        y = F.linear(h, torch.view_as_complex(wide(self.C))).real + wide(self.D) * x
        return y.to(torch.promote_types(x.dtype, self.D.dtype))


class MinGRU(LinearLayer):
    """The minimal gated recurrent unit (Feng et al. 2024, arXiv 2410.01201).

    ``z = sigmoid(W x); h = (1 - z) h + z (V x)``: gates that do not see the state, so that the
    recurrence is linear.

    Parameters
    ----------
    d_model, d_hidden : int
        Features in, and out.
    """

    def __init__(self, d_model: int, d_hidden: int) -> None:
        super().__init__()
        self._check_sizes(d_model=d_model, d_hidden=d_hidden)
        self.gate = nn.Linear(d_model, d_hidden)
        self.candidate = nn.Linear(d_model, d_hidden)

    def _features(self) -> int:
        return self.gate.in_features

    def _axes_of_states(self) -> dict[str, tuple[int, ...]]:
        return {"state": (self.gate.out_features,)}

    def initial_state(self, batch: int) -> Tensor:
        """Return the state before the first step: zeros (batch, d_hidden)."""
        return self.gate.weight.new_zeros(batch, len(self.gate.weight))

    def _terms(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.gate(x)
        # 1 - sigmoid(z), without cancellation
        return torch.sigmoid(-z), torch.sigmoid(z) * self.candidate(x)
