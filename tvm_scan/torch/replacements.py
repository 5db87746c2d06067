"""Ours for the functions of transformers' models, by the names that they have there.

Each is made of the function that it replaces, which serves what is not run here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from tvm_scan.torch.arguments import check
from tvm_scan.torch.compat import mamba_chunk_scan_combined, starts_of
from tvm_scan.torch.functions.convolution import ACTIVATIONS, causal_conv1d
from tvm_scan.torch.functions.delta import gated_delta_rule, kda
from tvm_scan.torch.functions.mamba import selective_scan

_Result = Tensor | tuple[Tensor, ...]
#: The convolution before every scan.
CONVOLUTION = "causal_conv1d_fn"


def _here(tensor: Tensor) -> bool:
    return tensor.device.type in ("cpu", "cuda", "meta")


def _selective(original: Callable[..., _Result]) -> Callable[..., _Result]:
    @functools.wraps(original)
    def scan(
        hidden_states: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor | None = None,
        z: Tensor | None = None,
        delta_bias: Tensor | None = None,
        delta_softplus: bool = False,
        return_last_state: bool = False,
        **options: Any,
    ) -> _Result:
        operands = (hidden_states, dt, A, B, C, D, z, delta_bias)
        if not _here(hidden_states):
            return original(*operands, delta_softplus, return_last_state, **options)
        index = options.get("seq_idx")
        return selective_scan(
            *operands,
            delta_softplus=delta_softplus,
            reset=None if index is None else starts_of(index),
            cu_seqlens=_offsets(options),
            return_last=return_last_state,
        )

    return scan


def _chunked(original: Callable[..., _Result]) -> Callable[..., _Result]:
    @functools.wraps(original)
    def scan(
        hidden_states: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        chunk_size: int,
        D: Tensor | None = None,
        **options: Any,
    ) -> _Result:
        if not _here(hidden_states):
            return original(hidden_states, dt, A, B, C, chunk_size, D=D, **options)
        known = {name: options[name] for name in _CHUNKED if options.get(name) is not None}
        known["cu_seqlens"] = _offsets(options)
        # Its own form returns float32, which the models' norms go on with.
        x = hidden_states.float()
        return mamba_chunk_scan_combined(x, dt, A, B, C, chunk_size, D, **known)

    return scan


#: What the models pass on; other options are of their own kernels.
_CHUNKED: tuple[str, ...]
_CHUNKED = ("z", "dt_bias", "initial_states", "seq_idx", "dt_softplus", "dt_limit")
_CHUNKED += ("return_final_states",)


def _nothing_fused(original: Callable[..., Any]) -> Callable[..., Any]:
    """Leave convolution and scan to each other, where transformers refuses packed sequences."""

    @functools.wraps(original)
    def fused(tokens: Tensor, *arguments: Any, **options: Any) -> Any:
        return None if _here(tokens) else original(tokens, *arguments, **options)

    return fused


def _gated_delta(original: Callable[..., _Result]) -> Callable[..., _Result]:
    return _delta(original, gated_delta_rule)


def _kimi_delta(original: Callable[..., _Result]) -> Callable[..., _Result]:
    return _delta(original, kda)


def _delta(original: Callable[..., _Result], rule: Callable[..., Any]) -> Callable[..., _Result]:
    """Replace a function of the delta rule, whether it goes in chunks or step by step."""

    @functools.wraps(original)
    def scan(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        g: Tensor,
        beta: Tensor,
        *,
        initial_state: Tensor | None = None,
        output_final_state: bool = False,
        use_qk_l2norm_in_kernel: bool = False,
        **options: Any,
    ) -> _Result:
        known: dict[str, Any] = {
            "initial_state": initial_state,
            "output_final_state": output_final_state,
            "use_qk_l2norm_in_kernel": use_qk_l2norm_in_kernel,
        }
        if not _here(query):
            return original(query, key, value, g=g, beta=beta, **known, **options)
        offsets, fix = _offsets(options), "pass the model cu_seq_lens_q"
        told = offsets is not None or options.get("seq_idx") is None
        check(told, original.__name__, "offsets of packed sequences", "seq_idx alone", fix)
        output, last = rule(query, key, value, g, beta, cu_seqlens=offsets, **known)
        return output.to(query.dtype), last

    return scan


def _convolution(original: Callable[..., _Result]) -> Callable[..., _Result]:
    """Keep packed sequences apart, which transformers' own form refuses; else it is as fast."""

    @functools.wraps(original)
    def convolution(
        hidden_states: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: str | None = None,
        **options: Any,
    ) -> _Result:
        index, offsets = options.get("seq_idx"), _offsets(options)
        if index is None and offsets is not None and _here(hidden_states):
            steps = torch.arange(hidden_states.shape[2], device=hidden_states.device)
            index = torch.searchsorted(offsets.to(steps.dtype), steps, right=True)[None]
        if index is None or not _here(hidden_states):
            return original(hidden_states, weight, bias, activation, **options)
        known = activation in ACTIVATIONS
        output = causal_conv1d(
            *(hidden_states, weight, bias), seq_idx=index, activation=activation if known else None
        )
        if known:
            return output
        activated: Tensor = import_module("transformers.activations").ACT2FN[activation](output)
        return activated

    return convolution


def _offsets(options: Mapping[str, Any]) -> Tensor | None:
    """Offsets of packed sequences, by the name of a scan or by that of a model."""
    offsets = options.get("cu_seqlens")
    return options.get("cu_seq_lens_q") if offsets is None else offsets


#: By name: what makes ours of theirs.
REPLACEMENTS: dict[str, Callable[[Callable[..., _Result]], Callable[..., _Result]]] = {
    "mamba_selective_scan": _selective,
    "mamba2_chunk_scan": _chunked,
    "mamba2_split_conv1d_scan_combined": _nothing_fused,
    "torch_chunk_gated_delta_rule": _gated_delta,
    "torch_recurrent_gated_delta_rule": _gated_delta,
    "chunk_kimi_delta_attention": _kimi_delta,
    "recurrent_kimi_delta_attention": _kimi_delta,
    CONVOLUTION: _convolution,
}
