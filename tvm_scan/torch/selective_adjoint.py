"""The adjoint of the selective scan as a torch operator, and the derivative of that.

It runs the chunks again from the states at their heads, last chunk first; see `selective`.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tvm_scan.torch import places
from tvm_scan.torch.expanded import expanded
from tvm_scan.torch.kernels import KernelSpec, run_kernel
from tvm_scan.torch.operator import operator
from tvm_scan.torch.runtime import ALIGNMENT, aligned_empty
from tvm_scan.torch.turning import turned

__all__ = ["CHUNK", "head_of", "head_width", "one_by_one", "selective_scan_backward", "spec_of"]

#: Steps in a chunk: the heads of the chunks then take states / CHUNK times one input.
CHUNK = 32
_SIZES = ("batch", "groups", "channels", "length", "steps")
#: Arguments of the operators that have gradients, in order.
_DIFFERENTIABLE = ("u", "delta", "A", "B", "C", "D", "z", "bias", "h0")


def head_width(u: Tensor, states: int) -> int:
    """Return the elements from one chunk's head to the next: each is aligned."""
    batch, groups, channels, _ = u.shape
    return -(-batch * groups * channels * states // ALIGNMENT) * ALIGNMENT


def head_of(heads: Tensor, index: int, shape: tuple[int, ...]) -> Tensor:
    """Return the states at the head of a chunk."""
    count = shape[0] * shape[1] * shape[2] * shape[3]
    return heads[index, :count].view(shape)


def spec_of(factory: str, u: Tensor, states: int, **options: Any) -> KernelSpec:
    """Name a kernel for inputs like `u`."""
    options = {"dtype": _name(u.dtype), "states": states} | options
    return KernelSpec(factory, tuple(sorted(options.items())), _SIZES)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


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
    # On a GPU torch's products of matrices add up faster than a thread a sum would.
    options["sums"] = fused = places.place_of(u) is places.CPU
    spec = spec_of("selective_backward_chunk", u, states, **options, dtype=_name(wide))
    # All sequences with time before channels, in the carry's dtype.
    z_turned = None if z is None else turned(z, wide)
    u_turned, g_turned = turned(u, wide), turned(g_out, wide)
    inputs = (u_turned, turned(delta, wide), A, turned(B, wide), turned(C, wide))
    inputs = [t.contiguous() for t in (*inputs, D, z_turned, bias, reset) if t is not None]
    grads = {n: _like(u_turned) for n in ("u", "delta", *(["z"] if z is not None else []))}
    sums = {"B": _like(inputs[3]), "C": _like(inputs[4])}
    small = {"D": D, "bias": bias}
    small = {n: torch.zeros_like(t) for n, t in small.items() if t is not None}
    g_A = aligned_empty((*u.shape[:3], states), wide, u.device).zero_()
    carry = aligned_empty((*u.shape[:3], states), wide, u.device)
    carry.zero_() if g_last is None else carry.copy_(g_last)
    scratch: list[Tensor] = []
    for index in reversed(range(len(heads) if u.numel() and states else 0)):
        start = index * CHUNK
        steps = min(CHUNK, length - start)
        if not scratch or scratch[1].shape[2] != steps:  # the last chunk, which is shorter
            scratch = _scratch(u, states, steps, wide)
        head = head_of(heads, index, tuple(carry.shape))
        written = [carry, *scratch, g_A, *grads.values()]
        if fused:
            written += [*sums.values(), *small.values()]
        run_kernel(spec, (*u.shape, steps), start, steps, *inputs, head, g_turned, *written)
        if not fused:
            first = length - start - steps if reverse else start
            _add_up(scratch, first, steps, reverse, *sums.values())
    if not fused and D is not None:
        g_y = g_turned if z_turned is None else F.silu(z_turned).mul_(g_turned)
        small["D"] = g_y.mul(u_turned).sum((0, 2))
    if not fused and bias is not None:
        small["bias"] = grads["delta"].sum((0, 2))
    results = {n: turned(g, u.dtype) for n, g in (grads | sums).items()}
    absent = u.new_empty(0, dtype=wide)
    results = {"z": absent.to(u.dtype), "D": absent, "bias": absent, **results, **small}
    results["A"] = g_A.sum(0) if len(g_A) > 1 else g_A[0]
    return *(results[name] for name in _DIFFERENTIABLE[:8]), carry


def _add_up(
    scratch: list[Tensor], first: int, steps: int, reverse: bool, g_B: Tensor, g_C: Tensor
) -> None:
    """The sums over channels of one chunk that lies at the step `first`."""
    history, adjoint, _, drive, gated = scratch
    for grad, states, weights in ((g_B, adjoint, drive), (g_C, history[:, :, 1:], gated)):
        found = (states @ weights.unsqueeze(-1)).squeeze(-1)
        grad.narrow(2, first, steps).copy_(found.flip(2) if reverse else found)


def _like(tensor: Tensor) -> Tensor:
    return aligned_empty(tensor.shape, tensor.dtype, tensor.device)


def _scratch(u: Tensor, states: int, steps: int, wide: torch.dtype) -> list[Tensor]:
    """History, adjoint, step, drive and gated of one chunk; see the loop."""
    batch, groups, channels, _ = u.shape
    shapes = [(batch, groups, n, states, channels) for n in (steps + 1, steps)]
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


def one_by_one(call: Any, size: int, dims: Any, arguments: Any) -> tuple[Any, Any]:
    """Run an operator on one mapped element after another."""
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


@selective_scan_backward.vmap
def _(info: Any, in_dims: Any, *arguments: Any) -> tuple[Any, Any]:
    return one_by_one(selective_scan_backward, info.batch_size, in_dims, arguments)
