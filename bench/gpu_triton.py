"""The affine scan in Triton, as a user of ``tl.associative_scan`` writes it: a program per row."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

__all__ = ["affine"]


@triton.jit
def _combine(a1, b1, a2, b2):  # type: ignore[no-untyped-def]
    return a2 * a1, a2 * b1 + b2


@triton.jit
def _kernel(a_ptr, x_ptr, h_ptr, length, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64) * length
    carry = 0.0
    for start in range(0, length, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < length
        a = tl.load(a_ptr + row + at, mask=inside, other=1.0).to(tl.float32)
        x = tl.load(x_ptr + row + at, mask=inside, other=0.0).to(tl.float32)
        gates, sums = tl.associative_scan((a, x), 0, _combine)
        h = gates * carry + sums
        tl.store(h_ptr + row + at, h.to(h_ptr.dtype.element_ty), mask=inside)
        carry = tl.sum(tl.where(tl.arange(0, BLOCK) == BLOCK - 1, h, 0.0), 0)


def affine(a: Any, x: Any) -> Any:
    """``h[t] = a[t] h[t-1] + x[t]`` along the last of two axes."""
    h = torch.empty_like(x)
    block = min(2048, triton.next_power_of_2(x.shape[1]))
    _kernel[(x.shape[0],)](a, x, h, x.shape[1], BLOCK=block, num_warps=max(1, block // 512))
    return h
