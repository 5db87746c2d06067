"""The selective scan and its adjoint as torch operators.

On arrays (batch, groups, channels, length), B and C (batch, groups, states, length). The states
of a time step are never stored: the forward pass keeps those at the head of every chunk, and the
adjoint runs a chunk again from there, last chunk first. Memory is that of the inputs, plus
``length / CHUNK`` states, plus the states of one chunk.
"""

from typing import Any

import torch
from torch import Tensor

from tvm_scan.torch.declare.mapped import folded, one_by_one
from tvm_scan.torch.declare.operator import operator
from tvm_scan.torch.kernels.cache import run_kernel
from tvm_scan.torch.kernels.runtime import aligned_empty, aligned_like
from tvm_scan.torch.ops import chunked
from tvm_scan.torch.ops.chunked import CHUNK
from tvm_scan.torch.ops.selective_adjoint import (
    head_of,
    head_width,
    heads_of,
    selective_scan_backward,
    spec_of,
)
from tvm_scan.torch.ops.selective_tensors import SelectiveTensors


@operator
def selective_scan_grouped(
    tensors: SelectiveTensors, softplus: bool, reverse: bool, keep: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output, the last state, and (with `keep`) the states at the heads of chunks."""
    u, A, h0, length = tensors.u, tensors.A, tensors.h0, tensors.u.shape[3]
    shape, wide = tensors.state_shape, A.dtype
    out = aligned_like(u)
    last = aligned_empty(shape, wide, u.device)
    chunks = -(-length // CHUNK) if keep else 0
    heads = aligned_empty((chunks, head_width(shape)), wide, u.device)
    first = u.new_zeros(shape, dtype=wide) if h0 is None else h0
    if not out.numel():
        return out, last.copy_(first), heads
    if not tensors.is_kernel:
        result, state, chunk_heads = chunked.forward(tensors.named(), first, softplus, reverse)
        heads.zero_()  # between the heads, too, so that equal calls have equal results
        for head, value in zip(heads_of(heads, shape), chunk_heads, strict=False):
            head.copy_(value)
        return out.copy_(result), last.copy_(state), heads
    options = tensors.options() | {"softplus": softplus, "reverse": reverse}
    spec = spec_of("selective_forward", u, shape[3], **options)
    inputs = [t.contiguous() for t in tensors.named().values()]

    def run(start: int, steps: int, head: Tensor, tail: Tensor) -> None:
        run_kernel(spec, (*u.shape, steps), start, steps, *inputs, head, out, tail)

    if not keep:
        run(0, length, first, last)
        return out, last, heads
    heads[:, first.numel() :] = 0  # so that equal calls have equal results
    head = head_of(heads, 0, shape).copy_(first)
    for index in range(chunks):
        start = index * CHUNK
        tail = last if index == chunks - 1 else head_of(heads, index + 1, shape)
        run(start, min(CHUNK, length - start), head, tail)
        head = tail
    return out, last, heads


@selective_scan_grouped.fake
def _(tensors: SelectiveTensors, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    u, shape, wide = tensors.u, tensors.state_shape, tensors.A.dtype
    chunks = -(-u.shape[3] // CHUNK) if keep else 0
    return (
        torch.empty_like(u, memory_format=torch.contiguous_format),
        u.new_empty(shape, dtype=wide),
        u.new_empty((chunks, head_width(shape)), dtype=wide),
    )


def _backward(
    ctx: Any, g_out: Tensor | None, g_last: Tensor | None, _: Tensor | None
) -> tuple[Tensor | None, ...]:
    *saved, heads = ctx.saved_tensors
    tensors = SelectiveTensors(*saved)
    if not heads.shape[0]:  # not kept, but differentiated after all: scan forward once more
        heads = selective_scan_grouped(*tensors, ctx.softplus, ctx.reverse, True)[2]
    g_out = torch.zeros_like(tensors.u) if g_out is None else g_out
    grads = selective_scan_backward(g_out, g_last, *tensors, heads, ctx.softplus, ctx.reverse)
    named = dict(zip(tensors.differentiable, grads, strict=True))
    return tuple(named.get(name) for name in SelectiveTensors._fields)


selective_scan_grouped.gradient(
    _backward, " ".join((*SelectiveTensors._fields, "results[2]")), zeros=False
)


@selective_scan_grouped.vmap
def _(call: Any, size: int, dims: Any, arguments: Any) -> tuple[Any, Any]:
    # A, D and bias have no batch axis to fold into, nor what is fixed in time.
    shared = (2, 5, 7, *(i for i in (3, 4) if _axes(arguments[i], dims[i]) == 3))
    if arguments[-1]:  # heads that are kept are laid out for one call each
        return one_by_one(call, size, dims, arguments)
    (out, last, _), results_dims = folded(call, size, dims, arguments, shared)
    return (out, last, last.new_empty((size, 0, head_width(last.shape[1:])))), results_dims


def _axes(tensor: Tensor, mapped: int | None) -> int:
    return tensor.dim() - (mapped is not None)
