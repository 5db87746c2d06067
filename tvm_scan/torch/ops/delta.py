"""Delta rules and their adjoint as torch operators.

On a CPU a kernel walks time (`tvm_scan.loops.delta_walk`), packed sequences as they lie; its
adjoint is one too, and keeps no states between the two. On a GPU the plain loop is scheduled in
chunks, a sequence at a time, and the adjoint is made of torch's operators; see `delta_steps`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from tvm_scan.torch.arguments import check
from tvm_scan.torch.declare.dispatch import sees_nothing
from tvm_scan.torch.declare.mapped import folded, one_by_one
from tvm_scan.torch.declare.operator import operator
from tvm_scan.torch.kernels import devices
from tvm_scan.torch.kernels.cache import run_kernel
from tvm_scan.torch.kernels.runtime import aligned_empty, prepared
from tvm_scan.torch.kernels.spec import KernelSpec, dtype_name
from tvm_scan.torch.ops import delta_steps
from tvm_scan.torch.ops.delta_tensors import TIMED, DeltaTensors

__all__ = ["delta_scan", "delta_step"]

_SIZES = ("batch", "heads", "length")
#: Fewest cells of states times steps that are worth other threads, which have to be woken.
_THREADED = 1 << 17


def _map(call: Any, size: int, dims: Any, arguments: Any) -> tuple[Any, Any]:
    """Mapped rows are further rows, unless the sequences lie in one."""
    packed = arguments[len(arguments) - 1] is not None
    return (one_by_one if packed else folded)(call, size, dims, arguments)


@operator(like="v h0", mapped=_map)
def delta_scan(tensors: DeltaTensors) -> tuple[Tensor, Tensor]:
    """Return the output, like v, and the states after time, like h0."""
    v, h0 = tensors.v, tensors.h0
    check_offsets(tensors)
    y = aligned_empty(v.shape, v.dtype, v.device)
    last = aligned_empty(h0.shape, h0.dtype, h0.device)
    if not y.numel() or not h0.numel():
        return y.zero_(), last.copy_(h0)
    if devices.device_of(v) is devices.CPU:
        _walk(tensors, last, y)
        return y, last
    if tensors.offsets is None:
        _plain(tensors, last, y)
        return y, last
    for part, states, tokens in delta_steps.sequences(tensors):
        out = aligned_empty(part.v.shape, v.dtype, v.device)
        state = aligned_empty(part.h0.shape, h0.dtype, h0.device)
        if out.numel():
            _plain(part, state, out)
        last[states] = state if out.numel() else part.h0
        y[:, tokens] = out
    return y, last


def delta_step(tensors: DeltaTensors) -> Tensor | None:
    """Return the output, and leave the states after time in ``h0``, which no kernel copies.

    Returns
    -------
    Tensor or None
        None where that is not possible, and nothing was done: an operator would be watched, or
        a kernel would have to copy the states after all.
    """
    v, h0 = tensors.v, tensors.h0
    if torch.compiler.is_compiling() or not sees_nothing(tensors):
        return None
    if devices.device_of(v) is not devices.CPU or prepared(h0) is not h0 or not h0.numel():
        return None
    check_offsets(tensors)
    y = aligned_empty(v.shape, v.dtype, v.device)
    if y.numel():
        _walk(tensors, y)
    return y


def check_offsets(tensors: DeltaTensors) -> None:
    """Raise unless offsets rise from 0 to the length: kernels read from there to there."""
    if tensors.offsets is not None:
        offsets, length = tensors.offsets.tolist(), tensors.v.shape[1]
        rises = all(start <= stop for start, stop in pairwise(offsets))
        fix = "give the start of every sequence, and the length"
        fits = rises and offsets[0] == 0 and offsets[-1] == length
        check(fits, "delta_scan", f"cu_seqlens rising from 0 to {length}", offsets, fix)


def _operands(tensors: DeltaTensors) -> list[Tensor]:
    """The tensors in the order of the loops, with gates for their logarithms."""
    timed = tensors.timed
    if tensors.g is not None:
        timed["g"] = tensors.g.exp()
    offsets = () if tensors.offsets is None else (tensors.offsets,)
    return [*timed.values(), tensors.h0, *offsets]


def _sizes(tensors: DeltaTensors) -> tuple[int, int, int]:
    return tensors.h0.shape[0], tensors.q.shape[2], tensors.q.shape[1]


def _spec(factory: str, tensors: DeltaTensors, **options: Any) -> KernelSpec:
    every = {"dtype": dtype_name(tensors.v.dtype), **tensors.options(), **options}
    return KernelSpec(factory, tuple(sorted(every.items())), _SIZES, no_scan=True)


def _walk(tensors: DeltaTensors, *results: Tensor) -> None:
    """Run the kernel; without an array for the states after time, `h0` will have them."""
    options = {"packed": tensors.offsets is not None, "in_place": len(results) == 1}
    options["threads"] = tensors.v.numel() * tensors.q.shape[3] >= _THREADED
    spec = _spec("delta_walk", tensors, **options)
    run_kernel(spec, _sizes(tensors), *_operands(tensors), *results)


def _plain(tensors: DeltaTensors, last: Tensor, y: Tensor) -> None:
    every = {"dtype": dtype_name(y.dtype), **tensors.options()}
    spec = KernelSpec("delta_rule", tuple(sorted(every.items())), _SIZES, or_serial=True)
    run_kernel(spec, _sizes(tensors), *_operands(tensors), last, y)


def _backward(ctx: Any, g_y: Tensor, g_last: Tensor) -> tuple[Tensor | None, ...]:
    tensors = DeltaTensors(*ctx.saved_tensors)
    *grads, g_h0 = delta_scan_backward(g_y, g_last, *tensors)
    named = dict(zip(TIMED, grads, strict=True))
    return *(named[n] if n in tensors.timed else None for n in TIMED), g_h0


delta_scan.gradient(_backward, " ".join(DeltaTensors._fields))


@operator(mapped=_map)
def delta_scan_backward(
    g_y: Tensor, g_last: Tensor, tensors: DeltaTensors
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of q, k, v, g, beta, a, b and h0; empty for those that are None."""
    timed, v, h0 = tensors.timed, tensors.v, tensors.h0
    if not v.numel() or not h0.numel():
        grads = {n: torch.zeros_like(t) for n, t in timed.items()}
        return _results(tensors, grads, g_last.clone())
    if devices.device_of(v) is not devices.CPU:
        grads, g_h0 = delta_steps.adjoint(tensors, g_y, g_last)
        return _results(tensors, grads, g_h0)
    shapes = {n: (*v.shape[:3], *t.shape[3:]) for n, t in timed.items()}
    grads = {n: aligned_empty(s, v.dtype, v.device) for n, s in shapes.items()}
    g_h0 = aligned_empty(h0.shape, v.dtype, v.device)
    spec = _spec("delta_adjoint", tensors, packed=tensors.offsets is not None)
    run_kernel(spec, _sizes(tensors), *_operands(tensors), g_y, g_last, *grads.values(), g_h0)
    for name in ("q", "k", "a", "b"):
        if tensors.group > 1 and name in grads:
            grads[name] = grads[name].unflatten(2, (-1, tensors.group)).sum(3)
    return _results(tensors, grads, g_h0)


def _results(
    tensors: DeltaTensors, grads: dict[str, Tensor], g_h0: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    every = [grads[n] if n in grads else tensors.v.new_empty(0) for n in TIMED]
    return (*every, g_h0)  # type: ignore[return-value]


@delta_scan_backward.fake
def _(
    g_y: Tensor, g_last: Tensor, tensors: DeltaTensors
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    grads = {n: t.new_empty(t.shape) for n, t in tensors.timed.items()}
    return _results(tensors, grads, tensors.h0.new_empty(tensors.h0.shape))


def _second(ctx: Any, *weights: Tensor) -> tuple[Tensor | None, ...]:
    """Differentiate the gradients, by torch's operators, one chunk after another."""
    g_y, g_last, *saved = ctx.saved_tensors
    tensors = DeltaTensors(*saved)
    names = (*TIMED, "h0")
    wanted = {n: w for n, w in zip(names, weights, strict=True) if n in (*tensors.timed, "h0")}
    grads = delta_steps.second(tensors, g_y, g_last, wanted)
    return tuple(grads.get(n) for n in ("g_y", "g_last", *names))


delta_scan_backward.gradient(_second, " ".join(("g_y g_last", *DeltaTensors._fields)))
