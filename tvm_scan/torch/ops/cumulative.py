"""Cumulative sums, products and sums of exponentials as torch operators.

On arrays (outer, length, inner); the adjoints are made of the same operators and of the affine
scan, so that they have derivatives themselves.
"""

from typing import Any

import torch
from torch import Tensor

from tvm_scan.torch.declare.operator import operator
from tvm_scan.torch.kernels.runtime import aligned_like
from tvm_scan.torch.ops.affine import affine_scan, first, shifted
from tvm_scan.torch.ops.direct import run_direct
from tvm_scan.torch.ops.extremum import running_maximum
from tvm_scan.torch.ops.frame import framed_kernel, run_framed

#: The kernel of a cumulative sum or product.
cumulative_spec = framed_kernel("cumulative", "op", "reverse", "exclusive")


@operator
def cumulative(x: Tensor, op: str, reverse: bool, exclusive: bool) -> Tensor:
    """Sum (``op="add"``) or multiply (``"mul"``) along the middle axis."""
    quick = run_direct(cumulative_spec, (op, reverse, exclusive), 1, (x,))
    if quick is not None:
        return quick
    out = aligned_like(x)
    if x.is_complex():
        if op == "add":
            parts = torch.view_as_real(x).flatten(2)
            total = cumulative(parts, op, reverse, exclusive)
            return torch.view_as_complex(total.view(*x.shape, 2))
        start = torch.ones_like(x[:, 0]) if x.shape[1] else None
        emit = "exclusive" if exclusive else "inclusive"
        return affine_scan(x, torch.zeros_like(x), start, None, emit, reverse)
    if x.numel():
        run_framed("cumulative", x, (x, out), op=op, reverse=reverse, exclusive=exclusive)
    return out


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, ctx.op, ctx.reverse, ctx.exclusive = inputs
    ctx.save_for_backward(*((x, output) if ctx.op == "mul" else ()))


def _backward(ctx: Any, grad: Tensor) -> Tensor:
    if ctx.op == "add":
        return cumulative(grad, "add", not ctx.reverse, ctx.exclusive)
    # y = x y[t-1] is a linear recurrence with the gates x: no division, so zeros are exact.
    x: Tensor
    y: Tensor
    x, y = ctx.saved_tensors
    gates = x.conj() if x.is_complex() else x
    if ctx.exclusive:
        back = affine_scan(gates, grad, None, None, "exclusive", not ctx.reverse)
        return back * y.conj()
    back = affine_scan(gates, grad, None, None, "late", not ctx.reverse)
    one = torch.ones_like(first(y, ctx.reverse)) if y.shape[1] else None
    before = shifted(y, one, ctx.reverse) if y.shape[1] else y
    return back * before.conj()


cumulative.gradient(_backward, setup=_setup)


@operator
def log_sum_exp(x: Tensor, reverse: bool) -> Tensor:
    """``log(sum(exp(x)))`` along the middle axis, from the running maximum."""
    out = aligned_like(x)
    if x.numel():
        top = running_maximum(x, reverse)
        run_framed("logcumsumexp", x, (x, top, out), reverse=reverse)
    return out


def _backward_log_sum_exp(ctx: Any, grad: Tensor) -> Tensor:
    """The weight of x[t] in y[s] is exp(x[t] - y[t]) exp(y[t] - y[t+1]) .. exp(y[s-1] - y[s]).

    Every factor is at most 1, so the sum over s is an affine scan that cannot overflow.
    """
    x, y = ctx.saved_tensors
    if not x.numel():
        return torch.zeros_like(x)
    change = shifted(y, first(y, ctx.reverse), ctx.reverse) - y
    gates = change.masked_fill(change.isnan() & ~y.isnan(), 0).exp()  # -inf - -inf: none yet
    back = affine_scan(gates, grad, None, None, "late", not ctx.reverse)
    none = x == float("-inf")
    weight = torch.where(none, 0, (x - y.masked_fill(none, 0)).exp())
    return weight * back


log_sum_exp.gradient(_backward_log_sum_exp, "x results")
