"""The adjoint of the selective scan as a torch operator, and the derivative of that.

It runs the chunks again from the states at their heads, last chunk first; see `selective`. With a
complex `A`, and in its own derivative, a chunk is made of torch's operators; see `chunked`.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tvm_scan.torch.declare.mapped import one_by_one
from tvm_scan.torch.declare.operator import operator
from tvm_scan.torch.kernels import devices
from tvm_scan.torch.kernels.cache import run_kernel
from tvm_scan.torch.kernels.runtime import ALIGNMENT, aligned_empty, aligned_like
from tvm_scan.torch.kernels.spec import KernelSpec, dtype_name
from tvm_scan.torch.ops import chunked
from tvm_scan.torch.ops.chunked import CHUNK
from tvm_scan.torch.ops.selective_tensors import SelectiveTensors
from tvm_scan.torch.ops.transpose import transposed
from tvm_scan.torch.private import transforms_active

_SIZES = ("batch", "groups", "channels", "length", "steps")


def head_width(shape: Sequence[int]) -> int:
    """Return the elements from one chunk's head to the next, each of a shape and aligned."""
    batch, groups, channels, states = shape
    return -(-batch * groups * channels * states // ALIGNMENT) * ALIGNMENT


def head_of(heads: Tensor, index: int, shape: Sequence[int]) -> Tensor:
    """Return the states at the head of a chunk."""
    count = shape[0] * shape[1] * shape[2] * shape[3]
    return heads[index, :count].view(tuple(shape))


def heads_of(heads: Tensor, shape: Sequence[int]) -> list[Tensor]:
    """Return the states at the heads of all chunks."""
    return [head_of(heads, index, shape) for index in range(len(heads))]


def spec_of(factory: str, u: Tensor, states: int, **options: Any) -> KernelSpec:
    """Name a kernel for inputs like `u`."""
    options = {"dtype": dtype_name(u.dtype), "states": states} | options
    return KernelSpec.of(factory, _SIZES, **options)


@operator(mapped=one_by_one)
def selective_scan_backward(
    g_out: Tensor,
    g_last: Tensor | None,
    tensors: SelectiveTensors,
    heads: Tensor,
    softplus: bool,
    reverse: bool,
) -> list[Tensor]:
    """Return the gradients of the `differentiable` tensors."""
    if not tensors.is_kernel:
        return _by_chunks(g_out, g_last, tensors, heads, softplus, reverse)
    u, delta, A, B, C, D, z, bias, reset, _ = tensors
    length, states, wide = u.shape[3], A.shape[2], A.dtype
    options = tensors.options() | {"softplus": softplus, "reverse": reverse}
    fixed = {"B": options["fixed_B"], "C": options["fixed_C"]}
    # On a GPU torch's products of matrices add up faster than a thread a sum would.
    options["sums"] = fused = devices.device_of(u) is devices.CPU
    spec = spec_of("selective_backward_chunk", u, states, **options, dtype=dtype_name(wide))
    # All sequences with time before channels, in the carry's dtype.
    z_transposed = None if z is None else transposed(z, wide)
    u_transposed, g_transposed = transposed(u, wide), transposed(g_out, wide)
    B, C = (t.to(wide) if t.dim() == 3 else transposed(t, wide) for t in (B, C))
    operands = (u_transposed, transposed(delta, wide), A, B, C, D, z_transposed, bias, reset)
    inputs = [t.contiguous() for t in operands if t is not None]
    grads = {
        n: aligned_like(u_transposed) for n in ("u", "delta", *(["z"] if z is not None else []))
    }
    every = tensors.state_shape
    # Of no channels, no step is taken.
    allocate = aligned_like if u.numel() else torch.zeros_like
    of_steps = {n: allocate(t) for n, t in (("B", B), ("C", C)) if not fixed[n]}
    summed = ("A", *(n for n in fixed if fixed[n]))
    of_states = {n: aligned_empty(every, wide, u.device).zero_() for n in summed}
    small = {n: torch.zeros_like(t) for n, t in (("D", D), ("bias", bias)) if t is not None}
    carry = aligned_empty(every, wide, u.device)
    carry.zero_() if g_last is None else carry.copy_(g_last)
    scratch: list[Tensor] = []
    for index in reversed(range(len(heads) if u.numel() and states else 0)):
        start = index * CHUNK
        steps = min(CHUNK, length - start)
        if not scratch or scratch[1].shape[2] != steps:  # the last chunk, which is shorter
            scratch = _scratch(u, states, steps, wide)
        head = head_of(heads, index, tuple(carry.shape))
        written = [carry, *scratch, of_states["A"], *grads.values()]
        projected = of_states | (of_steps if fused else {})
        written += [projected[n] for n in ("B", "C") if n in projected]
        if fused:
            written += small.values()
        run_kernel(spec, (*u.shape, steps), start, steps, *inputs, head, g_transposed, *written)
        if not fused:
            first = length - start - steps if reverse else start
            _add_up(scratch, first, steps, reverse, of_steps)
    if not fused and D is not None:
        g_y = g_transposed if z_transposed is None else F.silu(z_transposed).mul_(g_transposed)
        small["D"] = g_y.mul(u_transposed).sum((0, 2))
    if not fused and bias is not None:
        small["bias"] = grads["delta"].sum((0, 2))
    results = {n: transposed(g, u.dtype) for n, g in (grads | of_steps).items()}
    results |= {**small, "h0": carry}
    for name, total in of_states.items():
        whole = total[0] if len(total) == 1 else total.sum(0)
        results[name] = whole if name == "A" else whole.to(u.dtype)
    return [results[name] for name in tensors.differentiable]


def _add_up(
    scratch: list[Tensor], first: int, steps: int, reverse: bool, grads: dict[str, Tensor]
) -> None:
    """The sums over channels of one chunk that lies at the step `first`."""
    history, adjoint, _, drive, gated = scratch
    factors = {"B": (adjoint, drive), "C": (history[:, :, 1:], gated)}
    for name, grad in grads.items():
        states, weights = factors[name]
        added = (states @ weights.unsqueeze(-1)).squeeze(-1)
        grad.narrow(2, first, steps).copy_(added.flip(2) if reverse else added)


def _by_chunks(
    g_out: Tensor,
    g_last: Tensor | None,
    tensors: SelectiveTensors,
    heads: Tensor,
    softplus: bool,
    reverse: bool,
) -> list[Tensor]:
    """Compute what `selective_scan_backward` returns, without a kernel."""
    A, shape = tensors.A, tensors.state_shape
    # A copy: an operator returns none of its arguments.
    carry = A.new_zeros(shape) if g_last is None else g_last.clone()
    gradients = chunked.adjoint(
        tensors.named(), g_out, carry, heads_of(heads, shape), softplus, reverse
    )
    return [gradients[name] for name in tensors.differentiable]


def _scratch(u: Tensor, states: int, steps: int, wide: torch.dtype) -> list[Tensor]:
    """History, adjoint, step, drive and gated of one chunk; see the loop."""
    batch, groups, channels, _ = u.shape
    of_states = [(batch, groups, n, states, channels) for n in (steps + 1, steps)]
    shapes = [*of_states, *[(batch, groups, steps, channels)] * 3]
    return [aligned_empty(shape, wide, u.device) for shape in shapes]


@selective_scan_backward.fake
def _(tensors: SelectiveTensors) -> list[Tensor]:
    return [t.new_empty(t.shape) for t in tensors.differentiable.values()]


def _second(ctx: Any, weights: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    """Differentiate the gradients, by torch's operators, one chunk after another."""
    g_out, g_last, *saved, heads = ctx.saved_tensors
    tensors = SelectiveTensors(*saved)
    named, shape = tensors.named(), tensors.state_shape
    carry = tensors.A.new_zeros(shape) if g_last is None else g_last
    pairs = zip(tensors.differentiable, weights, strict=True)
    wanted = {name: weight for name, weight in pairs if weight is not None}
    gradients = chunked.second(
        named, g_out, carry, heads_of(heads, shape), wanted, ctx.softplus, ctx.reverse
    )
    results = [gradients["g_out"], None if g_last is None else gradients["g_last"]]
    of_tensors = {name: gradients[name] for name in tensors.differentiable}
    results += [of_tensors.get(name) for name in SelectiveTensors._fields]
    return _once(results, (*ctx.saved_tensors, *weights))


def _once(results: list[Tensor | None], sources: Sequence[Tensor | None]) -> tuple[Any, ...]:
    """Make the third derivative an error: as constants these would silently have none."""
    if not torch.is_grad_enabled() or transforms_active():
        return tuple(results)
    recorded = [t for t in sources if t is not None and t.requires_grad]
    return tuple(None if r is None else _Second.apply(r, *recorded) for r in results)


class _Second(torch.autograd.Function):
    """A second derivative, which depends on what it was computed from."""

    @staticmethod
    def forward(ctx: Any, result: Tensor, *sources: Tensor) -> Tensor:
        return result.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise RuntimeError(
            "tvm_scan.torch.selective_scan: expected a first or second derivative, got a third "
            "one; write the recurrence with tvm_scan.torch.linear_recurrence, which has all"
        )


selective_scan_backward.gradient(
    _second, " ".join(("g_out g_last", *SelectiveTensors._fields, "heads")), zeros=False
)
