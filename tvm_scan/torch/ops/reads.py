"""Chains of `tvm_scan.reads` by operators of torch.

For what no kernel computes: derivatives of higher order, programs that are exported, and the GPU.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from tvm_scan.reads import LEAST, Chain, Link


def value_of(chain: Chain, x: Tensor, parameters: Mapping[str, Tensor | float]) -> Tensor:
    """Return what a chain makes of a tensor.

    Parameters
    ----------
    chain : Chain
        The functions.
    x : Tensor
        Rows along the last axis.
    parameters : mapping
        By name, of shapes that extend to that of `x`.

    Returns
    -------
    Tensor
        Like `x`.
    """
    for link in chain:
        x = _value(link, x, parameters)
    return x


def _value(link: Link, x: Tensor, parameters: Mapping[str, Tensor | float]) -> Tensor:
    by = parameters[link.by] if isinstance(link.by, str) else link.by or 0.0
    if link.name == "unit":
        squares = x.square().sum(-1, keepdim=True)  # no product that autocast would round
        return x * (squares + LEAST).rsqrt()
    if link.name == "times":
        return x * by
    if link.name == "plus":
        return x + by
    if link.name == "rate":
        return torch.as_tensor(by).exp() * x
    if link.name == "exp":
        return x.exp()
    if link.name == "sigmoid":
        return x.sigmoid()
    assert link.name == "softplus", link
    return F.softplus(x)
