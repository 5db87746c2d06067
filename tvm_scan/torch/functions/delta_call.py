"""A call of a function of the delta rule: its options, and the states of sequences."""

from __future__ import annotations

from numbers import Number
from typing import Any

import torch
from torch import Tensor

from tvm_scan.torch.arguments import check, offsets_of, wide_dtype
from tvm_scan.torch.kernels.events import converted, told
from tvm_scan.torch.ops.delta import delta_scan, delta_step
from tvm_scan.torch.ops.delta_tensors import DeltaTensors


class DeltaCall:
    """One call, whose arguments are gathered first.

    Parameters
    ----------
    owner : str
        The function.
    q, k, v : Tensor
        As it takes them.
    scale : float or None
        Of the queries.
    normalise : bool
        Whether queries and keys are divided by their norm.
    """

    def __init__(
        self,
        owner: str,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        scale: float | None,
        normalise: bool,
    ) -> None:
        self.owner = owner
        heads, values = q.shape[2], v.shape[2]
        if values % heads if heads else values:
            expected = f"heads of q that divide the {values} of v into groups"
            check(False, owner, expected, heads, "repeat or drop heads")
        is_number = scale is None or isinstance(scale, (Number, torch.SymInt, torch.SymFloat))
        check(is_number, owner, "a scale that is a number", type(scale).__name__, "take its item()")
        self.scale = scale
        #: By the names of `DeltaTensors`, those that are there.
        self.tensors = {"q": q, "k": k, "v": v}
        unit = ["unit"] if normalise else []
        #: What is read of each tensor; see `tvm_scan.reads`.
        self.reads = {"q": [*unit, "times scale"], "k": unit}

    def rate(self, beta: Tensor, sigmoid: bool, negative: bool) -> None:
        """Set how much of what the state has for a key is replaced."""
        if negative and not sigmoid:
            fix = "pass use_beta_sigmoid_in_kernel, or beta as it shall be"
            check(False, self.owner, "beta's logits with allow_neg_eigval", "beta itself", fix)
        self.tensors["beta"] = beta
        self.reads["beta"] = ["sigmoid"] * sigmoid + ["times 2"] * negative

    def gate(
        self,
        g: Tensor,
        compute: bool = False,
        A_log: Tensor | None = None,
        bias: Tensor | None = None,
        bound: float | None = None,
    ) -> None:
        """Set the logarithms of the gates."""
        names = {"A_log": A_log, "dt_bias": bias, "lower_bound": bound}
        unused = [name for name, value in names.items() if value is not None]
        self.tensors["g"] = g
        if not compute:
            fix = "pass use_gate_in_kernel"
            check(not unused, self.owner, "gates that are computed", " and ".join(unused), fix)
            self.reads["w"] = ["exp"]
            return
        learned = {"A_log": A_log, "dt_bias": bias}
        self.tensors |= {name: tensor for name, tensor in learned.items() if tensor is not None}
        plus = [] if bias is None else ["plus dt_bias"]
        rate = [] if A_log is None else ["rate A_log"]
        if bound is not None:
            self.reads["w"] = [*plus, *rate, "sigmoid", f"times {float(bound)!r}", "exp"]
            return
        check(bool(rate), self.owner, "an A_log with use_gate_in_kernel", None, "pass one")
        self.reads["w"] = [*plus, "softplus", *rate, "times -1", "exp"]

    def between(self, state: Tensor | None, offsets: Tensor | None, v_first: bool) -> None:
        """Set the states before time, and where sequences begin."""
        batch, length, _, keys = self.tensors["q"].shape
        if offsets is not None:
            found = (batch, length)
            check(batch == 1, self.owner, "one row of packed sequences", found, "pack them")
            check(offsets.shape[0] > 0, self.owner, "cu_seqlens with a 0 first", "none", "give it")
        sequences = batch if offsets is None else offsets.shape[0] - 1
        _, _, heads, values = self.tensors["v"].shape
        shape = (sequences, heads, *((values, keys) if v_first else (keys, values)))
        if state is not None and tuple(state.shape) != shape:
            expected = f"initial_state of shape {shape}"
            check(False, self.owner, expected, tuple(state.shape), "reshape it")
        self.shape, self.initial, self.v_first = shape, state, v_first
        self.offsets = None if offsets is None else offsets_of(self.owner, offsets, length)

    def run(self, wants_state: bool, in_place: bool) -> tuple[Tensor, Tensor | None]:
        """Return the outputs, and the states after time where they are wanted."""
        named, dtype = self.tensors, self.tensors["v"].dtype
        if {t.dtype for t in named.values()} not in ({torch.float32}, {torch.float64}):
            common = wide_dtype(*named.values())
            named = {n: converted(t, common) for n, t in named.items()}
        like = named["v"]
        state = self.initial
        if state is None:
            check(not in_place, self.owner, "an initial_state to write to", None, "pass one")
            state = told(Tensor.new_zeros, like, self.shape)
        first = converted(state, like.dtype)
        first = _exchanged(first) if self.v_first else first
        fields: dict[str, Any] = dict.fromkeys(DeltaTensors._fields) | named
        tensors = DeltaTensors(**fields | {"h0": first, "offsets": self.offsets})
        reads = "; ".join(f"{n}: {', '.join(chain)}" for n, chain in self.reads.items() if chain)
        if in_place:
            y = self._in_place(tensors, reads, state)
            return converted(y, dtype), state
        keep = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
        y, last, *_ = delta_scan(*tensors, self.scale, reads, keep)
        if self.v_first:
            last = told(Tensor.contiguous, _exchanged(last))
        return converted(y, dtype), (last if wants_state else None)

    def _in_place(self, tensors: DeltaTensors, reads: str, state: Tensor) -> Tensor:
        recorded = torch.is_grad_enabled() and any(
            t is not None and t.requires_grad for t in tensors
        )
        fix = "call it under torch.no_grad()"
        check(not recorded, self.owner, "no derivative of inplace_final_state", "one", fix)
        y = delta_step(tensors, self.scale, reads) if tensors.h0 is state else None
        if y is None:
            y, last, *_ = delta_scan(*tensors, self.scale, reads, False)
            state.copy_(last.mT if self.v_first else last)
        return y


def _exchanged(states: Tensor) -> Tensor:
    """States with their two last axes exchanged."""
    return told(Tensor.transpose, states, -2, -1)
