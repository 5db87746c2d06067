"""Tests of whether tensors share memory."""

from __future__ import annotations

import torch


def overlap(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Return whether the spans of memory of two tensors meet."""
    if left.numel() == 0 or right.numel() == 0:
        return False
    (a, b), (c, d) = _span(left), _span(right)
    return a < d and c < b


def self_overlap(tensor: torch.Tensor) -> bool:
    """Return whether several elements of a tensor share memory."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.numel() > 0 and any(n > 1 and s == 0 for n, s in pairs)


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """First and one past the last byte that a tensor touches."""
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    start = tensor.data_ptr()
    return start, start + (reach + 1) * tensor.element_size()
