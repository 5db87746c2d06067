"""Running extrema as torch operators: values, positions, and the gradient of the values.

On arrays (outer, length, inner). What is traced or differentiated in forward mode takes the
positions alone, and gathers: those are operators that everything knows.
"""

from typing import Any

import torch
from torch import Tensor

from tvm_scan.torch.declare.operator import operator
from tvm_scan.torch.kernels.runtime import aligned_empty, aligned_like
from tvm_scan.torch.ops.frame import run_framed


@operator(like="x:int64")
def positions(x: Tensor, smallest: bool, reverse: bool) -> Tensor:
    """Say where the running maximum (or minimum) along the middle axis was taken.

    As torch does it: of equal values the latest, and a NaN beats every number. The values are
    ``x.gather(1, positions)``, whose derivative is torch's own.
    """
    out = aligned_empty(x.shape, torch.int64, x.device)
    if x.numel():
        options = {"smallest": smallest, "reverse": reverse, "has_values": False}
        run_framed("extremum", x, (x, out), **options)
    return out


def running_maximum(x: Tensor, reverse: bool) -> Tensor:
    """Running maximum along the middle axis, alone."""
    values = aligned_like(x)
    if x.numel():
        options = {"smallest": False, "reverse": reverse, "has_indices": False}
        run_framed("extremum", x, (x, values), **options)
    return values


@operator(like="x x:int64")
def extremum(x: Tensor, smallest: bool, reverse: bool) -> tuple[Tensor, Tensor]:
    """Running maximum (or minimum) along the middle axis, and the `positions` of it."""
    values = aligned_like(x)
    where = aligned_empty(x.shape, torch.int64, x.device)
    if x.numel():
        run_framed("extremum", x, (x, values, where), smallest=smallest, reverse=reverse)
    return values, where


def _backward(ctx: Any, grad: Tensor | None, _: Tensor | None) -> Tensor | None:
    (where,) = ctx.saved_tensors
    return None if grad is None else extremum_gradient(grad, where, ctx.reverse)


# torch would make zeros for the positions.
extremum.gradient(_backward, "results[1]", zeros=False)


@operator(like="grad")
def extremum_gradient(grad: Tensor, where: Tensor, reverse: bool) -> Tensor:
    """Add up the gradients of what was taken at each step."""
    out = aligned_like(grad)
    if grad.numel():
        run_framed("extremum_gradient", grad, (grad, where, out), reverse=reverse)
    return out


def _backward_gradient(ctx: Any, grad: Tensor) -> Tensor:
    (where,) = ctx.saved_tensors
    return grad.gather(1, where)


extremum_gradient.gradient(_backward_gradient, "where")
