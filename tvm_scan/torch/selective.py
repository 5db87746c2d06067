"""The selective scan and its adjoint as torch operators.

On arrays (batch, groups, channels, length), B and C (batch, groups, states, length). The states
of a time step are never stored: the forward pass keeps those at the head of every chunk, and the
adjoint runs a chunk again from there, last chunk first. Memory is that of the inputs, plus
``length / CHUNK`` states, plus the states of one chunk.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tvm_scan.torch.affine import fold
from tvm_scan.torch.expanded import expanded, wide_of
from tvm_scan.torch.kernels import KernelSpec, run_kernel
from tvm_scan.torch.operator import operator
from tvm_scan.torch.runtime import ALIGNMENT, aligned_empty

__all__ = ["CHUNK", "selective_scan_grouped"]

#: Steps in a chunk: the heads of the chunks then take states / CHUNK times one input.
CHUNK = 32
_SIZES = ("batch", "groups", "channels", "length", "steps")
#: Arguments of the operators that have gradients, in order.
_DIFFERENTIABLE = ("u", "delta", "A", "B", "C", "D", "z", "bias", "h0")


def _head_width(u: Tensor, states: int) -> int:
    """Elements from one chunk's head to the next: rounded up, so that each is aligned."""
    batch, groups, channels, _ = u.shape
    return -(-batch * groups * channels * states // ALIGNMENT) * ALIGNMENT


def _head(heads: Tensor, index: int, shape: tuple[int, ...]) -> Tensor:
    count = shape[0] * shape[1] * shape[2] * shape[3]
    return heads[index, :count].view(shape)


def _spec(factory: str, u: Tensor, states: int, **options: Any) -> KernelSpec:
    options = {"dtype": _name(u.dtype), "states": states} | options
    return KernelSpec(factory, tuple(sorted(options.items())), _SIZES)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@operator
def selective_scan_grouped(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    bias: Tensor | None,
    reset: Tensor | None,
    h0: Tensor | None,
    softplus: bool,
    reverse: bool,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output, the last state, and (with `keep`) the states at the heads of chunks.

    `u`, `delta`, `z`, `B`, `C` of one dtype; `A` (groups, channels, states), `D` and `bias`
    (groups, channels) and `h0` (batch, groups, channels, states) of the carry's; `reset`
    (batch, length) int8.
    """
    states, length = A.shape[2], u.shape[3]
    shape = (*u.shape[:3], states)
    wide = wide_of(u.dtype)
    out = aligned_empty(u.shape, u.dtype, u.device)
    last = aligned_empty(shape, wide, u.device)
    chunks = -(-length // CHUNK) if keep else 0
    heads = aligned_empty((chunks, _head_width(u, states)), wide, u.device)
    first = torch.zeros(shape, dtype=wide) if h0 is None else h0
    if not out.numel() or not states:
        return out.zero_(), last.copy_(first), heads
    spec = _spec(
        "selective_forward",
        u,
        states,
        softplus=softplus,
        reverse=reverse,
        has_bias=bias is not None,
        has_D=D is not None,
        has_z=z is not None,
        has_reset=reset is not None,
    )
    inputs = [t for t in (u, delta, A, B, C, D, z, bias, reset) if t is not None]
    inputs = [t.contiguous() for t in inputs]

    def run(start: int, steps: int, head: Tensor, tail: Tensor) -> None:
        run_kernel(spec, (*u.shape, steps), start, steps, *inputs, head, out, tail)

    if not keep:
        run(0, length, first, last)
        return out, last, heads
    heads[:, first.numel() :] = 0  # so that equal calls have equal results
    head = _head(heads, 0, shape).copy_(first)
    for index in range(chunks):
        start = index * CHUNK
        tail = last if index == chunks - 1 else _head(heads, index + 1, shape)
        run(start, min(CHUNK, length - start), head, tail)
        head = tail
    return out, last, heads


@selective_scan_grouped.fake
def _(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    bias: Tensor | None,
    reset: Tensor | None,
    h0: Tensor | None,
    softplus: bool,
    reverse: bool,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    wide, states = wide_of(u.dtype), A.shape[2]
    chunks = -(-u.shape[3] // CHUNK) if keep else 0
    return (
        torch.empty_like(u, memory_format=torch.contiguous_format),
        u.new_empty((*u.shape[:3], states), dtype=wide),
        u.new_empty((chunks, _head_width(u, states)), dtype=wide),
    )


@operator
def selective_scan_backward(
    g_out: Tensor,
    g_last: Tensor | None,
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    bias: Tensor | None,
    reset: Tensor | None,
    h0: Tensor | None,
    heads: Tensor,
    softplus: bool,
    reverse: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of u, delta, A, B, C, D, z, bias and h0; empty for absent ones."""
    length, states, wide = u.shape[3], A.shape[2], A.dtype
    present = {"D": D, "z": z, "bias": bias, "reset": reset}
    options = {f"has_{name}": tensor is not None for name, tensor in present.items()}
    options |= {"softplus": softplus, "reverse": reverse}
    spec = _spec("selective_backward_chunk", u, states, **options, dtype=_name(wide))
    # All sequences with time before channels, in the carry's dtype.
    z_turned = None if z is None else _turned(z, wide)
    u_turned, g_turned = _turned(u, wide), _turned(g_out, wide)
    inputs = (u_turned, _turned(delta, wide), A, _turned(B, wide), _turned(C, wide))
    inputs = [t.contiguous() for t in (*inputs, D, z_turned, bias, reset) if t is not None]
    grads = {n: _like(u_turned) for n in ("u", "delta", *(["z"] if z is not None else []))}
    grads |= {"B": _like(inputs[3]), "C": _like(inputs[4])}
    g_A = aligned_empty((A.shape[0], states, A.shape[1]), wide, u.device).zero_()
    carry = aligned_empty((*u.shape[:3], states), wide, u.device)
    carry.copy_(torch.zeros(()) if g_last is None else g_last)
    scratch: list[Tensor] = []
    for index in reversed(range(len(heads) if u.numel() and states else 0)):
        start = index * CHUNK
        steps = min(CHUNK, length - start)
        if not scratch or scratch[1].shape[2] != steps:  # the last chunk, which is shorter
            scratch = _scratch(u, states, steps, wide)
        head = _head(heads, index, tuple(carry.shape))
        written = (carry, *scratch, *grads.values(), g_A)
        sizes = (*u.shape, steps)
        run_kernel(spec, sizes, start, steps, *inputs, head, g_turned, *written)
    results = {n: g.transpose(2, 3).contiguous().to(u.dtype) for n, g in grads.items()}
    g_y = g_turned if z_turned is None else F.silu(z_turned).mul_(g_turned)
    absent = torch.empty(0, dtype=wide)
    results["A"] = g_A.transpose(1, 2).contiguous()
    results["D"] = absent if D is None else g_y.mul(u_turned).sum((0, 2))
    results["bias"] = absent if bias is None else grads["delta"].sum((0, 2))
    results.setdefault("z", absent.to(u.dtype))
    return *(results[name] for name in _DIFFERENTIABLE[:8]), carry


def _turned(tensor: Tensor, wide: torch.dtype) -> Tensor:
    """Put time before channels, or before states."""
    out = aligned_empty(tensor.transpose(2, 3).shape, wide, tensor.device)
    return out.copy_(tensor.transpose(2, 3))


def _like(tensor: Tensor) -> Tensor:
    return aligned_empty(tensor.shape, tensor.dtype, tensor.device)


def _scratch(u: Tensor, states: int, steps: int, wide: torch.dtype) -> list[Tensor]:
    """History, adjoint, through, step, drive and gated of one chunk; see the loop."""
    batch, groups, channels, _ = u.shape
    shapes = [(batch, groups, n, states, channels) for n in (steps + 1, steps, steps)]
    shapes += [(batch, groups, steps, channels)] * 3
    return [aligned_empty(shape, wide, u.device) for shape in shapes]


@selective_scan_backward.fake
def _(
    g_out: Tensor,
    g_last: Tensor | None,
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    bias: Tensor | None,
    reset: Tensor | None,
    h0: Tensor | None,
    heads: Tensor,
    softplus: bool,
    reverse: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    small = A.shape[:2]
    return (
        u.new_empty(u.shape),
        u.new_empty(u.shape),
        A.new_empty(A.shape),
        B.new_empty(B.shape),
        B.new_empty(B.shape),
        A.new_empty(small if D is not None else (0,)),
        u.new_empty(u.shape if z is not None else (0,)),
        A.new_empty(small if bias is not None else (0,)),
        A.new_empty((*u.shape[:3], A.shape[2])),
    )


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.softplus, ctx.reverse, ctx.keep = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, output[2])


def _backward(
    ctx: Any, g_out: Tensor | None, g_last: Tensor | None, _: Tensor | None
) -> tuple[Tensor | None, ...]:
    *tensors, heads = ctx.saved_tensors
    u, D, z, bias, h0 = (tensors[i] for i in (0, 5, 6, 7, 9))
    if not heads.shape[0]:  # not kept, but differentiated after all: walk forward once more
        heads = selective_scan_grouped(*tensors, ctx.softplus, ctx.reverse, True)[2]
    g_out = torch.zeros_like(u) if g_out is None else g_out
    grads = selective_scan_backward(g_out, g_last, *tensors, heads, ctx.softplus, ctx.reverse)
    present = [None if t is None else g for t, g in zip((D, z, bias), grads[5:8], strict=True)]
    g_h0 = None if h0 is None else grads[8]
    return *grads[:5], *present, None, g_h0, None, None, None


selective_scan_grouped.gradient(_backward, _setup)


def _setup_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, _, ctx.softplus, ctx.reverse = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors)


def _second(ctx: Any, *wanted: Tensor | None) -> tuple[Tensor | None, ...]:
    """Differentiate the gradients, by way of the expanded form."""
    g_out, g_last, u, delta, A, B, C, D, z, bias, reset, h0 = ctx.saved_tensors
    h0 = A.new_zeros((*u.shape[:3], A.shape[2])) if h0 is None else h0
    named = dict(zip(_DIFFERENTIABLE, (u, delta, A, B, C, D, z, bias, h0), strict=True))
    with torch.enable_grad():
        leaves = {n: t.detach().requires_grad_() for n, t in named.items() if t is not None}
        upstream = [None if g is None else g.detach().requires_grad_() for g in (g_out, g_last)]
        outputs = expanded(
            *(leaves.get(n) for n in _DIFFERENTIABLE[:8]),
            *(reset, leaves["h0"], ctx.softplus, ctx.reverse),
        )
        pairs = [(o, g) for o, g in zip(outputs, upstream, strict=True) if g is not None]
        grads = torch.autograd.grad(
            [o for o, _ in pairs],
            list(leaves.values()),
            [g for _, g in pairs],
            create_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )
        by_name = dict(zip(leaves, grads, strict=True))
        used = [
            (by_name[n], w)
            for n, w in zip(_DIFFERENTIABLE, wanted, strict=True)
            if n in leaves and w is not None and by_name[n].requires_grad
        ]
        sources = [*leaves.values(), *(g for g in upstream if g is not None)]
        second = torch.autograd.grad(
            [g for g, _ in used], sources, [w for _, w in used], allow_unused=True
        )
    found = dict(zip(leaves, second, strict=False))
    rest = iter(second[len(leaves) :])
    to_upstream = [None if g is None else next(rest) for g in upstream]
    inputs = [found.get(n) for n in _DIFFERENTIABLE[:8]]
    to_h0 = found["h0"] if ctx.needs_input_grad[11] else None
    return *to_upstream, *inputs, None, to_h0, None, None, None


selective_scan_backward.gradient(_second, _setup_backward)


@selective_scan_grouped.vmap
def _(info: Any, in_dims: Any, *arguments: Any) -> tuple[Any, Any]:
    size, dims = info.batch_size, in_dims
    shared = (2, 5, 7)  # A, D and bias have no batch axis to fold into
    keep = arguments[-1]  # heads are laid out for one call each
    if keep or any(dims[i] is not None for i in shared):
        return _one_by_one(selective_scan_grouped, size, dims, arguments)
    folded = [
        fold(a, d, size) if isinstance(a, Tensor) and i not in shared else a
        for i, (a, d) in enumerate(zip(arguments, dims, strict=True))
    ]
    out, last, _ = selective_scan_grouped(*folded[:-1], False)
    heads = last.new_empty((size, 0, _head_width(out[: len(out) // size], last.shape[3])))
    return (out.unflatten(0, (size, -1)), last.unflatten(0, (size, -1)), heads), (0, 0, 0)


@selective_scan_backward.vmap
def _(info: Any, in_dims: Any, *arguments: Any) -> tuple[Any, Any]:
    return _one_by_one(selective_scan_backward, info.batch_size, in_dims, arguments)


def _one_by_one(call: Any, size: int, dims: Any, arguments: Any) -> tuple[Any, Any]:
    results = [
        call(
            *(
                a.select(d, i) if isinstance(a, Tensor) and d is not None else a
                for a, d in zip(arguments, dims, strict=True)
            )
        )
        for i in range(size)
    ]
    stacked = tuple(torch.stack(parts) for parts in zip(*results, strict=True))
    return stacked, (0,) * len(stacked)
