"""The scan of a traced elementwise step as a torch operator, with derivatives."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tvm_scan.torch.declare.operator import operator
from tvm_scan.torch.kernels.cache import run_kernel
from tvm_scan.torch.kernels.runtime import aligned_empty
from tvm_scan.torch.kernels.spec import KernelSpec, dtype_name
from tvm_scan.torch.ops.affine import first, shifted
from tvm_scan.torch.ops.frame import SIZES, frame_of
from tvm_scan.torch.ops.step_adjoint import Runner, solve_adjoint, vjp
from tvm_scan.torch.trace.graph import graph_module, may_be_serial, with_outputs
from tvm_scan.torch.trace.results import result_types


def _outputs(
    tensors: Sequence[Tensor], graph: str, carries: int, prefix: bool, make: Any
) -> list[Tensor]:
    """The last states (none for a prefix), then what is emitted, made by `make(shape, dtype)`."""
    kinds = tuple(((1,), t.dtype) for t in (*tensors, *(tensors if prefix else ())))
    dtypes = [dtype for _, dtype in result_types(graph, kinds)]
    x = tensors[-1]
    lasts = [] if prefix else [make((x.shape[0], x.shape[2]), d) for d in dtypes[:carries]]
    return lasts + [make(x.shape, d) for d in (dtypes if prefix else dtypes[carries:])]


@operator
def step_scan(
    tensors: Sequence[Tensor], graph: str, carries: int, prefix: bool, reverse: bool
) -> list[Tensor]:
    """Scan an elementwise step over arrays (outer, length, inner).

    `tensors` are the states before the scan (outer, inner), then the inputs; with `prefix` there
    are no states, and the inputs are as many as the carries. Returns the states after the scan
    and what is emitted; with `prefix` the carries at every step.
    """
    x = tensors[-1]
    sizes, time_last, shape = frame_of(x.shape)
    out = _outputs(tensors, graph, carries, prefix, lambda s, d: aligned_empty(s, d, x.device))
    inits = [] if prefix else tensors[:carries]
    if not x.numel():
        for last, init in zip(out, inits, strict=False):
            last.copy_(init)
        return out
    spec = _spec(tuple([t.dtype for t in tensors]), graph, carries, prefix, reverse, time_last)
    # States have no time.
    arrays = (t.reshape(shape if t.dim() == 3 else sizes[:2]) for t in (*tensors, *out))
    run_kernel(spec, sizes, *arrays)
    return out


@functools.lru_cache(maxsize=512)
def _spec(
    dtypes: tuple[torch.dtype, ...],
    graph: str,
    carries: int,
    prefix: bool,
    reverse: bool,
    time_last: bool,
) -> KernelSpec:
    names = tuple(dtype_name(dtype) for dtype in dtypes)
    options = (
        ("carries", carries),
        ("dtypes", names + names if prefix else names),
        ("graph", graph),
        ("prefix", prefix),
        ("reverse", reverse),
        ("time_last", time_last),
    )
    return KernelSpec("pointwise_step", options, SIZES, prefix or may_be_serial(graph))


@step_scan.fake
def _(tensors: Sequence[Tensor], graph: str, carries: int, prefix: bool) -> list[Tensor]:
    x = tensors[-1]
    return _outputs(tensors, graph, carries, prefix, lambda s, d: x.new_empty(s, dtype=d))


def _adjoint(
    ctx: Any,
    tensors: Sequence[Tensor],
    results: Sequence[Tensor],
    grads: Sequence[Tensor | None],
) -> list[Tensor]:
    """Gradients of the tensors of `step_scan`, of operators that have gradients themselves."""
    graph, carries, reverse = ctx.graph, ctx.carries, ctx.reverse

    def run(parts: list[Tensor], text: str, count: int, backward: bool) -> list[Tensor]:
        return step_scan(parts, text, count, False, backward)

    upstream = [
        torch.zeros_like(r) if g is None else g for g, r in zip(grads, results, strict=True)
    ]
    if not tensors[-1].numel():
        starts = [] if ctx.prefix else upstream[:carries]
        return starts + [torch.zeros_like(t) for t in tensors[len(starts) :]]
    if ctx.prefix:
        return _prefix_adjoint(run, ctx, tensors, results, upstream)
    states = with_outputs(graph, carries)
    olds = step_scan(list(tensors), states, carries, False, reverse)[-carries:]
    inputs = [*olds, *tensors[carries:]]
    lasts, emitted = upstream[:carries], upstream[carries:]
    # What the emits of the next step ask of a carry; at the end, what the last state asks.
    direct = _pull(graph, inputs, [None] * carries + list(emitted))[:carries]
    sources = [shifted(d, g, not reverse) for d, g in zip(direct, lasts, strict=True)]
    carried = solve_adjoint(run, graph, carries, inputs, sources, reverse)
    gradients = _pull(graph, inputs, [*carried, *emitted])
    return [first(g, reverse) for g in gradients[:carries]] + gradients[carries:]


def _prefix_adjoint(
    run: Runner,
    ctx: Any,
    tensors: Sequence[Tensor],
    results: Sequence[Tensor],
    upstream: list[Tensor],
) -> list[Tensor]:
    """The first elements are the first states; from there on it is a recurrence."""
    graph, carries, reverse = ctx.graph, ctx.carries, ctx.reverse
    steps = tensors[0].shape[1] - 1

    def rest(tensor: Tensor) -> Tensor:
        return tensor.narrow(1, 0 if reverse else 1, steps)

    def before(tensor: Tensor) -> Tensor:
        return tensor.narrow(1, 1 if reverse else 0, steps)

    heads = [first(g, reverse).unsqueeze(1) for g in upstream]
    if not steps:
        return heads
    inputs = [*(before(r) for r in results), *(rest(t) for t in tensors)]
    sources = [rest(g) for g in upstream]
    carried = solve_adjoint(run, graph, carries, inputs, sources, reverse)
    gradients = _pull(graph, inputs, carried)
    heads = [
        head + first(g, reverse).unsqueeze(1)
        for head, g in zip(heads, gradients[:carries], strict=True)
    ]
    parts = zip(heads, gradients[carries:], strict=True)
    return [torch.cat((tail, head) if reverse else (head, tail), 1) for head, tail in parts]


def _pull(
    graph: str, inputs: Sequence[Tensor], cotangents: Sequence[Tensor | None]
) -> list[Tensor]:
    """Vector-Jacobian product of a graph at every step; zeros for inputs that are no floats."""
    live = [i for i, t in enumerate(inputs) if t.is_floating_point()]
    module = graph_module(graph)

    def call(*floats: Tensor) -> tuple[Tensor, ...]:
        every = list(inputs)
        for i, value in zip(live, floats, strict=True):
            every[i] = value
        # Results that do not depend on every input may be smaller.
        pairs = zip(module(*every), cotangents, strict=True)
        wanted = [r for r, c in pairs if c is not None and r.is_floating_point()]
        return tuple(r.expand(inputs[-1].shape) for r in wanted)

    values, pull = vjp(call, *(inputs[i] for i in live))
    wanted = [c for c in cotangents if c is not None and c.is_floating_point()]
    gradients = [torch.zeros_like(t) for t in inputs]
    if values:
        pairs = zip(wanted, values, strict=True)
        for i, g in zip(live, pull(tuple(c.to(v.dtype) for c, v in pairs)), strict=True):
            gradients[i] = g
    return gradients


def _backward(ctx: Any, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
    saved = ctx.saved_tensors
    tensors, results = saved[: -len(grads)], saved[-len(grads) :]
    gradients = _adjoint(ctx, tensors, results, grads)
    return [g if t.is_floating_point() else None for g, t in zip(gradients, tensors, strict=True)]


step_scan.gradient(_backward, "tensors results", zeros=False)
